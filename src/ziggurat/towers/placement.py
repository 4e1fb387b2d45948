"""Where the tables of towers are: whole on a rank of their tower's host, or split by rows or columns over its ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ziggurat.core.errors import ConfigError
from ziggurat.core.plan import Plan
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.tower_transform.transform import towers_of_a_host
from ziggurat.planning.constraints import COLUMN_MULTIPLE, column_parts
from ziggurat.planning.problem import Problem, TableConstraint
from ziggurat.towers.config import Towers


def with_towers_on_hosts(problem: Problem, towers: Towers) -> Problem:
    """Returns the problem with every table constrained to the host of its tower; the first towers are on the first.

    On a host, tables go to the rank with the least work whose memory they fit into, those with the most work first. A
    table that would take more than half of a device's memory is split by rows over the host's ranks, unless it takes
    means.

    Args:
        problem: the tables, on several hosts.
        towers: the features of each tower.

    Raises:
        ConfigError: the number of hosts does not divide that of towers, or ``planning.tables`` asks for a placement
            that is not within the host of a table's tower.
    """
    topology = problem.topology
    each = towers_of_a_host(len(towers), topology.hosts)
    host_of = {feature: number // each for number, tower in enumerate(towers) for feature in tower}
    constraints: dict[str, TableConstraint] = {}
    for host in range(topology.hosts):
        tables = [table for table in problem.tables if host_of[table.features[0]] == host]
        constraints.update(_on_host(problem, tables, topology.ranks_of(host), host))
    return problem.but(constraints=constraints)


def keeps(plan: Plan, problem: Problem) -> bool:
    """Returns whether a plan has every table on the host of its tower, and where the user wants it."""
    for name, each in problem.constraints.items():
        placed = plan.placements[name]
        if placed.sharding != each.sharding:
            return False
        if each.ranks is None or placed.ranks == each.ranks:
            continue
        hosts = {rank // problem.topology.devices for rank in (*placed.ranks, *each.ranks)}
        if not each.by_tower or each.sharding != "table_wise" or len(hosts) > 1:
            return False
    return True


def _on_host(
    problem: Problem, tables: Sequence[TableSpec], ranks: tuple[int, ...], host: int
) -> dict[str, TableConstraint]:
    load, held = dict.fromkeys(ranks, 0.0), dict.fromkeys(ranks, 0.0)
    found: dict[str, TableConstraint] = {}
    for table in sorted(tables, key=lambda each: (-_work(problem, each), each.name)):
        asked = problem.constraints.get(table.name)
        if asked is not None:
            _check(table, asked, ranks, host)
        size = problem.whole(table).kept_bytes
        large = size > problem.capacity / 2
        by_rows = large and table.pooling == "sum" if asked is None else asked.sharding == "table_row_wise"
        if by_rows:
            found[table.name] = TableConstraint("table_row_wise", ranks, by_tower=asked is None)
            for rank in ranks:
                load[rank] += _work(problem, table) / len(ranks)
                held[rank] += size / len(ranks)
            continue
        if asked is not None and asked.sharding == "column_wise":
            parts = asked.ranks or _least_loaded(load, _column_parts(problem, table, len(ranks)))
            found[table.name] = TableConstraint("column_wise", parts, by_tower=asked.ranks is None)
            for rank in parts:
                load[rank] += _work(problem, table) / len(parts)
                held[rank] += size / len(parts)
            continue
        if asked is not None and asked.ranks is not None:
            (rank,) = asked.ranks
        else:
            free = [rank for rank in ranks if held[rank] + size <= problem.capacity]
            by_work, by_bytes = (lambda rank: (load[rank], rank)), (lambda rank: (held[rank], rank))
            rank = min(free, key=by_work) if free else min(ranks, key=by_bytes)
        found[table.name] = TableConstraint("table_wise", (rank,), by_tower=asked is None or asked.ranks is None)
        load[rank] += _work(problem, table)
        held[rank] += size
    return found


def _column_parts(problem: Problem, table: TableSpec, most: int) -> int:
    """Returns the most equal parts that the table's columns have on the ranks of a host.

    Raises:
        ConfigError: they have none.
    """
    possible = [parts for parts in column_parts(table, problem.topology) if parts <= most]
    if not possible:
        raise ConfigError(
            f"planning.tables.{table.name}.sharding: {table.dim} columns have no 2 to {most} equal parts that are "
            f"multiples of {COLUMN_MULTIPLE}, for the ranks of a tower's host",
            "choose table_wise or table_row_wise",
        )
    return possible[-1]


def _least_loaded(load: Mapping[int, float], count: int) -> tuple[int, ...]:
    return tuple(sorted(sorted(load, key=lambda rank: (load[rank], rank))[:count]))


def _work(problem: Problem, table: TableSpec) -> float:
    """Returns the floats that are read and sent for one example."""
    return (problem.usages[table.name].ids_per_row + len(table.keys)) * table.dim


def _check(table: TableSpec, asked: TableConstraint, ranks: tuple[int, ...], host: int) -> None:
    key = f"planning.tables.{table.name}"
    if asked.sharding not in ("table_wise", "table_row_wise", "column_wise"):
        raise ConfigError(
            f"{key}.sharding: {asked.sharding!r} is not within one host, where tower_transform keeps a tower's tables",
            "choose table_wise, table_row_wise or column_wise, or set parallel.embeddings: {name: flat}",
        )
    if asked.sharding == "table_row_wise" and table.pooling == "mean":
        raise ConfigError(
            f"{key}.sharding: tower_transform has no means over a table that is split by rows so far",
            "choose table_wise, or pool its features by sum",
        )
    if asked.ranks is not None and not set(asked.ranks) <= set(ranks):
        raise ConfigError(
            f"{key}.ranks: received {list(asked.ranks)}, but the table's tower is on host {host}",
            f"name ranks of {list(ranks)}, or leave ranks out",
        )
