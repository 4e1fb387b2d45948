"""Compares RecShard, which splits rows over two memories, with whole tables placed by size, width or lookups.

A pool imitates the hashed features of production models. Values follow Zipf's law and are hashed to rows, so that some
rows have several values and some none. Pooling factors have a long tail, and some features occur in few examples. Plans
are made from the counts of a log and evaluated on the same log, which is what training on a prepared dataset reads.
They are also evaluated on a *next* log of the same source and length that the planner has not seen, as if training
continued on new data.

The setting follows the RecShard paper (arXiv 2201.10095), as remembered: the fast memory of the GPUs holds a half to an
eighth of the tables, the rest is in host memory over PCIe, and tables have a width of 64. Rows and batches are much
smaller here, in the same proportion, so that a step touches a similar share of the rows.

The baselines of the paper sort the tables by a cost in descending order. Each table is assigned to the device with the
least cost so far whose fast memory still has space for the whole table; if there is none, to the slow memory of the
device with the least cost. ``density``, lookups per byte, is not in the paper; it is the best order of whole tables.
"""

from __future__ import annotations

import statistics as st
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.row_order import frequency_ranks, round_robin_positions
from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology, known_device
from ziggurat.planning.access_curve import AccessCurve
from ziggurat.planning.plan_estimate import PlanEstimate, predict
from ziggurat.planning.problem import Problem
from ziggurat.planning.recshard import RecShard

RATIOS = (2, 4, 8)
"""The sizes of the tables, in multiples of the fast memory of all devices."""

POOLS, TABLES, DEVICES, DIM = 5, 96, 8, 64
BATCH_SIZE = 64
"""The batch size per device; the global one is 512."""

TRAINING_ROWS = 1_000_000
SLOW_BANDWIDTH = 16e9
"""The bandwidth of PCIe 3 with 16 lanes in one direction."""

SLOW_MEMORY_FACTOR = 1.6
"""The slow memory of a device, in multiples of an even share of the tables."""

BASELINES: dict[str, Callable[[Problem, TableSpec], float]] = {
    "size": lambda problem, table: table.weight_bytes,
    "dim": lambda problem, table: table.dim,
    "lookup": lambda problem, table: table.dim * problem.usages[table.name].ids_per_row,
    "size_lookup": lambda problem, table: table.weight_bytes * problem.usages[table.name].ids_per_row,
    "density": lambda problem, table: problem.usages[table.name].ids_per_row / table.rows,
}
"""Name of a baseline -> the cost by which it sorts and balances tables; all tables have the same ``dim`` here."""

PAPER_BASELINES = ("size", "lookup", "size_lookup")
"""The baselines of the paper; targets compare with the best of them in each pool."""


@dataclass(frozen=True)
class NextLogProblem(Problem):
    """A problem with the lookups of another log than the one from which the plan and its order of rows were made.

    Attributes:
        planned: table -> the counts from which the plan was made.
    """

    planned: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict[str, npt.NDArray[np.int64]])

    def curve(self, table: TableSpec, parts: int = 1) -> AccessCurve:
        usage = self.usages[table.name]
        assert usage.accesses is not None
        places = round_robin_positions(table.rows, parts)[frequency_ranks(self.planned[table.name], table.rows)]
        accesses = np.empty_like(usage.accesses)
        accesses[places] = usage.accesses
        return AccessCurve.of_places(usage.ids_per_row, accesses)


@dataclass(frozen=True, slots=True)
class Pool:
    """Tables, and two logs of their lookups."""

    tables: tuple[TableSpec, ...]
    log: DatasetStatistics
    other: DatasetStatistics

    def problems(self, ratio: float) -> tuple[Problem, NextLogProblem]:
        """Returns the problem to plan, and the same with the next log to evaluate the plan.

        Args:
            ratio: the size of the tables in multiples of the fast memory.
        """
        device = known_device("a100-40gb")
        topology = Topology(
            1, DEVICES, "a100-40gb", "cuda", 10**15, device.lookup_bandwidth, device.intra_bandwidth, 1.25e9,
            slow_memory_bytes=10**15, slow_bandwidth=SLOW_BANDWIDTH,
        )  # fmt: skip
        loose = Problem(self.tables, topology, self.log, BATCH_SIZE, reserve=0)
        costs = [loose.whole(table) for table in self.tables]
        buffers = loose.client_bytes + 1.05 * sum(cost.buffer_bytes for cost in costs) / DEVICES
        share = sum(cost.weight_bytes + cost.state_bytes for cost in costs) / DEVICES
        topology = Topology(
            1, DEVICES, "a100-40gb", "cuda", int(share / ratio + buffers), device.lookup_bandwidth,
            device.intra_bandwidth, 1.25e9, slow_memory_bytes=int(SLOW_MEMORY_FACTOR * share),
            slow_bandwidth=SLOW_BANDWIDTH,
        )  # fmt: skip
        counts = {name: each.accesses for name, each in self.log.tables.items()}
        problem = Problem(self.tables, topology, self.log, BATCH_SIZE, reserve=0)
        return problem, NextLogProblem(self.tables, topology, self.other, BATCH_SIZE, reserve=0, planned=counts)


