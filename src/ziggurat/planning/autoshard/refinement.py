"""Refines plans by measuring them.

A cost network is off by some per cent for tables that it never saw, and a search tends to find plans whose time it
underestimates. So the devices of plans, including those of hand-made rules, are run for real, and each table gets a
factor that explains the measurements. With the corrected costs the planner plans again, both from scratch and by moves
and swaps in the best plan so far, until the time is over or nothing new is found. The plan whose slowest device took
least is kept. DreamShard (arXiv 2210.02023, algorithm 1) also measures between plans, to train its network; factors for
the tables at hand are our own.

Shape legend: S measured sets, T tables.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np

from ziggurat.core.plan import Plan, Shard, Span
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.tables import TableSpec
from ziggurat.planning.autoshard.costs import LearnedCosts
from ziggurat.planning.autoshard.task import Floats
from ziggurat.planning.contract import Parts, TimeParts
from ziggurat.planning.problem import Problem

TABLE_ERROR, SET_ERROR = 0.1, 0.02
"""Expected standard deviations of logarithms: of the tables' factors, and of the measurements around them."""
OUTLIER_RATIO = 1.02
"""A measurement whose ratio to the prediction exceeds the median ratio by this factor is repeated."""
RUNS = 3
"""Runs of each device of a plan that seems better, and of the best plan's devices."""
PASSES = 3
"""Iterations of the regression for the tables' factors."""
IDLE = 4
"""Consecutive turns without a new measurement that end the refinement; each kind of turn is among them."""


def refine_plan(
    problem: Problem,
    plan_by: Callable[[LearnedCosts, Plan | None], Plan],
    others: Sequence[Plan],
    costs: LearnedCosts,
    time_parts: TimeParts,
    seconds: float,
    progress: Progress | None = None,
) -> Plan:
    """Returns the best plan, by measurement, of the given plans and of those that the planner makes as costs improve.

    Replicated tables and exchanges are not measured; their times are predicted. A plan is abandoned at the first device
    that takes as long as the slowest device of the best plan so far. A plan that seems better is measured again, and so
    is the best plan, since otherwise the luckiest of many plans would win. In its turn, a device that took unusually
    long is also measured again.

    Args:
        problem: tables and devices.
        plan_by: the planner for given costs; with a plan, it returns that plan improved by moves and swaps.
        others: further plans to measure, alternating with the planner's, the most promising first; factors are learned
            from them as well.
        costs: the initial costs.
        time_parts: measures a device's shards.
        seconds: time after which no further plan is started; the planner's first plan is always measured.
        progress: shows the number of measured devices and the slowest device of the best plan.
    """
    progress, devices = progress or Silent(), _MeasuredDevices(problem, time_parts)
    progress.start("refine the plan", None, "devices measured")
    end = time.monotonic() + seconds
    best = first = plan_by(costs, None)
    least = devices.slowest(best, costs)
    waiting, turns, idle = [*others], cycle(("other plan", "improve best", "plan anew", "rerun")), 0
    while time.monotonic() < end and (waiting or idle < IDLE):
        turn, known = next(turns), len(devices.sets)
        if turn == "rerun":
            devices.rerun_outlier(costs)
        corrected = costs.corrected(table_factors(problem, costs, devices.sets))
        if turn == "other plan" and waiting:
            waiting.sort(key=lambda plan: -max(corrected.device_seconds(problem, plan)))
            plan = waiting.pop()
        else:
            plan = plan_by(corrected, None if turn == "plan anew" else best)
        least = devices.slowest(best, corrected)
        if plan.placements != best.placements and devices.slowest(plan, corrected, enough=least) < least:
            corrected = costs.corrected(table_factors(problem, costs, devices.sets))
            least = devices.slowest(best, corrected, runs=RUNS)
            if (slowest := devices.slowest(plan, corrected, enough=least, runs=RUNS)) < least:
                best, least = plan, slowest
        progress.advance(len(devices.sets), ms=f"{1e3 * least:.3g}")
        idle = idle + 1 if len(devices.sets) == known else 0
    progress.finish()
    corrected = costs.corrected(table_factors(problem, costs, devices.sets))
    before = devices.slowest(first, corrected)
    instead = f", {1e3 * before:.3g} ms in the first plan" if best is not first else ""
    note = f"{len(devices.sets)} devices' shards were measured: the slowest took {1e3 * least:.3g} ms{instead}"
    return replace(best, notes=(*best.notes, note))


def device_parts(problem: Problem, plan: Plan) -> list[Parts]:
    """Returns each device's shards, without replicated tables and without empty ranges of rows."""
    found: list[list[tuple[TableSpec, Shard]]] = [[] for _ in range(plan.world_size)]
    for table in problem.tables:
        if plan.placements[table.name].sharding != "data_parallel":
            for shard in plan.shards(table):
                if shard.rows.size:
                    found[shard.rank].append((table, shard))
    return [tuple(parts) for parts in found]


