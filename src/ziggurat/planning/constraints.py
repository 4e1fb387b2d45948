"""Which placements are possible: the demands of the kernels and of the collectives on a table's shards."""

from __future__ import annotations

from collections.abc import Sequence

from ziggurat.core.errors import InvalidSection, nearest, within
from ziggurat.core.plan import Placement, Plan, Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import DeviceKind, Topology

COLUMN_MULTIPLE = 4
"""FBGEMM's kernels move rows in units of four floats, so the number of a shard's columns is a multiple of four."""

TIERED_OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad")
"""The row optimizers of tables with tiers of rows."""


def must_replicate(table: TableSpec, kind: DeviceKind) -> bool:
    """Returns whether no fused kernel has the table's optimizer, so that every rank must hold the whole table."""
    optimizer = table.optimizer
    return optimizer["name"] == "adam" and (kind == "cpu" or optimizer.get("rows") == "all")


def stays_fused(table: TableSpec, sharding: Sharding) -> bool:
    """Returns whether FBGEMM's kernels look the table up under this sharding.

    Row-wise Adagrad sums the squared gradients of a whole row. The kernels cannot do that for a table that is split by
    columns; torch then looks it up, more slowly.
    """
    return not (sharding in ("column_wise", "grid") and table.optimizer["name"] == "rowwise_adagrad")


def fixed_ranks(sharding: Sharding, topology: Topology) -> tuple[int, ...] | None:
    """Returns the ranks that the sharding prescribes, or None if they can be chosen."""
    whole_world = sharding in ("row_wise", "data_parallel", "grid", "row_tiers")
    return tuple(range(topology.world_size)) if whole_world else None


def row_parts(sharding: Sharding, topology: Topology) -> int:
    """Returns the number of ranges that the sharding cuts a table's rows into."""
    match sharding:
        case "row_wise" | "row_tiers":
            return topology.world_size
        case "table_row_wise" | "grid":
            return topology.devices
        case "table_wise" | "column_wise" | "data_parallel":
            return 1


def column_parts(table: TableSpec, topology: Topology) -> list[int]:
    """Returns the numbers of equal column ranges, 2 or more, that the table can be cut into; at most one a rank."""
    units, rest = divmod(table.dim, COLUMN_MULTIPLE)
    most = 0 if rest else min(units, topology.world_size)
    return [parts for parts in range(2, most + 1) if units % parts == 0]


def check_sharding(table: TableSpec, sharding: Sharding, topology: Topology) -> None:
    """Validates that ``table`` supports this sharding, on ranks yet to be chosen; returns None or raises.

    Raises:
        InvalidSection: at ``sharding``.
    """
    if must_replicate(table, topology.kind) and sharding != "data_parallel":
        rows = " with rows: all" if table.optimizer.get("rows") == "all" else f" on {topology.kind}"
        raise InvalidSection(
            "sharding",
            f"{sharding!r}, but no kernel has adam{rows}: every rank must hold the whole table",
            f"use data_parallel, or another optimizer in embeddings.tables.{table.name}",
        )
    match sharding:
        case "column_wise" if topology.world_size > 1 and not column_parts(table, topology):
            raise InvalidSection(
                "sharding",
                f"'column_wise', but its {table.dim} columns have no 2 to {topology.world_size} equal parts that are "
                f"multiples of {COLUMN_MULTIPLE}",
                "split it by rows, or choose another embeddings dim",
            )
        case "grid" if table.dim % (COLUMN_MULTIPLE * topology.hosts):
            raise InvalidSection(
                "sharding",
                f"'grid', but {table.dim} columns over {topology.hosts} hosts are not {COLUMN_MULTIPLE}, 8, … each",
                "use table_row_wise, or choose another embeddings dim",
            )
        case "row_tiers" if table.optimizer["name"] not in TIERED_OPTIMIZERS:
            raise InvalidSection(
                "sharding",
                f"'row_tiers', but its optimizer is {table.optimizer['name']}; copied rows are updated "
                f"by {', '.join(TIERED_OPTIMIZERS)} only",
                f"use row_wise, or another optimizer in embeddings.tables.{table.name}",
            )
        case "row_tiers" if topology.world_size == 1:
            raise InvalidSection("sharding", "'row_tiers', but there is one rank", "use table_wise")
        case _:
            pass