def pool(seed: int, tables: int = TABLES, most_rows: float = 2e6) -> Pool:
    """Draws a pool whose tables have 10³ to ``most_rows`` rows."""
    draw = np.random.default_rng(seed)
    specs: list[TableSpec] = []
    logs: tuple[dict[str, TableStatistics], ...] = ({}, {})
    for number in range(tables):
        rows, name = int(10 ** draw.uniform(3, np.log10(most_rows))), f"t{number}"
        specs.append(TableSpec(name, rows, DIM, (name,), "sum", {"name": "rowwise_adagrad"}, 0.01))
        coverage, pooling = draw.uniform(0.05, 1.0), min(1 + draw.pareto(1.2), 100.0)
        expected = _expected(rows, coverage * pooling, draw)
        for log in logs:
            log[name] = TableStatistics(name, rows, draw.poisson(expected).astype(np.int64))
    first, second = (DatasetStatistics({"train": TRAINING_ROWS}, {}, tables=log) for log in logs)
    return Pool(tuple(specs), first, second)


def _expected(rows: int, ids_per_row: float, draw: np.random.Generator) -> npt.NDArray[np.floating[Any]]:
    """Returns the expected lookups of each row.

    The number of values is half to twice that of the rows. They follow Zipf's law and are hashed to the rows.
    """
    values = int(rows * draw.uniform(0.5, 2.0))
    weights = np.power(np.arange(1, values + 1, dtype=np.float64), -draw.uniform(0.8, 1.3))
    hashed = np.bincount(draw.integers(0, rows, values), weights / weights.sum(), rows)
    return hashed * ids_per_row * TRAINING_ROWS


def by_cost(problem: Problem, cost: Callable[[Problem, TableSpec], float], ratio: float) -> Plan:
    """Returns the plan of a baseline (see the module); its fast memory excludes the buffers of a step.

    Args:
        problem: the planning problem.
        cost: the baseline's cost of a table.
        ratio: the size of the tables in multiples of the fast memory.
    """
    costs = [problem.whole(table) for table in problem.tables]
    fast = [sum(each.weight_bytes + each.state_bytes for each in costs) / DEVICES / ratio] * DEVICES
    slow = [float(problem.topology.slow_memory_bytes)] * DEVICES
    loads, placements = [0.0] * DEVICES, dict[str, Placement]()
    for table in sorted(problem.tables, key=lambda table: -cost(problem, table)):
        whole = problem.whole(table)
        rows = whole.weight_bytes + whole.state_bytes
        with_space = [k for k in range(DEVICES) if fast[k] >= rows]
        others = [k for k in range(DEVICES) if slow[k] >= rows]
        device = min(with_space or others, key=lambda k: (loads[k], k))
        loads[device] += cost(problem, table)
        fast[device] -= rows if with_space else 0
        slow[device] -= 0 if with_space else rows
        placements[table.name] = Placement("table_wise", (device,), table.rows if with_space else 0)
    return Plan(DEVICES, {table.name: placements[table.name] for table in problem.tables}, DEVICES)


@dataclass(frozen=True, slots=True)
class Measured:
    """The evaluation of a plan: seconds of each device, and the share of lookups in slow memory."""

    seconds: tuple[float, ...]
    slow_share: float

    @classmethod
    def of(cls, planned: PlanEstimate) -> Measured:
        return cls(tuple(device.seconds for device in planned.devices), planned.slow_share)

    @property
    def slowest(self) -> float:
        return max(self.seconds)

    @property
    def deviation(self) -> float:
        """The standard deviation of the devices' seconds, which is the paper's measure of balance.

        Unlike the ratio of the slowest device to the mean, it does not favour a plan that is slow on all devices.
        """
        return st.pstdev(self.seconds)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The evaluations of all plans of a pool, on the log and on the next log, and the note of RecShard's plan."""

    log: dict[str, Measured]
    next: dict[str, Measured]
    note: str


