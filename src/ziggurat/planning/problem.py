"""What a planner is given, and what a planner is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ziggurat.core.plan import Placement, Plan, Shard, Sharding, Span
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.access_curve import AccessCurve
from ziggurat.planning.constraints import row_parts
from ziggurat.planning.cost import ShardCost, client_bytes, shard_cost
from ziggurat.planning.usage import Usage


@dataclass(frozen=True, slots=True)
class TableConstraint:
    """What the user asks for one table: its sharding, on ranks of their choice or, where None, of the planner's."""

    sharding: Sharding
    ranks: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Problem:
    """Tables to be placed on devices.

    Attributes:
        tables: of the model.
        topology: the devices.
        statistics: of the training rows, as preparation counted them; None where nothing is known.
        batch_size: examples per rank and step.
        constraints: table -> what every plan must do with it; checked already.
        reserve: share of a device's memory that tables must leave to everything else.
        offloads_rows: whether memory may have room for some rows of a table alone: where nobody asks for it, no table is
            then split by columns or held by every device.
    """

    tables: tuple[TableSpec, ...]
    topology: Topology
    statistics: DatasetStatistics | None
    batch_size: int
    constraints: Mapping[str, TableConstraint] = field(default_factory=dict[str, TableConstraint])
    reserve: float = 0.1
    offloads_rows: bool = False

    @cached_property
    def usages(self) -> dict[str, Usage]:
        """Table -> how it is looked up."""
        return {table.name: Usage.of(table, self.statistics) for table in self.tables}

    @cached_property
    def client_bytes(self) -> int:
        """Of ids and vectors that every rank keeps for its own examples."""
        return sum(client_bytes(table, self.usages[table.name], self.batch_size) for table in self.tables)

    @property
    def capacity(self) -> float:
        """Bytes of a device's fast memory that shards may take."""
        return self.topology.memory_bytes * (1 - self.reserve) - self.client_bytes

    def costs(self, table: TableSpec, plan: Plan) -> list[tuple[Shard, ShardCost]]:
        """Every shard of ``table`` under ``plan``, with its cost."""
        placement = plan.placements[table.name]
        key = (table.name, placement)
        if key not in self._shards:
            self._shards[key] = [(shard, self.cost(table, shard, placement.sharding)) for shard in plan.shards(table)]
        return self._shards[key]

    def cost(self, table: TableSpec, shard: Shard, sharding: Sharding) -> ShardCost:
        """The cost of a shard; what was worked out once is remembered."""
        topology, fast = self.topology, shard.fast_rows
        last = topology.host(shard.rank) != topology.host((shard.rank + 1) % topology.world_size)
        key = (table.name, sharding, shard.rows, shard.columns.size, sharding == "data_parallel" and last, fast)
        found = self._costs.get(key)
        if found is None:
            usage = self.usages[table.name] if fast is None else self.curve(table, row_parts(sharding, topology))
            found = shard_cost(table, shard, sharding, usage, topology, self.batch_size)
            self._costs[key] = found
        return found

    def whole(self, table: TableSpec) -> ShardCost:
        """The cost of ``table`` on one device."""
        return self.cost(table, Shard(0, Span(0, table.rows), Span(0, table.dim)), "table_wise")

    def curve(self, table: TableSpec, parts: int = 1) -> AccessCurve:
        """How the table is used once its rows lie by falling frequency, dealt out over so many ranges."""
        key = (table.name, parts)
        if key not in self._curves:
            self._curves[key] = AccessCurve.of(self.usages[table.name], parts)
        return self._curves[key]

    def but(self, **changes: Any) -> Problem:
        """This problem with other attributes; what was worked out of look-ups that stay the same is kept."""
        other = replace(self, **changes)
        if other.statistics is self.statistics:
            same = {(each.name, each.rows, each.keys) for each in self.tables}
            names = {each.name for each in other.tables if (each.name, each.rows, each.keys) in same}
            other._curves.update({key: curve for key, curve in self._curves.items() if key[0] in names})
        return other

    @cached_property
    def _shards(self) -> dict[tuple[str, Placement], list[tuple[Shard, ShardCost]]]:
        return {}

    @cached_property
    def _curves(self) -> dict[tuple[str, int], AccessCurve]:
        return {}

    @cached_property
    def _costs(self) -> dict[tuple[Any, ...], ShardCost]:
        return {}