def check_placement(table: TableSpec, placement: Placement, topology: Topology) -> None:
    """Validates that ``table`` can be placed this way; returns None or raises.

    Raises:
        InvalidSection: at ``sharding``, ``ranks``, ``fast_rows`` or ``copied_rows``.
    """
    sharding, ranks, world = placement.sharding, placement.ranks, topology.world_size
    check_sharding(table, sharding, topology)
    for rank in ranks:
        if not 0 <= rank < world:
            raise InvalidSection("ranks", f"there is no rank {rank}", f"ranks are 0 to {world - 1}")
    _check_fast_rows(table, placement, topology)
    _check_tiers(table, placement)
    wanted = fixed_ranks(sharding, topology)
    match sharding:
        case "table_wise" if len(ranks) != 1:
            raise InvalidSection(
                "ranks", f"table_wise takes one rank; received {list(ranks)}", "name one, or leave ranks out"
            )
        case "table_row_wise" if not _one_host(ranks, topology):
            hosts = " or ".join(str(list(topology.ranks_of(host))) for host in range(min(topology.hosts, 3)))
            raise InvalidSection(
                "ranks",
                f"table_row_wise takes all ranks of one host; received {list(ranks)}",
                f"name {hosts}{', …' if topology.hosts > 3 else ''}, or leave ranks out",
            )
        case "column_wise" if not ranks or table.dim % (COLUMN_MULTIPLE * len(ranks)):
            allowed = ", ".join(map(str, [1, *column_parts(table, topology)]))
            raise InvalidSection(
                "ranks",
                f"{len(ranks)} equal parts of {table.dim} columns are not multiples of {COLUMN_MULTIPLE}",
                f"name as many ranks as one of {allowed}, or leave ranks out",
            )
        case _ if wanted is not None and ranks != wanted:
            raise InvalidSection(
                "ranks",
                f"{sharding} takes every rank in order; received {list(ranks)}",
                f"leave ranks out ({world} ranks)",
            )
        case _:
            pass


def check_plan(plan: Plan, tables: Sequence[TableSpec], topology: Topology) -> None:
    """Validates that ``plan`` is for this topology and gives every table a possible placement; returns None or raises.

    Raises:
        InvalidSection: at ``placements.TABLE``, or the plan is for another number of ranks.
    """
    if (plan.world_size, plan.local_size) != (topology.world_size, topology.devices):
        raise InvalidSection(
            "",
            f"the plan is for {plan.world_size} ranks, {plan.local_size} a host; there are {topology.world_size}, "
            f"{topology.devices} a host",
            "make a new plan",
        )
    check_names("placements", plan.placements, tables)
    for table in tables:
        if table.name not in plan.placements:
            raise InvalidSection(f"placements.{table.name}", "the plan does not place this table", "make a new plan")
        with within(f"placements.{table.name}"):
            check_placement(table, plan.placements[table.name], topology)


def check_names(key: str, names: Sequence[str] | dict[str, Placement], tables: Sequence[TableSpec]) -> None:
    """Validates that there is a table of each name; returns None or raises.

    Raises:
        InvalidSection: at ``key.NAME``, suggesting the table that a feature of that name looks up, or else the one with
            the most similar name.
    """
    known = [table.name for table in tables]
    table_of = {feature: table.name for table in tables for feature in table.features}
    for name in names:
        if name not in known:
            close = nearest(name, known)
            hint = f"did you mean {close!r}?" if close else f"tables: {', '.join(known) or 'none'}"
            if name in table_of:
                hint = f"the feature of this name looks up the table {table_of[name]!r}"
            raise InvalidSection(f"{key}.{name}", f"there is no such table; {hint}")


def _check_fast_rows(table: TableSpec, placement: Placement, topology: Topology) -> None:
    fast_rows = placement.fast_rows
    if fast_rows is None:
        return
    if placement.sharding == "data_parallel":
        raise InvalidSection("fast_rows", "a replicated table is always in fast memory", "leave fast_rows out")
    if not 0 <= fast_rows <= table.rows:
        raise InvalidSection("fast_rows", f"{fast_rows:,}, but the table has {table.rows:,} rows", "make a new plan")
    if fast_rows < table.rows and not topology.slow_memory_bytes:
        raise InvalidSection(
            "fast_rows",
            f"{table.rows - fast_rows:,} rows are in slow memory, but the devices have no slow memory",
            "declare planning.topology.slow_memory, or make a new plan",
        )


def _check_tiers(table: TableSpec, placement: Placement) -> None:
    counts = placement.copied_rows, placement.host_rows
    if placement.sharding != "row_tiers":
        if counts != (None, None):
            raise InvalidSection("copied_rows", f"set, but the sharding is {placement.sharding}", "make a new plan")
        return
    if placement.fast_rows is not None:
        raise InvalidSection("fast_rows", "row_tiers keeps its rows in one memory", "leave fast_rows out")
    copied, of_host = counts
    if copied is None or of_host is None or min(copied, of_host) < 0 or copied + of_host > table.rows:
        raise InvalidSection(
            "copied_rows",
            f"{copied} rows copied to every rank and {of_host} to every host, but the table has {table.rows:,} rows",
            "make a new plan",
        )
    if placement.slots is not None and copied + of_host == table.rows:
        raise InvalidSection("slots", "set, but all rows are copied, and copies are in memory", "make a new plan")


def _one_host(ranks: tuple[int, ...], topology: Topology) -> bool:
    return any(ranks == topology.ranks_of(host) for host in range(topology.hosts))
