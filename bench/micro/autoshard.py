"""Compares AutoShard with hand-made rules by the measured time of the slowest device, on tables not used in training.

A task is to place 20 to 200 tables of the test half of the synthetic pool on 2 to 8 devices. The memory of the devices
is tight (1.1 times an even share of all tables) or loose (4 times an even share). Each planner makes a plan. Then the
shards of each device run on one thread, with forward pass, backward pass and update, on ids drawn from the same tables.

Other work on the host slows calls by a tenth, and for some seconds by up to a half. Therefore the seconds of a call are
divided by the slow-down of a gauge just before and after it (:class:`~ziggurat.embeddings.kernel_time.SlowdownGauge`).
In each round all devices take turns, and the result of a round is the median of several calls. The time of a device is
the median of its rounds. After two rounds, only devices remain that may be the slowest of a plan close to the best one.

The ``refined`` plans are AutoShard's plans after it has measured plans itself for some seconds, with its own ids.
Communication is not included, only the kernels of each device. TorchRec's planner, for which there are no targets, may
replicate a table on every device; the exchange of its gradient is then not included.

The even share of a task is the smallest mean of the devices' times under any plan. A plan's slowest device can only be
below it if the plan's total time is smaller than that of all plans compared.
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
"""The global batch size, which is a multiple of each number of devices."""
MEMORY_FACTORS = {"tight": 1.1, "loose": 4.0}
ROUNDS, REPEATS, STEPS = 6, 5, 2
QUICK_ROUNDS = 2
CONTENDER_LIMITS = 1.2, 1.1
"""Multiples of the best plan's slowest device; plans above the first are dropped after one round, others above the
second after two."""
NEAR_SLOWEST = 1.05
"""A device whose time is smaller than that of its plan's slowest device by this factor is dropped after two rounds."""

RULES: dict[str, PlannerConfig] = {
    **{measure: BaselinePlanner.Config(by=measure) for measure in get_args(Measure)},
    "rules": Rules.Config(replicate_up_to=1),
}
PEER = TorchRec.Config()
OURS = AutoShard.Config(replicate_up_to=1)
LEARNED_RULES = ("lpt", "ldm")
"""The rules that use the cost network."""
TIE_TOLERANCE = 0.01
"""The relative difference below which two plans count as equal; repeated measurements rarely agree more closely."""
MIN_HEADROOM = 0.03
"""The distance of the best rule from the even share, as a fraction, below which a better plan hardly exists."""
REFINE_S = 60.0
"""The seconds that the planner of the refined plans may spend on measurements."""

DeviceShards = tuple[tuple[int, Span, int, int], ...]
"""The shards of a device, each as the number of a pool table, its rows, its number of columns, and the number of equal
parts of the batch of which it looks up one."""


@dataclass(frozen=True)
class Task:
    """A placement task.

    Attributes:
        tables: the tables of the pool, in the order of the problem's tables.
        optimizer: the optimizer of all tables.
        problem: the planning problem.
        memory: ``tight`` or ``loose``.
    """

    tables: tuple[PoolTable, ...]
    optimizer: str
    problem: Problem
    memory: str

    def devices(self, plan: Plan) -> list[DeviceShards]:
        """Returns the shards of each device."""
        found: list[list[tuple[int, Span, int, int]]] = [[] for _ in range(plan.world_size)]
        for table, spec in zip(self.tables, self.problem.tables, strict=True):
            share = plan.world_size if plan.placements[spec.name].sharding == "data_parallel" else 1
            for shard in plan.shards(spec):
                found[shard.rank].append((table.number, shard.rows, shard.columns.size, share))
        return [tuple(each) for each in found]