def table_factors(problem: Problem, costs: LearnedCosts, measured: Sequence[tuple[Parts, float]]) -> dict[str, float]:
    """Estimates for each measured table how many times as long as predicted it takes.

    The logarithms of the factors are assumed to be normal around 0, and a set's seconds to depend on its tables'
    factors in proportion to their shares. The likeliest factors are then those of a ridge regression, which is repeated
    with the shares that the factors lead to.

    Args:
        problem: tables and devices.
        costs: the uncorrected costs.
        measured: sets of shards with their measured seconds.
    """
    names = sorted({table.name for parts, _ in measured for table, _ in parts})
    place = {name: column for column, name in enumerate(names)}
    log_T: Floats = np.zeros(len(names))
    for _ in range(PASSES):
        corrected = costs.corrected(dict(zip(names, np.exp(log_T).tolist(), strict=True)))
        shares_ST, off_S = np.zeros((len(measured), len(names))), np.zeros(len(measured))
        for row, (parts, seconds) in enumerate(measured):
            predicted, shares = corrected.parts_seconds(problem, parts)
            off_S[row] = np.log(seconds / predicted)
            np.add.at(shares_ST[row], [place[table.name] for table, _ in parts], shares)
        off_S += shares_ST @ log_T
        spread_SS = TABLE_ERROR**2 * shares_ST @ shares_ST.T + SET_ERROR**2 * np.eye(len(measured))
        log_T = TABLE_ERROR**2 * shares_ST.T @ np.linalg.solve(spread_SS, off_S)
    return dict(zip(names, np.exp(log_T).tolist(), strict=True))


class _MeasuredDevices:
    """The measured seconds of plans' devices. Two devices with the same shards are measured only once.

    Args:
        problem: tables and devices.
        time_parts: measures a device's shards.
    """

    def __init__(self, problem: Problem, time_parts: TimeParts) -> None:
        self._problem, self._time_parts = problem, time_parts
        self._measured: dict[frozenset[tuple[str, Span, Span]], tuple[Parts, list[float]]] = {}

    @property
    def sets(self) -> list[tuple[Parts, float]]:
        """All measured sets of shards with their seconds, the median of several runs."""
        return [(parts, float(np.median(seconds))) for parts, seconds in self._measured.values()]

    def rerun_outlier(self, costs: LearnedCosts) -> None:
        """Measures again the set that took longest relative to its prediction, of those measured once.

        It is only repeated if it is an outlier: other work on the machine may have slowed it down.
        """
        over = {
            key: took[0] / costs.parts_seconds(self._problem, parts)[0] for key, (parts, took) in self._measured.items()
        }
        once = [key for key, (_, took) in self._measured.items() if len(took) == 1]
        worst = max(once, key=over.__getitem__, default=None)
        if worst and over[worst] > OUTLIER_RATIO * float(np.median([*over.values()])):
            parts, took = self._measured[worst]
            took.append(self._time_parts(self._problem, parts))

    def slowest(self, plan: Plan, costs: LearnedCosts, *, enough: float = math.inf, runs: int = 1) -> float:
        """Returns the seconds of the plan's slowest device: its kernels as measured, everything else as predicted.

        Among many sets, the fastest measurement is partly luck. The prediction, which is corrected by all measurements,
        therefore counts as much as one run.

        Args:
            plan: the plan.
            costs: corrected costs; devices that they predict to be slowest are measured first.
            enough: measuring stops at the first device that takes this long.
            runs: least number of runs of each device, including earlier ones.
        """
        predicted, parts = costs.device_seconds(self._problem, plan), device_parts(self._problem, plan)
        slowest = 0.0
        for rank in sorted(range(len(parts)), key=lambda rank: -predicted[rank]):
            kernels = costs.parts_seconds(self._problem, parts[rank])[0] if parts[rank] else 0.0
            slowest = max(slowest, predicted[rank] - kernels + self._seconds(parts[rank], kernels, runs))
            if slowest >= enough:
                break
        return slowest

    def _seconds(self, parts: Parts, predicted: float, runs: int) -> float:
        if not parts:
            return 0.0
        key = frozenset((table.name, shard.rows, shard.columns) for table, shard in parts)
        _, seconds = self._measured.setdefault(key, (parts, []))
        while len(seconds) < runs:
            seconds.append(self._time_parts(self._problem, parts))
        return math.exp((len(seconds) * math.log(float(np.median(seconds))) + math.log(predicted)) / (len(seconds) + 1))
