"""The input of planners: tables, devices, statistics and constraints, with the costs of shards."""

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
from ziggurat.planning.tier_cost import PricedTable, tier_shard_costs
from ziggurat.planning.usage import Usage


@dataclass(frozen=True, slots=True)
class TableConstraint:
    """A constraint for one table.

    Attributes:
        sharding: its sharding.
        ranks: its ranks; None leaves them to the planner.
        by_tower: whether it is the table's tower that asks for a host, and the user for nothing.
    """

    sharding: Sharding
    ranks: tuple[int, ...] | None = None
    by_tower: bool = False


@dataclass(frozen=True)
class Problem:
    """Tables to be placed on devices.

    Attributes:
        tables: the model's tables.
        topology: the devices.
        statistics: statistics of the training rows, as counted by preparation; None if there are none.
        batch_size: examples per rank and step.
        constraints: table -> its constraint, which every plan must keep to; already validated.
        reserve: share of a device's memory that tables must leave for everything else.
        offloads_rows: whether memory may hold only some rows of a table. No table is then split by columns or
            replicated, unless the user asks for it.
        memory_for_rows: if so, the bytes of each device's memory for rows; the others are on a disk.
        kept_share: the share of a batch's examples that is left where negatives are dropped during training.
        read_share: the share of them that was read; the others repeat the ids of those, as in-batch negatives do.
    """

    tables: tuple[TableSpec, ...]
    topology: Topology
    statistics: DatasetStatistics | None
    batch_size: int
    constraints: Mapping[str, TableConstraint] = field(default_factory=dict[str, TableConstraint])
    reserve: float = 0.1
    offloads_rows: bool = False
    memory_for_rows: float | None = None
    kept_share: float = 1.0
    read_share: float = 1.0

    @property
    def looked_up(self) -> float:
        """Examples of a rank and step whose ids are looked up; buffers have room for :attr:`batch_size`."""
        return self.batch_size * self.kept_share

    @property
    def read(self) -> float:
        """Examples of a rank and step that were read, whose ids the distinct rows of a step are among."""
        return self.looked_up * self.read_share

    @cached_property
    def usages(self) -> dict[str, Usage]:
        """Table -> how it is looked up."""
        return {table.name: Usage.of(table, self.statistics) for table in self.tables}

    @cached_property
    def client_bytes(self) -> int:
        """Bytes of ids and vectors that every rank keeps for its own examples."""
        return sum(client_bytes(table, self.usages[table.name], self.batch_size) for table in self.tables)

    @property
    def capacity(self) -> float:
        """Bytes of each device's fast memory that are available for shards."""
        return self.topology.memory_bytes * (1 - self.reserve) - self.client_bytes

    def costs(self, table: TableSpec, plan: Plan) -> list[tuple[Shard, ShardCost]]:
        """Returns every shard of ``table`` under ``plan``, with its cost."""
        placement = plan.placements[table.name]
        key = (table.name, placement)
        if key not in self._shards:
            shards = plan.shards(table)
            if placement.sharding == "row_tiers":
                self._shards[key] = tier_shard_costs(self.tiered(table), placement, shards)
            else:
                self._shards[key] = [(shard, self.cost(table, shard, placement.sharding)) for shard in shards]
        return self._shards[key]

    def tiered(self, table: TableSpec) -> PricedTable:
        """Returns the table with the costs of its rows in tiers."""
        if table.name not in self._tiered:
            self._tiered[table.name] = PricedTable(table, self.curve(table), self.topology, self.read, self.looked_up)
        return self._tiered[table.name]

    def cost(self, table: TableSpec, shard: Shard, sharding: Sharding) -> ShardCost:
        """Returns the cost of a shard of any sharding but ``row_tiers``; results are cached."""
        topology, fast = self.topology, shard.fast_rows
        last = topology.host(shard.rank) != topology.host((shard.rank + 1) % topology.world_size)
        key = (table.name, sharding, shard.rows, shard.columns.size, sharding == "data_parallel" and last, fast)
        found = self._costs.get(key)
        if found is None:
            usage = self.usages[table.name] if fast is None else self.curve(table, row_parts(sharding, topology))
            examples = self.batch_size, self.looked_up, self.read
            found = shard_cost(table, shard, sharding, usage, topology, *examples)
            self._costs[key] = found
        return found

    def whole(self, table: TableSpec) -> ShardCost:
        """Returns the cost of ``table``, unsplit, on one device."""
        return self.cost(table, Shard(0, Span(0, table.rows), Span(0, table.dim)), "table_wise")

    def curve(self, table: TableSpec, parts: int = 1) -> AccessCurve:
        """Returns the access curve of the table's rows by falling frequency, distributed over ``parts`` ranges."""
        key = (table.name, parts)
        if key not in self._curves:
            self._curves[key] = AccessCurve.of(self.usages[table.name], parts)
        return self._curves[key]

    def but(self, **changes: Any) -> Problem:
        """Returns this problem with changed attributes; cached access curves are kept if the look-ups are the same."""
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
    def _tiered(self) -> dict[str, PricedTable]:
        return {}

    @cached_property
    def _costs(self) -> dict[tuple[Any, ...], ShardCost]:
        return {}