class Stopwatch:
    """Measures shards of one task."""

    def __init__(self, task: Task, seed: int) -> None:
        draw = np.random.default_rng(seed)
        self._optimizer, self._tables = task.optimizer, {table.number: table for table in task.tables}
        self._ids = {table.number: [table.ids(EXAMPLES, draw) for _ in range(STEPS)] for table in task.tables}
        self._gauge, self._memory = SlowdownGauge(CPU), TableMemory()

    def seconds(self, parts: DeviceShards) -> float:
        """Returns the time of a step with these shards on one device."""
        shares = {share for *_, share in parts}
        kernels = [self._calls([part for part in parts if part[3] == share]) for share in shares]
        return st.median(sum(each) for each in zip(*kernels, strict=True)) if parts else 0.0

    def _calls(self, parts: Sequence[tuple[int, Span, int, int]]) -> tuple[float, ...]:
        """Returns the seconds of several calls of one kernel."""
        steps = [[self._bags(*part, step) for part in parts] for step in range(STEPS)]
        return kernel_seconds(steps, self._optimizer, CPU, REPEATS, self._gauge, self._memory)

    def _bags(self, number: int, rows: Span, columns: int, share: int, step: int) -> Bags:
        ids, lengths = self._ids[number][step]
        lengths = lengths[: len(lengths) // share]
        return TableRange(self._tables[number], rows, columns).bags(ids[: int(lengths.sum())], lengths)


def task(number: int, pool: Sequence[PoolTable], most: int = 200) -> Task:
    """Draws the task with this number.

    Args:
        number: the number of the task, which is its seed.
        pool: the tables to draw from.
        most: the largest number of tables.
    """
    memory = [*MEMORY_FACTORS][number % 2]
    found = draw_task(pool, np.random.default_rng([number, 5]), 20, most)
    found = replace(found, optimizer=OPTIMIZERS[number % 3], memory_factor=MEMORY_FACTORS[memory])
    return Task(found.tables, found.optimizer, found.problem("cpu", EXAMPLES), memory)


def plans(found: Task, refine_s: float) -> dict[str, Plan]:
    """Returns the plan of each planner, AutoShard's first."""
    refined = OURS.model_copy(update={"refine_s": refine_s})
    planners: Mapping[str, PlannerConfig] = {"autoshard": OURS, "refined": refined, "torchrec": PEER, **RULES}
    built = {name: config.build(ShardBenchmark(CPU)) for name, config in planners.items()}
    return {name: planned_by(found.problem, planner).plan for name, planner in built.items()}


def measured(found: Task, made: Mapping[str, Plan], seed: int, rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Returns the measured seconds of each device under each plan.

    Args:
        found: the task.
        made: name of a planner -> its plan.
        seed: the seed of the ids.
        rounds: how often to measure.
    """
    watch = Stopwatch(found, seed)
    held = {name: found.devices(plan) for name, plan in made.items()}
    runs: dict[DeviceShards, list[float]] = {parts: [] for parts in chain(*held.values())}
    asked = dict.fromkeys(runs)
    for number in range(rounds):
        for parts in asked:
            runs[parts].append(watch.seconds(parts))
        middle = {parts: st.median(seconds) for parts, seconds in runs.items()}
        slowest = {name: max(middle[parts] for parts in each) for name, each in held.items()}
        far = CONTENDER_LIMITS[min(number, 1)] * min(slowest.values())
        near = [name for name in held if slowest[name] < far]
        close = NEAR_SLOWEST if number else float("inf")
        asked = dict.fromkeys(p for name in near for p in held[name] if middle[p] * close > slowest[name])
    return {name: [st.median(runs[parts]) for parts in each] for name, each in held.items()}


def _measure_task(number: int, quick: bool) -> dict[str, list[float]]:
    """Returns :func:`measured` for the plans of all planners."""
    found = task(number, train_test_halves(table_pool())[1], 24 if quick else 200)
    with single_threaded(CPU):
        made = plans(found, 1.0 if quick else REFINE_S)
        return measured(found, made, number, QUICK_ROUNDS if quick else ROUNDS)


def _measure_in_subprocess(number: int, quick: bool) -> dict[str, list[float]]:
    """Returns the result of :func:`_measure_task`, run in a separate process so that its memory is freed."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(1, context) as process:
        return process.submit(_measure_task, number, quick).result()


def run(context: Context) -> Result:
    pool = train_test_halves(table_pool())[1]
    tasks = QUICK_TASKS if context.quick else TASKS
    path = context.cache / f"autoshard{'-quick' * context.quick}.jsonl"
    resumable = ResumableCases(path, digest(ROOT, AUTOSHARD.depends_on))
    resumed = f", {len(resumable)} of the tasks in an earlier run" if len(resumable) else ""
    slowest: dict[str, list[float]] = {}
    shares: list[float] = []
    even: list[float] = []
    cases = [("task", "tables", "devices", "memory", "optimizer", "autoshard", "refined", "best rule", "even share")]
    for number in range(tasks):
        found = task(number, pool, 24 if context.quick else 200)
        devices: dict[str, list[float]] = resumable.get(
            str(number), partial(_measure_in_subprocess, number, context.quick)
        )
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
    planning_s = [_planning_seconds(pool, 20 if context.quick else 200) for _ in range(1 if context.quick else 3)]
    result = _result(slowest, shares, even, planning_s)
    resumable.forget()
    return replace(result, notes=(result.notes[0] + resumed, *result.notes[1:]), cases=tuple(cases))


def _result(
    slowest: Mapping[str, Sequence[float]], shares: Sequence[float], even: Sequence[float], planning_s: Sequence[float]
) -> Result:
    ours = slowest["autoshard"]
    tasks = range(len(ours))
    over = {name: st.fmean(each[k] / shares[k] for k in tasks) for name, each in slowest.items()}
    single = min(RULES, key=lambda name: over[name])
    best = [min(slowest[name][k] for name in RULES) for k in tasks]
    hand_made = [min(slowest[name][k] for name in RULES if name not in LEARNED_RULES) for k in tasks]
    figures: list[Figure] = []
    for name in ("autoshard", "refined"):
        lower = tuple(100 * (1 - slowest[name][k] / slowest[single][k]) for k in tasks)
        roomy = [gain for k, gain in enumerate(lower) if slowest[single][k] > shares[k] / 0.9]
        level = 100 * st.fmean(slowest[name][k] <= best[k] * (1 + TIE_TOLERANCE) for k in tasks)
        wins = 100 * st.fmean(slowest[name][k] < best[k] for k in tasks)
        unlearned = 100 * st.fmean(slowest[name][k] < hand_made[k] for k in tasks)
        some = tuple(100.0 * (slowest[name][k] < best[k]) for k in tasks if best[k] > shares[k] * (1 + MIN_HEADROOM))
        figures += [
            Figure(f"{name}.wins", "%", (wins,), "tasks below the best rule of each"),
            Figure(
                f"{name}.wins_where_room",
                "%",
                some or (0.0,),
                f"the same, of {len(some)} tasks whose best rule is {100 * MIN_HEADROOM:g} % or more above even shares",
                "mean",
            ),
            Figure(f"{name}.wins_hand_made", "%", (unlearned,), f"the same without {' and '.join(LEARNED_RULES)}"),
            Figure(
                f"{name}.wins_or_level",
                "%",
                (level,),
                f"tasks at most {100 * TIE_TOLERANCE:g} % above the best of all rules",
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
        f"{len(ours)} tasks; {EXAMPLES:,} examples a step; the median over {ROUNDS} rounds of the medians of {REPEATS} "
        f"calls relative to a gauge, after {STEPS} warm-up calls; one round for plans more than "
        f"{CONTENDER_LIMITS[0]:g} times as slow as the best",
        f"costs measured on {origin['machine']}, {origin['date']}; {REFINE_S:g} s to refine a plan",
        "a sample is a task; an even share is the least mean of the devices' times under any of the plans",
    )
    return Result(tuple(figures), STEPS, REPEATS, notes)


def _over(name: str, seconds: Sequence[float], others: Sequence[float]) -> Figure:
    """Returns a figure of the percentage by which the slowest devices exceed others, with a sample per task."""
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
