"""AutoShard against hand-made rules: what the slowest device really takes, on tables that nothing was learned from.

Each task is 20 to 200 tables of the half of the synthetic pool that is for tests, on 2 to 8 devices whose memory is
tight (a tenth more than an even share of all tables) or loose (four times it). Every planner places it; then each
device's shards are run for real – forward, backward, update – on one thread, with ids drawn from the same tables; its
time is the lower quartile of some calls, of some rounds the least: other work on the machine slows single calls by a
half, or all of some seconds by a fifth, and speeds up none. Rounds go on until the two least agree. Plans far above the
best take part in the first only, but for those of ziggurat's own rules.
The refined plans are AutoShard's after it has measured plans for some seconds itself, with ids of its own. Nothing is
exchanged: every device's kernels are what is compared. TorchRec's planner, which takes no part in the targets, may let
every device hold a table; what exchanging its gradient takes is then left out.

An even share of a task is what all its tables take together in one kernel, over the number of devices. It is no bound:
a large set takes somewhat longer than its parts do by themselves, as less of it stays in the caches.
"""

from __future__ import annotations

import statistics as st
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import get_args

import numpy as np
import torch

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from ziggurat.core.plan import Plan, Span
from ziggurat.core.topology import Topology
from ziggurat.embeddings.kernel_time import Bags, kernel_seconds, undisturbed
from ziggurat.planning.autoshard.learned import learned_costs
from ziggurat.planning.autoshard.learning import OPTIMIZERS, imagined
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.autoshard.pool import PoolTable, halves, statistics, table_pool
from ziggurat.planning.autoshard.refinement import settled
from ziggurat.planning.baseline import Baseline, Measure
from ziggurat.planning.config import AnyPlanner
from ziggurat.planning.planner import build_planner, planned_by
from ziggurat.planning.problem import Problem
from ziggurat.planning.rules import Rules
from ziggurat.planning.torchrec_planner import TorchRec
from ziggurat.training.kernels import Part, one_thread
from ziggurat.training.parts_timer import PartsTimer

CPU = torch.device("cpu")
TASKS, QUICK_TASKS = 50, 2
EXAMPLES = 1536
"""Of a step, all devices' together: a multiple of each number of devices."""
ROOM = {"tight": 1.1, "loose": 4.0}
ROUNDS, REPEATS, STEPS = 5, 4, 2
CONTENDS = 1.2
"""Times the least slowest device: what is above takes part in no other round, but for ziggurat's own rules."""

RULES: dict[str, AnyPlanner] = {
    **{measure: Baseline.Config(by=measure) for measure in get_args(Measure)},
    "rules": Rules.Config(replicate_up_to=1),
}
PEER = TorchRec.Config()
OURS = AutoShard.Config(replicate_up_to=1)
LEVEL = 0.01
"""What is measured again is seldom closer than that."""
REFINE_S = 30.0
"""Seconds that the refined plans' planner may measure in."""

Key = tuple[tuple[int, Span, int, int], ...]
"""Of a set: number of a pool table, rows, columns, and one of how many parts of the examples is looked up."""


@dataclass(frozen=True)
class Task:
    """Tables to be placed.

    Attributes:
        tables: of the pool, in the order of the problem's.
        optimizer: of all of them.
        problem: for planners.
        memory: tight or loose.
    """

    tables: tuple[PoolTable, ...]
    optimizer: str
    problem: Problem
    memory: str

    def devices(self, plan: Plan) -> list[Key]:
        """What each device has to look up."""
        found: list[list[tuple[int, Span, int, int]]] = [[] for _ in range(plan.world_size)]
        for table, spec in zip(self.tables, self.problem.tables, strict=True):
            share = plan.world_size if plan.placements[spec.name].sharding == "data_parallel" else 1
            for shard in plan.shards(spec):
                found[shard.rank].append((table.number, shard.rows, shard.columns.size, share))
        return [tuple(each) for each in found]


