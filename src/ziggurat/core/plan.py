"""Which shard of which table lives on which rank. Made by a planner, applied by ``embeddings``, saved with the run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Literal

from ziggurat.core.errors import ConfigError
from ziggurat.core.tables import TableSpec

PLAN_VERSION = 4
READABLE_VERSIONS = (2, 3, 4)
"""Version 2 knew no tiers of memory, version 3 no rows beyond memory."""

Sharding = Literal["table_wise", "row_wise", "column_wise", "data_parallel", "table_row_wise", "grid"]
"""How a table is split.

===============  ======================================================================================================
table_wise       whole, on one rank
row_wise         contiguous ranges of rows, one on every rank of the world
column_wise      equal ranges of columns, on the ranks named; a rank may hold several
data_parallel    whole, on every rank
table_row_wise   contiguous ranges of rows over the ranks of one host
grid             equal ranges of columns, one a host, each split by rows over that host's ranks
===============  ======================================================================================================
"""


SPLIT_BY_ROWS: frozenset[Sharding] = frozenset({"row_wise", "table_row_wise", "grid"})
"""Where the rows of one bag may lie on several ranks."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How one table is split, who owns its shards, and which of its rows are in fast memory.

    Attributes:
        sharding: how it is split.
        ranks: the owners, global ranks in shard order.
        fast_rows: None: the rows lie by their own ids, all of them in fast memory. A number: they lie by falling
            frequency, dealt out one by one over the ranges where the table is split by rows, and so many of the first
            are in fast memory, the others in slow.
        slots: None: memory has room for all rows. A number: for so many of each shard; all are on a block device.
    """

    sharding: Sharding
    ranks: tuple[int, ...]
    fast_rows: int | None = None
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """``size`` rows or columns from ``first`` on."""

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
        rows, columns: of the table; rows by the place where they lie.
        fast_rows: how many of the rows, from the first on, are in fast memory; None: all, and they lie by their ids.
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
    """Table name -> placement, for a world of a fixed shape.

    Attributes:
        world_size: ranks.
        placements: by table.
        local_size: ranks on each host; ranks count up host by host.
        notes: what its planner has to say of it.
    """

    world_size: int
    placements: dict[str, Placement]
    local_size: int
    notes: tuple[str, ...] = ()

    @classmethod
    def single_device(cls, tables: Iterable[str]) -> Plan:
        """Every table whole on rank 0 of a world of one."""
        return cls(1, {table: Placement("table_wise", (0,)) for table in tables}, 1)

    def placed(
        self,
        table: str,
        sharding: Sharding,
        ranks: Iterable[int],
        fast_rows: int | None = None,
        slots: int | None = None,
    ) -> Plan:
        """This plan with one table placed anew."""
        placement = Placement(sharding, tuple(ranks), fast_rows, slots)
        return replace(self, placements={**self.placements, table: placement})

    def shards(self, table: TableSpec) -> tuple[Shard, ...]:
        """What of ``table`` lies where, in shard order. Ranges of rows are ``ceil(rows / ranks)`` long but for the
        last, as TorchRec's kernels have them."""
        placement = self.placements[table.name]
        ranks = placement.ranks
        row_spans = _ranges(table.rows, self.row_parts(table.name))
        fast = [None] * len(row_spans) if placement.fast_rows is None else dealt(row_spans, placement.fast_rows)
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

    def row_parts(self, table: str) -> int:
        """Into how many ranges the rows of a table are cut."""
        placement = self.placements[table]
        if placement.sharding == "grid":
            return self.local_size
        return len(placement.ranks) if placement.sharding in SPLIT_BY_ROWS else 1

    def host(self, rank: int) -> int:
        """The host that a rank is on."""
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
        """The plan that :meth:`to_json` wrote.

        Raises:
            ConfigError: a version this ziggurat does not know.
        """
        if values.get("version") not in READABLE_VERSIONS:
            known = " or ".join(map(str, READABLE_VERSIONS))
            raise ConfigError(
                f"plan version {values.get('version')!r} is not {known}", "make the plan anew with this ziggurat"
            )
        placements = {
            name: Placement(item["sharding"], tuple(item["ranks"]), item.get("fast_rows"), item.get("slots"))
            for name, item in values["placements"].items()
        }
        notes = tuple(values.get("notes", ()))
        return cls(int(values["world_size"]), placements, int(values["local_size"]), notes)


def dealt(spans: Sequence[Span], count: int) -> list[int]:
    """How many of ``count`` things each span gets that are dealt out one by one in turn, to those that have room."""
    given = [0] * len(spans)
    while count:
        open_spans = [k for k, span in enumerate(spans) if given[k] < span.size]
        turns = min(spans[k].size - given[k] for k in open_spans)
        turns, rest = (turns, 0) if turns * len(open_spans) <= count else divmod(count, len(open_spans))
        for place, k in enumerate(open_spans):
            given[k] += turns + (place < rest)
        count -= turns * len(open_spans) + rest
    return given


def _ranges(total: int, parts: int) -> list[Span]:
    """Contiguous spans of ``ceil(total / parts)``; the last ones may be shorter, or empty."""
    size = -(-total // parts)
    return [Span(min(part * size, total), min(size, max(0, total - part * size))) for part in range(parts)]
