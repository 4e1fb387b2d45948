"""AutoShard against hand-made rules: what the slowest device really takes, on tables that nothing was learned from.

Each task is 20 to 200 tables of the half of the synthetic pool that is for tests, on 2 to 8 devices whose memory is
tight (a tenth more than an even share of all tables) or loose (four times it). Every planner places it; then each
device's shards are run for real – forward, backward, update – on one thread, with ids drawn from the same tables. What
others do on the machine's host slows calls by a tenth, for seconds up to a half. So a call's seconds are divided by how
slow a gauge is just before and behind it (:class:`~ziggurat.embeddings.kernel_time.SlowdownGauge`), and a device's time
is the median of rounds in which all devices are run by turns, of each the median of some calls. After two rounds only
those devices take part that may be the slowest of a plan not far above the best. The refined plans are AutoShard's
after it has measured plans for some seconds itself, with ids of its own. Nothing is exchanged: every device's kernels
are what is compared. TorchRec's planner, which takes no part in the targets, may let every device hold a table; what
exchanging its gradient takes is then left out.

An even share of a task is the mean of the devices' times under the plan whose mean is least: no plan that does not
take less altogether has a slowest device below it.
"""

from __future__ import annotations

import statistics as st
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from multiprocessing import get_context
from typing import get_args

import numpy as np
import torch

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.provenance import digest
from bench.resumable_cases import ResumableCases
from ziggurat.core.plan import Plan, Span
from ziggurat.core.topology import Topology
from ziggurat.embeddings.kernel_time import Bags, SlowdownGauge, TableMemory, kernel_seconds
from ziggurat.planning.autoshard.baseline import BaselinePlanner, Measure
from ziggurat.planning.autoshard.learned import learned_costs
from ziggurat.planning.autoshard.learning import OPTIMIZERS, draw_task
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.autoshard.pool import PoolTable, statistics, table_pool, train_test_halves
from ziggurat.planning.config import PlannerConfig
from ziggurat.planning.planner import planned_by
from ziggurat.planning.problem import Problem
from ziggurat.planning.rules import Rules
from ziggurat.planning.torchrec_planner import TorchRec
from ziggurat.training.placement.kernel_benchmark import TableRange, single_threaded
from ziggurat.training.placement.shard_benchmark import ShardBenchmark

CPU = torch.device("cpu")
TASKS, QUICK_TASKS = 50, 2
EXAMPLES = 768
"""Of a step, all devices' together: a multiple of each number of devices."""
ROOM = {"tight": 1.1, "loose": 4.0}
ROUNDS, REPEATS, STEPS = 6, 5, 2
CONTENDS = 1.2, 1.1
"""Times the least slowest device: plans above the first take part in one round only, those above the second in two."""
CLOSE = 1.05
"""Times: a device so far below its plan's slowest takes part in two rounds only."""