class Stopwatch:
    """Measures sets of shards of one task."""

    def __init__(self, task: Task, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self._optimizer, self._tables = task.optimizer, {table.number: table for table in task.tables}
        self._ids = {table.number: [table.ids(EXAMPLES, draw) for _ in range(STEPS)] for table in task.tables}
        _touch(2 * sum(table.weight_bytes for table in task.tables))

    def seconds(self, parts: Key) -> float:
        """Of a step of these shards on one device."""
        shares = {share for *_, share in parts}
        kernels = [self._calls([part for part in parts if part[3] == share]) for share in shares]
        return undisturbed([sum(each) for each in zip(*kernels, strict=True)]) if parts else 0.0

    def _calls(self, parts: Sequence[tuple[int, Span, int, int]]) -> tuple[float, ...]:
        """Seconds of some calls of one kernel."""
        steps = [[self._bags(*part, step) for part in parts] for step in range(STEPS)]
        return kernel_seconds(steps, self._optimizer, CPU, REPEATS)

    def _bags(self, number: int, rows: Span, columns: int, share: int, step: int) -> Bags:
        ids, lengths = self._ids[number][step]
        lengths = lengths[: len(lengths) // share]
        return Part(self._tables[number], rows, columns).asked(ids[: int(lengths.sum())], lengths)


def task(number: int, pool: Sequence[PoolTable], most: int = 200) -> Task:
    """The task of that number."""
    memory = [*ROOM][number % 2]
    found = imagined(pool, np.random.default_rng([number, 5]), 20, most)
    found = replace(found, optimizer=OPTIMIZERS[number % 3], room=ROOM[memory])
    return Task(found.tables, found.optimizer, found.problem("cpu", EXAMPLES), memory)


def plans(found: Task, refine_s: float) -> dict[str, Plan]:
    """Of every planner, autoshard's first."""
    refined = OURS.model_copy(update={"refine_s": refine_s})
    planners: Mapping[str, AnyPlanner] = {"autoshard": OURS, "refined": refined, "torchrec": PEER, **RULES}
    built = {name: build_planner(config, PartsTimer(CPU)) for name, config in planners.items()}
    return {name: planned_by(found.problem, planner).plan for name, planner in built.items()}


def measured(found: Task, made: Mapping[str, Plan], seed: int) -> tuple[dict[str, list[float]], float]:
    """(seconds of each device under each plan, an even share)."""
    watch = Stopwatch(found, seed)
    together = tuple((table.number, Span(0, table.rows), table.dim, 1) for table in found.tables)
    held = {name: found.devices(plan) for name, plan in made.items()}
    runs: dict[Key, list[float]] = {parts: [] for parts in chain([together], *held.values())}
    contenders = [*held]
    for _ in range(ROUNDS):
        for parts in dict.fromkeys(chain([together], *(held[name] for name in contenders))):
            if not settled(runs[parts]):
                runs[parts].append(watch.seconds(parts))
        slowest = {name: max(min(runs[parts]) for parts in each) for name, each in held.items()}
        contenders = [name for name in held if name == "rules" or slowest[name] < CONTENDS * min(slowest.values())]
    devices = {name: [min(runs[parts]) for parts in each] for name, each in held.items()}
    return devices, min(runs[together]) / found.problem.topology.world_size


def run(context: Context) -> Result:
    pool = halves(table_pool())[1]
    tasks = QUICK_TASKS if context.quick else TASKS
    slowest: dict[str, list[float]] = {}
    shares: list[float] = []
    even: list[float] = []
    with one_thread(CPU):
        for number in range(tasks):
            found = task(number, pool, 24 if context.quick else 200)
            made = plans(found, 1.0 if context.quick else REFINE_S)
            devices, share = measured(found, made, number)
            for name, seconds in devices.items():
                slowest.setdefault(name, []).append(max(seconds))
            even.append(max(devices["autoshard"]) / st.fmean(devices["autoshard"]))
            shares.append(share)
            best = min(RULES, key=lambda name: slowest[name][-1])
            ms = {name: f"{1e3 * each[-1]:.1f} ms" for name, each in slowest.items()}
            context.say(
                f"task {number + 1} of {tasks}: {len(found.tables)} tables, {len(devices[best])} devices, "
                f"{found.memory}, {found.optimizer}: {ms['autoshard']}, refined {ms['refined']}, best rule {ms[best]} "
                f"({best}), even share {1e3 * share:.1f} ms"
            )
    planning_s = [_planning_seconds(pool, 20 if context.quick else 200) for _ in range(3)]
    return _result(slowest, shares, even, planning_s)


def _touch(size: int) -> None:
    """Have so many bytes, which stay with the process when they are free: making fresh pages took half of the time."""
    _ = [torch.zeros(2**28) for _ in range(size // 2**30)]


def _result(
    slowest: Mapping[str, Sequence[float]], shares: Sequence[float], even: Sequence[float], planning_s: Sequence[float]
) -> Result:
    ours = slowest["autoshard"]
    tasks = range(len(ours))
    over = {name: st.fmean(each[k] / shares[k] for k in tasks) for name, each in slowest.items()}
    single = min(RULES, key=lambda name: over[name])
    best = [min(slowest[name][k] for name in RULES) for k in tasks]
    figures: list[Figure] = []
    for name in ("autoshard", "refined"):
        lower = tuple(100 * (1 - slowest[name][k] / slowest[single][k]) for k in tasks)
        roomy = [gain for k, gain in enumerate(lower) if slowest[single][k] > shares[k] / 0.9]
        level = 100 * st.fmean(slowest[name][k] <= best[k] * (1 + LEVEL) for k in tasks)
        wins = 100 * st.fmean(slowest[name][k] < best[k] for k in tasks)
        figures += [
            Figure(f"{name}.wins", "%", (wins,), "tasks below the best rule of each"),
            Figure(f"{name}.wins_or_level", "%", (level,), f"tasks at most {100 * LEVEL:g} % above it"),
            Figure(f"{name}.lower", "%", lower, f"below the best single rule, {single}", "mean"),
            Figure(
                f"{name}.lower_where_room",
                "%",
                tuple(roomy) or (0.0,),
                f"the same, of {len(roomy)} tasks whose even share is 10 % or more below {single}",
                "mean",
            ),
        ]
    figures += [
        Figure("planning", "s", tuple(planning_s), "200 tables, 8 devices, nothing measured"),
        Figure("uneven", "x", tuple(even), "autoshard's slowest device over the mean, measured"),
        *(_over(f"{name}.over_even", each, shares) for name, each in slowest.items()),
        *(_over(f"{name}.over_ours", slowest[name], ours) for name in [*RULES, "torchrec", "refined"]),
    ]
    origin = learned_costs(None).network.origin
    notes = (
        f"{len(ours)} tasks; {EXAMPLES:,} examples a step; the least of up to {ROUNDS} rounds' lower quartiles of "
        f"{REPEATS} calls, {STEPS} before them not measured; plans {CONTENDS:g} times above the best: one",
        f"costs measured on {origin['machine']}, {origin['date']}; {REFINE_S:g} s to refine a plan",
        "a sample is a task; over_even may be below 0: a large set of tables takes longer than its parts do",
    )
    return Result(tuple(figures), STEPS, REPEATS, notes)


def _over(name: str, seconds: Sequence[float], others: Sequence[float]) -> Figure:
    """By how much the slowest devices of all tasks take longer than others."""
    samples = tuple(100 * (each / other - 1) for each, other in zip(seconds, others, strict=True))
    return Figure(name, "%", samples, "slowest device", "mean")


def _planning_seconds(pool: Sequence[PoolTable], count: int) -> float:
    tables = pool[:count]
    specs = tuple(table.spec("adagrad") for table in tables)
    topology = Topology(1, 8, "one thread", "cpu", 10**12, 1e10, 1e15, 1e15)
    problem = Problem(specs, topology, statistics(tables), EXAMPLES // 8, reserve=0)
    started = time.perf_counter()
    build_planner(OURS).plan(problem)
    return time.perf_counter() - started


AUTOSHARD = Benchmark(
    name="autoshard",
    claim="On unseen tables AutoShard's slowest device takes less time than under any rule.",
    targets={
        "autoshard.wins": Target(90.0),
        "refined.wins": Target(90.0),
        "autoshard.lower_where_room": Target(10.0),
        "refined.lower_where_room": Target(10.0),
        "planning": Target(15.0, "at most"),
    },
    depends_on=(
        "src/ziggurat/planning",
        "src/ziggurat/embeddings/kernel_time.py",
        "src/ziggurat/training/kernels.py",
        "src/ziggurat/training/parts_timer.py",
        "bench/micro/autoshard.py",
    ),
    run=run,
)
