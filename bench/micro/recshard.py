"""Rows in two memories: RecShard against whole tables placed by size, width or look-ups.

A pool is hashed features as production models have them: Zipf values that fall on rows by a hash, so that some rows
have several and some none; pooling factors with a long tail; features that few examples have. Plans are made from a
log's counts and judged by that log, which is what training on it reads; and beside that by a *next* log of the same
source and length, of which the plan knew nothing, as when training goes on with new data.

The figures that are imitated – GPUs whose memory for tables is a half to an eighth of a model's, the rest in host
memory over PCIe, tables of width 64 – are those of the RecShard paper (arXiv 2201.10095) as remembered, not looked up.
Rows and batch are far smaller, both, so that a step touches a like share of the rows.

The baselines are the paper's: tables in falling order of a cost, each to the device with the least of it so far that
has fast memory for the whole table, and once none has, to the slow memory of the device with the least. ``density`` is
none of the paper's: tables by look-ups a byte, the best order that knows no rows.
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
"""Bytes of the tables over all fast memory for them."""

POOLS, TABLES, DEVICES, DIM = 5, 96, 8, 64
BATCH_SIZE = 64
"""Of a device: 512 in all."""

TRAINING_ROWS = 1_000_000
SLOW_BANDWIDTH = 16e9
"""PCIe 3 with 16 lanes, one way."""

SLOW_TIMES = 1.6
"""Slow memory of a device over its even share of the tables."""

BASELINES: dict[str, Callable[[Problem, TableSpec], float]] = {
    "size": lambda problem, table: table.weight_bytes,
    "dim": lambda problem, table: table.dim,
    "lookup": lambda problem, table: table.dim * problem.usages[table.name].ids_per_row,
    "size_lookup": lambda problem, table: table.weight_bytes * problem.usages[table.name].ids_per_row,
    "density": lambda problem, table: problem.usages[table.name].ids_per_row / table.rows,
}
"""What a table costs; each is the order of the tables as well. ``dim`` is one width here, and so the order of names."""

JUDGED = ("size", "lookup", "size_lookup")
"""The baselines of the paper; the best of them in each pool is what targets are against."""


@dataclass(frozen=True)
class Judged(Problem):
    """A problem with the look-ups of another log, whose rows lie in the order of ``planned``'s.

    Attributes:
        planned: what the plan was made of.
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
    """Tables, and two logs of their look-ups."""

    tables: tuple[TableSpec, ...]
    log: DatasetStatistics
    other: DatasetStatistics

    def problems(self, ratio: float) -> tuple[Problem, Judged]:
        """What is planned, and what the plan is judged by, where tables are ``ratio`` times as large as fast memory."""
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
            device.intra_bandwidth, 1.25e9, slow_memory_bytes=int(SLOW_TIMES * share), slow_bandwidth=SLOW_BANDWIDTH,
        )  # fmt: skip
        counts = {name: each.accesses for name, each in self.log.tables.items()}
        problem = Problem(self.tables, topology, self.log, BATCH_SIZE, reserve=0)
        return problem, Judged(self.tables, topology, self.other, BATCH_SIZE, reserve=0, planned=counts)


def pool(seed: int, tables: int = TABLES, most_rows: float = 2e6) -> Pool:
    """Tables of 10³ to ``most_rows`` rows."""
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
    """Look-ups of each row: values by Zipf's law, half to twice as many as there are rows, hashed to these."""
    values = int(rows * draw.uniform(0.5, 2.0))
    weights = np.power(np.arange(1, values + 1, dtype=np.float64), -draw.uniform(0.8, 1.3))
    hashed = np.bincount(draw.integers(0, rows, values), weights / weights.sum(), rows)
    return hashed * ids_per_row * TRAINING_ROWS


