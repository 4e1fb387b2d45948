"""Which shard of which table lives on which rank. Made by a planner, applied by ``embeddings``, saved with the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal

from ziggurat.core.errors import ConfigError
from ziggurat.core.tables import TableSpec

PLAN_VERSION = 2

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
    """How one table is split and who owns its shards (global ranks, in shard order)."""

    sharding: Sharding
    ranks: tuple[int, ...]


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
    """A part of a table, and the rank that holds it."""

    rank: int
    rows: Span
    columns: Span


@dataclass(frozen=True, slots=True)
class Plan:
    """Table name -> placement, for a world of a fixed shape.

    Attributes:
        world_size: ranks.
        placements: by table.
        local_size: ranks on each host; ranks count up host by host.
    """

    world_size: int
    placements: dict[str, Placement]
    local_size: int

    @classmethod
    def single_device(cls, tables: Iterable[str]) -> Plan:
        """Every table whole on rank 0 of a world of one."""
        return cls(1, {table: Placement("table_wise", (0,)) for table in tables}, 1)

    def placed(self, table: str, sharding: Sharding, ranks: Iterable[int]) -> Plan:
        """This plan with one table placed anew."""
        return Plan(self.world_size, {**self.placements, table: Placement(sharding, tuple(ranks))}, self.local_size)

    def shards(self, table: TableSpec) -> tuple[Shard, ...]:
        """What of ``table`` lies where, in shard order. Ranges of rows are ``ceil(rows / ranks)`` long but for the
        last, as TorchRec's kernels have them."""
        placement = self.placements[table.name]
        ranks, whole = placement.ranks, Span(0, table.dim)
        match placement.sharding:
            case "table_wise" | "data_parallel":
                return tuple(Shard(rank, Span(0, table.rows), whole) for rank in ranks)
            case "row_wise" | "table_row_wise":
                return tuple(
                    Shard(r, rows, whole) for r, rows in zip(ranks, _ranges(table.rows, len(ranks)), strict=True)
                )
            case "column_wise":
                spans = _ranges(table.dim, len(ranks))
                every = Span(0, table.rows)
                return tuple(Shard(rank, every, columns) for rank, columns in zip(ranks, spans, strict=True))
            case "grid":
                hosts = [tuple(group) for _, group in groupby(ranks, self.host)]
                return tuple(
                    Shard(rank, rows, columns)
                    for host, columns in zip(hosts, _ranges(table.dim, len(hosts)), strict=True)
                    for rank, rows in zip(host, _ranges(table.rows, len(host)), strict=True)
                )

    def host(self, rank: int) -> int:
        """The host that a rank is on."""
        return rank // self.local_size

    def to_json(self) -> dict[str, Any]:
        return {
            "version": PLAN_VERSION,
            "world_size": self.world_size,
            "local_size": self.local_size,
            "placements": {k: asdict(v) for k, v in self.placements.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Plan:
        """The plan that :meth:`to_json` wrote.

        Raises:
            ConfigError: a version this ziggurat does not know.
        """
        if values.get("version") != PLAN_VERSION:
            raise ConfigError(
                f"plan version {values.get('version')!r} is not {PLAN_VERSION}", "make the plan anew with this ziggurat"
            )
        placements = {
            name: Placement(item["sharding"], tuple(item["ranks"])) for name, item in values["placements"].items()
        }
        return cls(int(values["world_size"]), placements, int(values["local_size"]))


def _ranges(total: int, parts: int) -> list[Span]:
    """Contiguous spans of ``ceil(total / parts)``; the last ones may be shorter, or empty."""
    size = -(-total // parts)
    return [Span(min(part * size, total), min(size, max(0, total - part * size))) for part in range(parts)]
