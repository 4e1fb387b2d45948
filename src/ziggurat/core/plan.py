"""A plan assigns the shards of tables to ranks. A planner makes it, ``embeddings`` applies it, the run stores it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Literal, get_args

from ziggurat.core.errors import ConfigError, unknown_name
from ziggurat.core.sealed import declared
from ziggurat.core.tables import TableSpec
from ziggurat.core.untrusted import Damage

PLAN_VERSION = 5
READABLE_VERSIONS = (2, 3, 4, 5)
"""Version 2 had no memory tiers (``fast_rows``), 3 no offloaded tables (``slots``), 4 no tiers of rows
(``copied_rows``, ``host_rows``)."""

_DAMAGED = Damage(ConfigError, "make the plan anew with this ziggurat")
_MOST_RANKS = 2**20

Sharding = Literal["table_wise", "row_wise", "column_wise", "data_parallel", "table_row_wise", "grid", "row_tiers"]
"""How a table is split.

===============  ======================================================================================================
table_wise       the whole table on one rank
row_wise         contiguous ranges of rows, one on every rank
column_wise      equal ranges of columns, on the ranks named; a rank may hold several
data_parallel    the whole table on every rank
table_row_wise   contiguous ranges of rows over the ranks of one host
grid             equal ranges of columns, one per host, each split by rows over that host's ranks
row_tiers        by frequency: the first rows copied to every rank; the next copied to every host, where they are split
                 over its ranks; the others split over all ranks