RULES: dict[str, PlannerConfig] = {
    **{measure: BaselinePlanner.Config(by=measure) for measure in get_args(Measure)},
    "rules": Rules.Config(replicate_up_to=1),
}
PEER = TorchRec.Config()
OURS = AutoShard.Config(replicate_up_to=1)
LEARNED = ("lpt", "ldm")
"""Of the rules those that know what the cost network knows."""
LEVEL = 0.01
"""What is measured again is seldom closer than that."""
SOME_ROOM = 0.03
"""Above an even share: where the best of all rules is closer, a plan below it is hardly there to be found."""
REFINE_S = 60.0
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
        self._gauge, self._memory = SlowdownGauge(CPU), TableMemory()

    def seconds(self, parts: Key) -> float:
        """Of a step of these shards on one device."""
        shares = {share for *_, share in parts}
        kernels = [self._calls([part for part in parts if part[3] == share]) for share in shares]
        return st.median(sum(each) for each in zip(*kernels, strict=True)) if parts else 0.0

    def _calls(self, parts: Sequence[tuple[int, Span, int, int]]) -> tuple[float, ...]:
        """Seconds of some calls of one kernel."""
        steps = [[self._bags(*part, step) for part in parts] for step in range(STEPS)]
        return kernel_seconds(steps, self._optimizer, CPU, REPEATS, self._gauge, self._memory)

    def _bags(self, number: int, rows: Span, columns: int, share: int, step: int) -> Bags:
        ids, lengths = self._ids[number][step]
        lengths = lengths[: len(lengths) // share]
        return TableRange(self._tables[number], rows, columns).bags(ids[: int(lengths.sum())], lengths)


def task(number: int, pool: Sequence[PoolTable], most: int = 200) -> Task:
    """The task of that number."""
    memory = [*ROOM][number % 2]
    found = draw_task(pool, np.random.default_rng([number, 5]), 20, most)
    found = replace(found, optimizer=OPTIMIZERS[number % 3], memory_factor=ROOM[memory])
    return Task(found.tables, found.optimizer, found.problem("cpu", EXAMPLES), memory)


def plans(found: Task, refine_s: float) -> dict[str, Plan]:
    """Of every planner, autoshard's first."""
    refined = OURS.model_copy(update={"refine_s": refine_s})
    planners: Mapping[str, PlannerConfig] = {"autoshard": OURS, "refined": refined, "torchrec": PEER, **RULES}
    built = {name: config.build(ShardBenchmark(CPU)) for name, config in planners.items()}
    return {name: planned_by(found.problem, planner).plan for name, planner in built.items()}


def measured(found: Task, made: Mapping[str, Plan], seed: int) -> dict[str, list[float]]:
    """Seconds of each device under each plan."""
    watch = Stopwatch(found, seed)
    held = {name: found.devices(plan) for name, plan in made.items()}
    runs: dict[Key, list[float]] = {parts: [] for parts in chain(*held.values())}
    asked = dict.fromkeys(runs)
    for number in range(ROUNDS):
        for parts in asked:
            runs[parts].append(watch.seconds(parts))
        middle = {parts: st.median(seconds) for parts, seconds in runs.items()}
        slowest = {name: max(middle[parts] for parts in each) for name, each in held.items()}
        far = CONTENDS[min(number, 1)] * min(slowest.values())
        near = [name for name in held if slowest[name] < far]
        close = CLOSE if number else float("inf")
        asked = dict.fromkeys(p for name in near for p in held[name] if middle[p] * close > slowest[name])
    return {name: [st.median(runs[parts]) for parts in each] for name, each in held.items()}


def _taken(number: int, quick: bool) -> dict[str, list[float]]:
    """:func:`measured` of the plans of all planners."""
    found = task(number, train_test_halves(table_pool())[1], 24 if quick else 200)
    with single_threaded(CPU):
        return measured(found, plans(found, 1.0 if quick else REFINE_S), number)


def _apart(number: int, quick: bool) -> dict[str, list[float]]:
    """The same in a process of its own, whose memory is free when it ends."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, context) as process:
        return process.submit(_taken, number, quick).result()


def run(context: Context) -> Result:
    pool = train_test_halves(table_pool())[1]
    tasks = QUICK_TASKS if context.quick else TASKS
    path = context.cache / f"autoshard{'-quick' * context.quick}.jsonl"
    resumable = ResumableCases(path, digest(ROOT, AUTOSHARD.depends_on))
    sittings = f", {len(resumable)} of the tasks in an earlier sitting" if len(resumable) else ""
    slowest: dict[str, list[float]] = {}
    shares: list[float] = []
    even: list[float] = []
    cases = [("task", "tables", "devices", "memory", "optimizer", "autoshard", "refined", "best rule", "even share")]
    for number in range(tasks):
        found = task(number, pool, 24 if context.quick else 200)
        devices: dict[str, list[float]] = resumable.get(str(number), partial(_apart, number, context.quick))
        for name, seconds in devices.items():
            slowest.setdefault(name, []).append(max(seconds))
        even.append(max(devices["autoshard"]) / st.fmean(devices["autoshard"]))
        share = min(st.fmean(seconds) for seconds in devices.values())
        shares.append(share)
        best = min(RULES, key=lambda name: slowest[name][-1])
        ours, refined, rule = (1e3 * slowest[name][-1] for name in ("autoshard", "refined", best))
        where = (str(len(found.tables)), str(len(devices[best])), found.memory, found.optimizer)
        took = (f"{ours:.2f} ms", f"{refined:.2f} ms", f"{rule:.2f} ms ({best})", f"{1e3 * share:.2f} ms")
        cases.append((str(number), *where, *took))
        named = (f"{name} {value}" for name, value in zip(cases[0], cases[-1], strict=True))
        context.say(f"{number + 1} of {tasks}: {', '.join(named)}")
    planning_s = [_planning_seconds(pool, 20 if context.quick else 200) for _ in range(3)]
    result = _result(slowest, shares, even, planning_s)
    resumable.forget()
    return replace(result, notes=(result.notes[0] + sittings, *result.notes[1:]), cases=tuple(cases))


def _result(
    slowest: Mapping[str, Sequence[float]], shares: Sequence[float], even: Sequence[float], planning_s: Sequence[float]
) -> Result:
    ours = slowest["autoshard"]
    tasks = range(len(ours))
    over = {name: st.fmean(each[k] / shares[k] for k in tasks) for name, each in slowest.items()}
    single = min(RULES, key=lambda name: over[name])
    best = [min(slowest[name][k] for name in RULES) for k in tasks]
    hand_made = [min(slowest[name][k] for name in RULES if name not in LEARNED) for k in tasks]
    figures: list[Figure] = []
    for name in ("autoshard", "refined"):
        lower = tuple(100 * (1 - slowest[name][k] / slowest[single][k]) for k in tasks)
        roomy = [gain for k, gain in enumerate(lower) if slowest[single][k] > shares[k] / 0.9]
        level = 100 * st.fmean(slowest[name][k] <= best[k] * (1 + LEVEL) for k in tasks)
        wins = 100 * st.fmean(slowest[name][k] < best[k] for k in tasks)
        unlearned = 100 * st.fmean(slowest[name][k] < hand_made[k] for k in tasks)
        some = tuple(100.0 * (slowest[name][k] < best[k]) for k in tasks if best[k] > shares[k] * (1 + SOME_ROOM))
        figures += [
            Figure(f"{name}.wins", "%", (wins,), "tasks below the best rule of each"),
            Figure(
                f"{name}.wins_where_room",
                "%",
                some or (0.0,),
                f"the same, of {len(some)} tasks whose best rule is {100 * SOME_ROOM:g} % or more above an even share",
                "mean",
            ),
            Figure(f"{name}.wins_hand_made", "%", (unlearned,), f"the same without {' and '.join(LEARNED)}"),
            Figure(
                f"{name}.wins_or_level", "%", (level,), f"tasks at most {100 * LEVEL:g} % above the best of all rules"
            ),
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
        f"{len(ours)} tasks; {EXAMPLES:,} examples a step; the median of {ROUNDS} rounds' medians of {REPEATS} calls "
        f"by a gauge, {STEPS} before them not measured; plans {CONTENDS[0]:g} times above the best: one round",
        f"costs measured on {origin['machine']}, {origin['date']}; {REFINE_S:g} s to refine a plan",
        "a sample is a task; an even share is the least mean of the devices' times under any of the plans",
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
    OURS.build().plan(problem)
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
    depends_on=("bench/micro/autoshard.py", "src/ziggurat/planning/autoshard/shipped"),
    run=run,
)