def measured(made: Pool, ratio: float, time_limit_s: float) -> Outcome:
    """Evaluates the baselines and RecShard on one pool."""
    problem, judge = made.problems(ratio)
    plans = {name: by_cost(problem, cost, ratio) for name, cost in BASELINES.items()}
    config = RecShard.Config(time_limit_s=time_limit_s)
    plans["recshard"] = RecShard(config).plan(problem)
    log, following = ({name: Measured.of(predict(by, plan)) for name, plan in plans.items()} for by in (problem, judge))
    return Outcome(log, following, plans["recshard"].notes[0])


def run(context: Context) -> Result:
    quick = context.quick
    pools = [pool(seed, 24, 2e4) if quick else pool(seed) for seed in range(2 if quick else POOLS)]
    figures: list[Figure] = []
    notes: list[str] = []
    for ratio in RATIOS:
        found: list[Outcome] = []
        for number, made in enumerate(pools):
            found.append(measured(made, ratio, 0.5 if quick else 10.0))
            context.say(f"ratio {ratio}, pool {number}: {found[-1].note}")
        notes_of_plans = "; ".join(each.note.removeprefix("recshard: ") for each in found)
        notes.append(f"ratio {ratio}: {notes_of_plans}")
        figures += _figures(ratio, [each.log for each in found], [each.next for each in found])
    shares = [_served(table) for made in pools for table in made.log.tables.values()]
    notes[:0] = [
        f"{len(pools)} pools of {len(pools[0].tables)} tables on {DEVICES} devices; all seconds are modelled "
        "(ziggurat's cost model: traffic of both memories and the exchange between devices)",
        f"the hottest tenth of a table's rows serves {100 * st.median(shares):.0f} % of its lookups in the median "
        f"({100 * min(shares):.0f} to {100 * max(shares):.0f} %)",
        f"targets compare with the best of {', '.join(PAPER_BASELINES)} in each pool, separately for each figure; a "
        "share of slow lookups below one in a million counts as one in a million",
    ]
    return Result(tuple(figures), 0, len(pools), tuple(notes))


def _served(table: TableStatistics) -> float:
    falling = np.sort(table.accesses)[::-1]
    return float(falling[: -(-table.rows // 10)].sum() / falling.sum())


def _figures(
    ratio: int, log: Sequence[Mapping[str, Measured]], following: Sequence[Mapping[str, Measured]]
) -> list[Figure]:
    """Returns figures of RecShard relative to the best baseline of each pool, and figures of every plan."""
    kinds: tuple[tuple[str, Callable[[Measured], float], str], ...] = (
        ("throughput", lambda each: each.slowest, "relative to the best baseline, modelled step"),
        ("balance", lambda each: each.deviation, "less deviation of the devices' seconds"),
        ("slow_reads", lambda each: max(each.slow_share, 1e-6), "fewer lookups in slow memory"),
    )
    figures = [
        Figure(f"{name}_{ratio}x{suffix}", "x", tuple(_times(plans, measure) for plans in judged), note)
        for suffix, judged in (("", log), ("_next", following))
        for name, measure, note in kinds
    ]
    for name in (*BASELINES, "recshard"):
        each = [plans[name] for plans in log]
        uneven = tuple(100 * (m.slowest / st.fmean(m.seconds) - 1) for m in each)
        figures += [
            Figure(f"{name}_{ratio}x_step", "µs", tuple(1e6 * m.slowest for m in each), "slowest device"),
            Figure(f"{name}_{ratio}x_slow", "%", tuple(100 * m.slow_share for m in each), "of lookups"),
            Figure(f"{name}_{ratio}x_uneven", "%", uneven, "slowest device above the mean"),
        ]
    return figures


def _times(plans: Mapping[str, Measured], measure: Callable[[Measured], float]) -> float:
    return min(measure(plans[name]) for name in PAPER_BASELINES) / measure(plans["recshard"])


RECSHARD = Benchmark(
    name="recshard",
    claim="On skewed pools of twice to eight times the fast memory, RecShard's step is 6 times as fast as that of the "
    "best order of whole tables, 12 times as well balanced, and reads slow memory 87 times less often.",
    targets={
        f"{name}_{ratio}x": Target(bound)
        for ratio in RATIOS
        for name, bound in (("throughput", 6.0), ("balance", 12.0), ("slow_reads", 87.0))
    },
    depends_on=("bench/micro/recshard.py",),
    run=run,
)