===============  ======================================================================================================
"""


_SHARDINGS: tuple[Sharding, ...] = get_args(Sharding)
SPLIT_BY_ROWS: frozenset[Sharding] = frozenset({"row_wise", "table_row_wise", "grid", "row_tiers"})
"""Shardings with which the rows of one bag may be on several ranks."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How one table is split, which ranks own its shards, and which of its rows are in fast memory.

    Attributes:
        sharding: how the table is split.
        ranks: the owners, as global ranks in shard order.
        fast_rows: None: rows are ordered by id, all of them in fast memory. A number: rows are ordered by descending
            frequency (distributed round-robin over the ranges if the table is split by rows); this many of the first
            are in fast memory, the others in slow memory.
        slots: None: all rows are in memory. A number: the rows are on a block device, and memory caches this many rows
            of each shard; with ``row_tiers``, of each shard of the rows that are split over all ranks.
        copied_rows: with ``row_tiers``, how many rows, from the most frequent one on, are copied to every rank; else
            None.
        host_rows: with ``row_tiers``, how many of the rows after these are copied to every host; else None.
    """

    sharding: Sharding
    ranks: tuple[int, ...]
    fast_rows: int | None = None
    slots: int | None = None
    copied_rows: int | None = None
    host_rows: int | None = None

    @property
    def ordered(self) -> bool:
        """Whether rows are stored by falling frequency."""
        return self.fast_rows is not None or self.sharding == "row_tiers"

    def tiers(self, rows: int) -> tuple[Span, Span, Span]:
        """Returns the positions of the rows copied to every rank, copied to every host, and split over all ranks.

        Args:
            rows: the table's rows; the placement is of ``row_tiers``.
        """
        copied, of_host = self.copied_rows, self.host_rows
        assert copied is not None, self
        assert of_host is not None, self
        return Span(0, copied), Span(copied, of_host), Span(copied + of_host, rows - copied - of_host)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of ``size`` rows or columns that begins at ``first``."""

    first: int
    size: int

    @property
    def slice(self) -> slice:
        return slice(self.first, self.first + self.size)


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of a table, and the rank that holds it.

    Attributes:
        rank: the owner.
        rows, columns: the ranges of the table; rows are counted by position, which differs from the id if rows are
            ordered by frequency.
        fast_rows: how many of the rows, from the first on, are in fast memory; None: all, and they are ordered by id.
    """

    rank: int
    rows: Span
    columns: Span
    fast_rows: int | None = None

    @property
    def slow(self) -> Span:
        """The rows in slow memory."""
        size = 0 if self.fast_rows is None else self.rows.size - self.fast_rows
        return Span(self.rows.first + self.rows.size - size, size)


@dataclass(frozen=True, slots=True)
class Plan:
    """The placement of every table, for a fixed number of ranks and hosts.

    Attributes:
        world_size: number of ranks.
        placements: table name -> placement.
        local_size: number of ranks per host; ranks are numbered host by host.
        notes: remarks of its planner.
    """

    world_size: int
    placements: dict[str, Placement]
    local_size: int
    notes: tuple[str, ...] = ()

    @classmethod
    def single_device(cls, tables: Iterable[str]) -> Plan:
        """Returns a plan for one rank, which holds every table whole."""
        return cls(1, {table: Placement("table_wise", (0,)) for table in tables}, 1)

    def placed(
        self,
        table: str,
        sharding: Sharding,
        ranks: Iterable[int],
        fast_rows: int | None = None,
        slots: int | None = None,
        *,
        copied_rows: int | None = None,
        host_rows: int | None = None,
    ) -> Plan:
        """Returns this plan with another placement of one table.

        Raises:
            ConfigError: there is no such sharding.
        """
        if sharding not in _SHARDINGS:
            raise unknown_name("sharding", sharding, _SHARDINGS)
        placement = Placement(sharding, tuple(ranks), fast_rows, slots, copied_rows, host_rows)
        return replace(self, placements={**self.placements, table: placement})

    def shards(self, table: TableSpec) -> tuple[Shard, ...]:
        """Returns the shards of ``table``, in shard order.

        Ranges of rows are ``ceil(rows / ranks)`` long, except the last, as TorchRec's kernels require. With
        ``row_tiers``, each rank has a shard of every tier that has rows; shards are ordered by tier, then by rank.

        Raises:
            ConfigError: the plan has no such table.
        """
        placement = self.placement(table.name)
        ranks = placement.ranks
        if placement.sharding == "row_tiers":
            return tuple(self._tier_shards(table, placement))
        row_spans = _ranges(table.rows, self.row_parts(table.name))
        fast = [None] * len(row_spans)
        if placement.fast_rows is not None:
            fast = round_robin_counts(row_spans, placement.fast_rows)
        rows = list(zip(row_spans, fast, strict=True))
        match placement.sharding:
            case "grid":
                hosts = [tuple(group) for _, group in groupby(ranks, self.host)]
                column_spans = _ranges(table.dim, len(hosts))
            case "column_wise":
                hosts, column_spans = [(rank,) for rank in ranks], _ranges(table.dim, len(ranks))
            case "table_wise" | "data_parallel":
                hosts, column_spans = [(rank,) for rank in ranks], [Span(0, table.dim)] * len(ranks)
            case "row_wise" | "table_row_wise":
                hosts, column_spans = [ranks], [Span(0, table.dim)]
        return tuple(
            Shard(rank, span, columns, fast_rows)
            for owners, columns in zip(hosts, column_spans, strict=True)
            for rank, (span, fast_rows) in zip(owners, rows, strict=True)
        )

    def _tier_shards(self, table: TableSpec, placement: Placement) -> Iterator[Shard]:
        copied, hosts, split = placement.tiers(table.rows)
        columns = Span(0, table.dim)
        parts = {
            copied: [Span(0, copied.size)] * self.world_size,
            hosts: _ranges(hosts.size, self.local_size) * (self.world_size // self.local_size),
            split: _ranges(split.size, self.world_size),
        }
        for tier, spans in parts.items():
            if tier.size:
                for rank, span in enumerate(spans):
                    yield Shard(rank, Span(tier.first + span.first, span.size), columns)

    def placement(self, table: str) -> Placement:
        """Returns the placement of a table.

        Raises:
            ConfigError: the plan has no such table.
        """
        found = self.placements.get(table)
        if found is None:
            raise unknown_name("table of this plan", table, self.placements)
        return found

    def row_parts(self, table: str) -> int:
        """Returns into how many ranges the rows of a table are split; with ``row_tiers``, those of the last tier.

        Raises:
            ConfigError: the plan has no such table.
        """
        placement = self.placement(table)
        if placement.sharding == "grid":
            return self.local_size
        return len(placement.ranks) if placement.sharding in SPLIT_BY_ROWS else 1

    def host(self, rank: int) -> int:
        """Returns the host of a rank."""
        return rank // self.local_size

    def to_json(self) -> dict[str, Any]:
        return {
            "version": PLAN_VERSION,
            "world_size": self.world_size,
            "local_size": self.local_size,
            "placements": {k: asdict(v) for k, v in self.placements.items()},
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Plan:
        """Returns the plan that :meth:`to_json` converted.

        Raises:
            ConfigError: the plan is of a version that this ziggurat does not know, or no plan.
        """
        if values.get("version") not in READABLE_VERSIONS:
            known = " or ".join(map(str, READABLE_VERSIONS))
            raise ConfigError(
                f"plan version {values.get('version')!r} is not {known}", "make the plan anew with this ziggurat"
            )
        plan = declared(cls, values, "plan", _DAMAGED)
        if not 1 <= plan.local_size <= plan.world_size <= _MOST_RANKS or plan.world_size % plan.local_size:
            raise _DAMAGED.of("plan", f"has {plan.world_size} ranks, {plan.local_size} a host")
        for name, placement in plan.placements.items():
            where = f"plan: placements.{name}"
            if not placement.ranks or not all(0 <= rank < plan.world_size for rank in placement.ranks):
                raise _DAMAGED.of(where, f"names the ranks {list(placement.ranks)} of {plan.world_size}")
            if (placement.fast_rows or 0) < 0 or (placement.slots is not None and placement.slots < 1):
                raise _DAMAGED.of(where, f"has {placement.fast_rows} fast rows and {placement.slots} slots")
            _check_tiers(where, plan, placement)
        return plan


def _check_tiers(where: str, plan: Plan, placement: Placement) -> None:
    """Raises ConfigError unless a stored placement has tiers of rows exactly if it is of ``row_tiers``."""
    counts = (placement.copied_rows, placement.host_rows)
    if placement.sharding != "row_tiers":
        if counts != (None, None):
            raise _DAMAGED.of(where, f"has tiers of rows, but is {placement.sharding}")
        return
    if None in counts or min(count or 0 for count in counts) < 0 or placement.fast_rows is not None:
        found = f"{counts[0]} rows copied to every rank, {counts[1]} to every host, {placement.fast_rows} fast rows"
        raise _DAMAGED.of(where, f"has {found}")
    if placement.ranks != tuple(range(plan.world_size)):
        raise _DAMAGED.of(where, f"is row_tiers, but names the ranks {list(placement.ranks)} of {plan.world_size}")


def round_robin_counts(spans: Sequence[Span], count: int) -> list[int]:
    """Returns how many of ``count`` rows each span gets if they are distributed round-robin over spans not yet full."""
    counts = [0] * len(spans)
    while count:
        open_spans = [k for k, span in enumerate(spans) if counts[k] < span.size]
        turns = min(spans[k].size - counts[k] for k in open_spans)
        turns, rest = (turns, 0) if turns * len(open_spans) <= count else divmod(count, len(open_spans))
        for position, k in enumerate(open_spans):
            counts[k] += turns + (position < rest)
        count -= turns * len(open_spans) + rest
    return counts


def _ranges(total: int, parts: int) -> list[Span]:
    """Returns contiguous spans of size ``ceil(total / parts)``; the last ones may be shorter, or empty."""
    size = -(-total // parts)
    return [Span(min(part * size, total), min(size, max(0, total - part * size))) for part in range(parts)]
