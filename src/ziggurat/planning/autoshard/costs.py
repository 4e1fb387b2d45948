"""What devices cost by the cost network: kernels as they were measured, exchanges by the cost model."""

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
        network: predicts what a device's kernels take.
        factors: table -> how many times as long as the network says it takes; of those not named, 1.
    """

    def __init__(self, network: CostNetwork, factors: Mapping[str, float] | None = None) -> None:
        self.network, self._factors = network, factors or {}
        self._problem: Problem | None = None
        self._embedded: dict[tuple[str, Shard, Sharding], Floats] = {}

    @property
    def source(self) -> str:
        """Whose costs these are, and how good."""
        origin = self.network.origin
        off = f" ({100 * origin['held_out']['median']:.0f} % off where held out)" if "held_out" in origin else ""
        return f"kernels as measured on {origin['machine']}, {origin['date']}{off}"

    def corrected(self, factors: Mapping[str, float]) -> LearnedCosts:
        """The network's costs with these factors, in place of those that there are."""
        found = LearnedCosts(self.network, factors)
        found._problem, found._embedded = self._problem, self._embedded
        return found

    def check_kind(self, kind: DeviceKind) -> None:
        """Nothing, where the costs are of such devices.

        Raises:
            ConfigError: they are of others.
        """
        origin = self.network.origin
        if origin["kind"] != kind:
            raise ConfigError(
                f"planning.planner: autoshard has costs of {origin['machine']}, and the plan is for {kind} devices",
                "measure such a device (`ziggurat doctor --measure`, then planning.planner.learned), or use "
                "planning.planner: {name: rules}",
            )

    def device_seconds(self, problem: Problem, plan: Plan) -> list[float]:
        """Predicted seconds of a step on each device under any plan."""
        sums_DE, exchange_D = self._sums(problem, plan)
        return (self.network.seconds(sums_DE) + exchange_D).tolist()

    def table_seconds(self, problem: Problem, table: TableSpec) -> float:
        """Of the kernels, were the table whole and alone on a device."""
        return float(self.network.seconds(self._embed(problem, table, _whole(table), "table_wise")))

    def seconds_together(self, problem: Problem) -> float:
        """Of the kernels, were all tables whole and on one device; there is at least one."""
        embedded = [self._embed(problem, table, _whole(table), "table_wise") for table in problem.tables]
        return float(self.network.seconds(np.sum(embedded, axis=0)))

    def parts_seconds(self, problem: Problem, parts: Sequence[tuple[TableSpec, Shard]]) -> tuple[float, Floats]:
        """(of the kernels of a device that holds these shards, each shard's share in that); none is on every device."""
        embedded_NE = np.stack([self._embed(problem, table, shard, "table_wise") for table, shard in parts])
        shares_N = self.network.additive(embedded_NE)
        return float(self.network.seconds(embedded_NE.sum(0))), shares_N / shares_N.sum()

    def item_seconds(self, problem: Problem, items: Sequence[Item]) -> list[float]:
        """Of each item on a device of its own, exchanges included."""
        if not items:
            return []
        kernels = self.network.seconds(self._embed_all(problem, items))
        return [float(k) + exchange_seconds(problem, item.cost) for k, item in zip(kernels, items, strict=True)]

    def task(self, problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Task:
        """The items, to be put on devices beside what ``plan`` has placed; ``loads`` is what that amounts to."""
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
        """Embeddings and exchange seconds of what a plan, which may be of some tables only, puts on each device."""
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
    """Seconds of a shard's cost that are not the kernel's: a replicated table's gradient as a whole is among them."""
    return cost.seconds - (cost.memory_traffic - cost.gradient_traffic) / problem.topology.lookup_bandwidth


def _whole(table: TableSpec) -> Shard:
    return Shard(0, Span(0, table.rows), Span(0, table.dim))
