"""A planner whose costs are measured and whose placements are learned.

1. Rules decide which tables every device holds and which have to be split by rows (:mod:`~ziggurat.planning.rules`).
2. A beam search halves columns of the costliest and the largest tables of the slowest device, as long as that makes it
   faster (NeuroShard, arXiv 2305.01868, section 4.2).
3. A trained policy puts what is left on devices; of some drawn placements the best is improved by exchanges.

What a device costs is what the cost network says of all that lies there together, and the exchanges with other devices
by the cost model. The plan of the rules is a candidate too, so that by these costs no plan is worse than theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pydantic

from ziggurat.core.config import Config as BaseConfig
from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.core.plan import Plan, Shard, Sharding, Span
from ziggurat.core.tables import TableSpec
from ziggurat.planning.autoshard.cost_network import EMBEDDING, CostNetwork
from ziggurat.planning.autoshard.features import shard_features
from ziggurat.planning.autoshard.policy import Policy
from ziggurat.planning.autoshard.task import Floats, Ints, Task, exchanged
from ziggurat.planning.constraints import column_parts, stays_fused
from ziggurat.planning.cost import ShardCost
from ziggurat.planning.placing import Item, Loads, Split, placed
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import Bytes
from ziggurat.planning.rules import Rules

CANDIDATES = 4
"""Tables that a beam's state tries to split: so many of the costliest, and so many of the largest."""
ENOUGH = 0.998
"""A split that leaves the slowest device above this share of its time is none worth having."""