def by_cost(problem: Problem, cost: Callable[[Problem, TableSpec], float], ratio: float) -> Plan:
    """A baseline: see the module. Buffers of a step are given to it."""
    costs = [problem.whole(table) for table in problem.tables]
    fast = [sum(each.weight_bytes + each.state_bytes for each in costs) / DEVICES / ratio] * DEVICES
    slow = [float(problem.topology.slow_memory_bytes)] * DEVICES
    loads, placements = [0.0] * DEVICES, dict[str, Placement]()
    for table in sorted(problem.tables, key=lambda table: -cost(problem, table)):
        whole = problem.whole(table)
        rows = whole.weight_bytes + whole.state_bytes
        with_room = [k for k in range(DEVICES) if fast[k] >= rows]
        others = [k for k in range(DEVICES) if slow[k] >= rows]
        device = min(with_room or others, key=lambda k: (loads[k], k))
        loads[device] += cost(problem, table)
        fast[device] -= rows if with_room else 0
        slow[device] -= 0 if with_room else rows
        placements[table.name] = Placement("table_wise", (device,), table.rows if with_room else 0)
    return Plan(DEVICES, {table.name: placements[table.name] for table in problem.tables}, DEVICES)


@dataclass(frozen=True, slots=True)
class Measured:
    """A plan, judged: seconds of each device, and the share of look-ups that are slow."""

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
        """Standard deviation of the devices' seconds: what the paper tells of balance. Unlike the slowest device over
        the mean it does not flatter a plan that is evenly slow."""
        return st.pstdev(self.seconds)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What every plan of one pool comes to on the log and on the next one, and what RecShard says of its own."""

    log: dict[str, Measured]
    next: dict[str, Measured]
    said: str


def measured(made: Pool, ratio: float, time_limit_s: float) -> Outcome:
    """Every baseline and RecShard on one pool."""
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
            context.say(f"ratio {ratio}, pool {number}: {found[-1].said}")
        said = "; ".join(each.said.removeprefix("recshard: ") for each in found)
        notes.append(f"ratio {ratio}: {said}")
        figures += _figures(ratio, [each.log for each in found], [each.next for each in found])
    shares = [_served(table) for made in pools for table in made.log.tables.values()]
    notes[:0] = [
        f"{len(pools)} pools of {len(pools[0].tables)} tables on {DEVICES} devices; all seconds are modelled "
        "(ziggurat's cost model: traffic of both memories and the exchange between devices)",
        f"the hottest tenth of a table's rows serves {100 * st.median(shares):.0f} % of its look-ups in the median "
        f"({100 * min(shares):.0f} to {100 * max(shares):.0f} %)",
        f"targets are against the best of {', '.join(JUDGED)} in each pool, figure by figure; fewer slow look-ups than "
        "one in a million count as that one",
    ]
    return Result(tuple(figures), 0, len(pools), tuple(notes))


def _served(table: TableStatistics) -> float:
    falling = np.sort(table.accesses)[::-1]
    return float(falling[: -(-table.rows // 10)].sum() / falling.sum())


def _figures(
    ratio: int, log: Sequence[Mapping[str, Measured]], following: Sequence[Mapping[str, Measured]]
) -> list[Figure]:
    """Against the best baseline of each pool, and what every plan comes to."""
    kinds: tuple[tuple[str, Callable[[Measured], float], str], ...] = (
        ("throughput", lambda each: each.slowest, "of the best baseline's, modelled step"),
        ("balance", lambda each: each.deviation, "less deviation of the devices' seconds"),
        ("slow_reads", lambda each: max(each.slow_share, 1e-6), "fewer look-ups in slow memory"),
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
            Figure(f"{name}_{ratio}x_slow", "%", tuple(100 * m.slow_share for m in each), "of look-ups"),
            Figure(f"{name}_{ratio}x_uneven", "%", uneven, "slowest device above the mean"),
        ]
    return figures


def _times(plans: Mapping[str, Measured], measure: Callable[[Measured], float]) -> float:
    return min(measure(plans[name]) for name in JUDGED) / measure(plans["recshard"])


RECSHARD = Benchmark(
    name="recshard",
    claim="On skewed pools of twice to eight times the fast memory, RecShard's step is 6 times as fast as that of the "
    "best order of whole tables, 12 times as even, with 87 times fewer reads of slow memory.",
    targets={
        f"{name}_{ratio}x": Target(bound)
        for ratio in RATIOS
        for name, bound in (("throughput", 6.0), ("balance", 12.0), ("slow_reads", 87.0))
    },
    depends_on=("bench/micro/recshard.py",),
    run=run,
)
