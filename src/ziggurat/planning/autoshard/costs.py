"""Costs of devices: kernels by the cost network, which is fitted to measurements, and exchanges by the cost model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ziggurat.core.errors import ConfigError
from ziggurat.core.plan import Plan, Shard, Sharding, Span
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import DeviceKind
from ziggurat.planning.autoshard.cost_network import EMBEDDING, CostNetwork
from ziggurat.planning.autoshard.features import shard_features
from ziggurat.planning.autoshard.task import Floats, Task
from ziggurat.planning.cost import ShardCost
from ziggurat.planning.placement import Item, Loads
from ziggurat.planning.problem import Problem


class LearnedCosts:
    """See the module.

    Args:
        network: predicts the seconds of a device's kernels.
        factors: table -> factor by which the network's prediction for it is multiplied; 1 for tables not named.
    """

    def __init__(self, network: CostNetwork, factors: Mapping[str, float] | None = None) -> None:
        self.network, self._factors = network, factors or {}
        self._problem: Problem | None = None
        self._embedded: dict[tuple[str, Shard, Sharding], Floats] = {}

    @property
    def source(self) -> str:
        """The machine that the costs were measured on, and their accuracy."""
        origin = self.network.origin
        off = f" ({100 * origin['held_out']['median']:.0f} % off where held out)" if "held_out" in origin else ""
        return f"kernels as measured on {origin['machine']}, {origin['date']}{off}"

    def corrected(self, factors: Mapping[str, float]) -> LearnedCosts:
        """Returns the network's costs with these factors instead of the present ones."""
        found = LearnedCosts(self.network, factors)
        found._problem, found._embedded = self._problem, self._embedded
        return found

    def check_kind(self, kind: DeviceKind) -> None:
        """Validates that the costs were measured on this kind of device; returns None or raises.

        Raises:
            ConfigError: they were measured on another kind.
        """
        origin = self.network.origin
        if origin["kind"] != kind:
            raise ConfigError(
                f"planning.planner: autoshard has costs of {origin['machine']}, and the plan is for {kind} devices",
                "measure such a device (`ziggurat doctor --measure`, then planning.planner.learned), or use "
                "planning.planner: {name: rules}",
            )

    def device_seconds(self, problem: Problem, plan: Plan) -> list[float]:
        """Returns the predicted seconds of a step on each device under any plan."""
        sums_DE, exchange_D = self._sums(problem, plan)
        return (self.network.seconds(sums_DE) + exchange_D).tolist()

    def table_seconds(self, problem: Problem, table: TableSpec) -> float:
        """Returns the kernels' seconds for a whole table alone on a device."""
        return float(self.network.seconds(self._embed(problem, table, _whole(table), "table_wise")))

    def seconds_on_one_device(self, problem: Problem) -> float:
        """Returns the kernels' seconds if one device held all tables, whole; there must be at least one table."""
        embedded = [self._embed(problem, table, _whole(table), "table_wise") for table in problem.tables]
        return float(self.network.seconds(np.sum(embedded, axis=0)))

    def parts_seconds(self, problem: Problem, parts: Sequence[tuple[TableSpec, Shard]]) -> tuple[float, Floats]:
        """Returns the kernels' seconds of a device that holds these shards, and each shard's share of them.

        The shards must not be of replicated tables.
        """
        embedded_NE = np.stack([self._embed(problem, table, shard, "table_wise") for table, shard in parts])
        shares_N = self.network.additive(embedded_NE)
        return float(self.network.seconds(embedded_NE.sum(0))), shares_N / shares_N.sum()

    def item_seconds(self, problem: Problem, items: Sequence[Item]) -> list[float]:
        """Returns the seconds of each item alone on a device, exchanges included."""
        if not items:
            return []
        kernels = self.network.seconds(self._embed_all(problem, items))
        return [float(k) + exchange_seconds(problem, item.cost) for k, item in zip(kernels, items, strict=True)]

    def task(self, problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Task:
        """Returns the problem of assigning the items to devices.

        Args:
            problem: the tables and devices.
            plan: the tables placed already.
            items: the items to assign.
            loads: the devices' loads under ``plan``.
        """
        sums_DE, exchange_D = self._sums(problem, plan)
        return Task(
            self.network,
            self._embed_all(problem, items),
            np.array([item.cost.kept_bytes for item in items], np.float64),
            np.array([exchange_seconds(problem, item.cost) for item in items]),
            np.array(loads.free, np.float64),
            sums_DE,
            exchange_D,
        )

    def _embed_all(self, problem: Problem, items: Sequence[Item]) -> Floats:
        return np.stack([self._embed(problem, item.table, item.shard, item.split.sharding) for item in items])

    def _sums(self, problem: Problem, plan: Plan) -> tuple[Floats, Floats]:
        """Returns each device's summed embeddings and exchange seconds under a plan, which may omit tables."""
        world = problem.topology.world_size
        sums_DE, exchange_D = np.zeros((world, EMBEDDING)), np.zeros(world)
        for table in problem.tables:
            if table.name not in plan.placements:
                continue
            sharding = plan.placements[table.name].sharding
            for shard, cost in problem.costs(table, plan):
                if shard.rows.size:
                    sums_DE[shard.rank] += self._embed(problem, table, shard, sharding)
                exchange_D[shard.rank] += exchange_seconds(problem, cost)
        return sums_DE, exchange_D

    def _embed(self, problem: Problem, table: TableSpec, shard: Shard, sharding: Sharding) -> Floats:
        if self._problem is not problem:
            self._problem, self._embedded = problem, {}
        key = (table.name, Shard(0, shard.rows, shard.columns), sharding)
        if key not in self._embedded:
            usage, world = problem.usages[table.name], problem.topology.world_size
            features = shard_features(table, shard, sharding, usage, problem.batch_size, world)
            self._embedded[key] = self.network.embed(features[None])[0]
        return self._embedded[key] * self._factors.get(table.name, 1.0)


def exchange_seconds(problem: Problem, cost: ShardCost) -> float:
    """Returns the seconds of a shard's cost outside the kernel, including those for a replicated table's whole
    gradient."""
    return cost.seconds - (cost.memory_traffic - cost.gradient_traffic) / problem.topology.lookup_bandwidth


def _whole(table: TableSpec) -> Shard:
    return Shard(0, Span(0, table.rows), Span(0, table.dim))