class AutoShard:
    """See the module.

    Args:
        config: the settings.
        network: predicts what a device's kernels take.
        policy: places tables.
    """

    class Config(BaseConfig):
        """A planner that has learned what sets of tables cost, and where to put them."""

        name: Literal["autoshard"] = "autoshard"

        replicate_up_to: Bytes = 16 * 2**20
        """The most bytes of weights that a table held on every device may have."""
        fused: bool = True
        """Only such splits as FBGEMM's kernels carry out: row-wise Adagrad's tables are never split by columns then."""
        learned: Path | None = None
        """Folder with a cost network and a policy of your own (`ziggurat doctor --measure`); default: those that come
        with ziggurat."""
        rollouts: int = pydantic.Field(default=32, ge=0)
        """Placements that are drawn from the policy, beside its likeliest."""
        beam: int = pydantic.Field(default=3, ge=1)
        """States that the search over columns keeps."""
        depth: int = pydantic.Field(default=10, ge=0)
        """Tables that it halves at most."""

    def __init__(self, config: Config, network: CostNetwork, policy: Policy) -> None:
        self.config, self.network, self.policy = config, network, policy
        self.rules = Rules(Rules.Config(replicate_up_to=config.replicate_up_to, fused=config.fused))
        self._problem: Problem | None = None
        self._embedded: dict[tuple[str, Shard, Sharding], Floats] = {}

    def plan(self, problem: Problem) -> Plan:
        """See :class:`~ziggurat.planning.problem.Planner`.

        Raises:
            ConfigError: the costs that were learned are of another kind of device.
        """
        self._check_kind(problem)
        by_rules = self.rules.plan(problem)
        found = [by_rules]
        splits, more = self.rules.first(problem), 1
        while True:
            try:
                found.append(placed(problem, self._split_columns(problem, splits), self._assign))
                break
            except NoFeasiblePlan:
                if not self.rules.relieved(problem, splits, more):
                    break
                more *= 2
        best = min(found, key=lambda plan: max(self.device_seconds(problem, plan)))
        whose = "the rules' plan, which is as good" if best is by_rules else "the policy's plan"
        measured = "kernels as measured on {machine}, {date}".format(**self.network.origin)
        return replace(best, notes=(f"autoshard: {whose}; {measured}",))

    def _check_kind(self, problem: Problem) -> None:
        kind, origin = problem.topology.kind, self.network.origin
        if origin["kind"] != kind:
            raise ConfigError(
                f"planning.planner: autoshard has costs of {origin['machine']}, and the plan is for {kind} devices",
                "measure such a device (`ziggurat doctor --measure`, then planning.planner.learned), or use "
                "planning.planner: {name: rules}",
            )

    @property
    def first_answer(self) -> Rules:
        """Says sooner whether there is room: what the rules find room for, this planner does."""
        return self.rules

    def device_seconds(self, problem: Problem, plan: Plan) -> list[float]:
        """Predicted seconds of a step on each device under any plan."""
        sums_DE, exchange_D = self._sums(problem, plan)
        return (self.network.seconds(sums_DE) + exchange_D).tolist()

    def _assign(self, problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Sequence[int]:
        """By the policy and exchanges."""
        if not items:
            return ()
        task = self._task(problem, plan, items, loads)
        draw = np.random.default_rng(0)
        candidates = [greedy(task), greedy(task, task.bytes_N), *self.policy.place(task, 1, None).device_PN]
        if self.config.rollouts:
            candidates += list(self.policy.place(task, self.config.rollouts, draw).device_PN)
        found = _legal(task, candidates)
        if found is None:
            raise _no_room(items, loads)
        return found.tolist()

    def _task(self, problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Task:
        sums_DE, exchange_D = self._sums(problem, plan)
        return Task(
            self.network,
            np.stack([self._embed(problem, item.table, item.shard, item.split.sharding) for item in items]),
            np.array([item.cost.kept_bytes for item in items], np.float64),
            np.array([_exchange(problem, item.cost) for item in items]),
            np.array(loads.free),
            sums_DE,
            exchange_D,
        )

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
                exchange_D[shard.rank] += _exchange(problem, cost)
        return sums_DE, exchange_D

    def _embed(self, problem: Problem, table: TableSpec, shard: Shard, sharding: Sharding) -> Floats:
        if self._problem is not problem:
            self._problem, self._embedded = problem, {}
        key = (table.name, Shard(0, shard.rows, shard.columns), sharding)
        if key not in self._embedded:
            usage, world = problem.usages[table.name], problem.topology.world_size
            features = shard_features(table, shard, sharding, usage, problem.batch_size, world)
            self._embedded[key] = self.network.embed(features[None])[0]
        return self._embedded[key]

    def _split_columns(self, problem: Problem, splits: Mapping[str, Split]) -> dict[str, Split]:
        """``splits`` with columns halved where that helps, by beam search over greedy placements."""
        start = dict(splits)
        if not any(self._halves(problem, table, start) for table in problem.tables):
            return start
        best = beam = [(self._greedy_seconds(problem, start), start)]
        for _ in range(self.config.depth):
            tried: dict[tuple[tuple[str, Split], ...], tuple[float, dict[str, Split]]] = {}
            for _, state in beam:
                for name, split in self._moves(problem, state):
                    following = {**state, name: split}
                    key = tuple(sorted(following.items(), key=lambda each: each[0]))
                    if key not in tried:
                        tried[key] = (self._greedy_seconds(problem, following), following)
            beam = sorted(tried.values(), key=lambda each: each[0])[: self.config.beam]
            if not beam or beam[0][0] > best[0][0] * ENOUGH:
                break
            best = beam
        return best[0][1]

    def _moves(self, problem: Problem, state: Mapping[str, Split]) -> list[tuple[str, Split]]:
        """Halves of the costliest and of the largest tables."""
        tables = [table for table in problem.tables if self._halves(problem, table, state)]
        single = {
            table.name: float(self.network.seconds(self._embed(problem, table, _whole(table), "table_wise")))
            / state[table.name].parts
            for table in tables
        }
        size = {table.name: table.weight_bytes / state[table.name].parts for table in tables}
        chosen: dict[str, Split] = {}
        for measure in (single, size):
            for table in sorted(tables, key=lambda table: -measure[table.name])[:CANDIDATES]:
                half = self._halves(problem, table, state)
                assert half is not None
                chosen[table.name] = half
        return list(chosen.items())

    def _halves(self, problem: Problem, table: TableSpec, state: Mapping[str, Split]) -> Split | None:
        """The table in twice as many ranges of columns, where that can be and the user has not decided."""
        split = state[table.name]
        if split.sharding not in ("table_wise", "column_wise") or table.name in problem.wishes:
            return None
        if self.config.fused and not stays_fused(table, "column_wise"):
            return None
        parts = 2 * split.parts
        return Split("column_wise", parts) if parts in column_parts(table, problem.topology) else None

    def _greedy_seconds(self, problem: Problem, splits: Mapping[str, Split]) -> float:
        """Of the slowest device when every table goes where it costs least; infinite where there is no room."""

        def assign(problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Sequence[int]:
            if not items:
                return ()
            task = self._task(problem, plan, items, loads)
            found = greedy(task)
            if task.overflow(found):
                raise _no_room(items, loads)
            return found.tolist()

        try:
            return max(self.device_seconds(problem, placed(problem, splits, assign)))
        except NoFeasiblePlan:
            return float("inf")


def greedy(task: Task, order_N: Floats | None = None) -> Ints:
    """The costliest item first, each where the device costs least then, if it has room; longest processing time.

    Args:
        task: the items.
        order_N: what they are ordered by, falling, in place of their cost; by size they pack better.
    """
    sums_DE, exchange_D, free_D = task.sums_DE.copy(), task.exchange_D.copy(), task.free_D.copy()
    device_N = np.zeros(task.items, np.int64)
    for item in np.argsort(-(task.single_N if order_N is None else order_N), kind="stable"):
        after_D = task.network.seconds(sums_DE + task.embedded_NE[item]) + exchange_D
        room_D = free_D - task.bytes_N[item]
        legal_D = room_D >= 0 if (room_D >= 0).any() else room_D == room_D.max()
        device = int(np.where(legal_D, after_D, np.inf).argmin())
        sums_DE[device] += task.embedded_NE[item]
        exchange_D[device] += task.exchange_N[item]
        free_D[device] -= task.bytes_N[item]
        device_N[item] = device
    return device_N


def _legal(task: Task, candidates: Sequence[Ints], improved: int = 3) -> Ints | None:
    """The best of those that have room, after exchanges in the first and in the few that are best without."""
    legal = [device_N for device_N in candidates if not task.overflow(device_N)]
    starts = legal[:1] + sorted(legal[1:], key=task.seconds)[:improved]
    return min((exchanged(task, device_N) for device_N in starts), key=task.seconds, default=None)


def _exchange(problem: Problem, cost: ShardCost) -> float:
    """Seconds of a shard's cost that are not the kernel's."""
    return cost.seconds - cost.memory_traffic / problem.topology.lookup_bandwidth


def _whole(table: TableSpec) -> Shard:
    return Shard(0, Span(0, table.rows), Span(0, table.dim))


def _no_room(items: Sequence[Item], loads: Loads) -> NoFeasiblePlan:
    total, there = sum(item.cost.kept_bytes for item in items), sum(loads.free)
    largest = max(items, key=lambda item: item.cost.kept_bytes)
    return NoFeasiblePlan(
        f"{len(items)} tables and ranges of columns need {total:,.0f} bytes, the devices have {there:,.0f} left, and "
        f"no way was found to put them there; the largest is {largest.name} with {largest.cost.kept_bytes:,} bytes",
        "split tables by rows, or give more devices or more memory",
    )
