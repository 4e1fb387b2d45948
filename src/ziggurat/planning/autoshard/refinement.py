"""Plans that are measured while they are made.

A cost network is off by some per cent for tables that it never saw, and a search finds where it promises too much. So
devices of plans, those of hand-made rules among them, are run for real; each table gets a factor that explains what was
measured; and with the corrected costs the planner plans again, anew and by exchanges in the best plan so far, until
time is over or nothing new comes of it. Of all plans the one is kept whose slowest device took least. DreamShard (arXiv
2210.02023, algorithm 1) measures between plans too, to train its network; factors of the tables at hand are ours.

Shape legend: S sets that were measured, T tables.
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
from ziggurat.planning.problem import Problem

TABLE_ERROR, SET_ERROR = 0.1, 0.02
"""Standard deviations, of logarithms, that are expected: of tables' factors, and of what is measured around them."""
DOUBTFUL = 1.02
"""Times what it should take, in proportion to others: what is above is run again."""
RUNS = 3
"""Of each device of a plan that seems better, and of the best one's."""
PASSES = 3
IDLE = 4
"""So many turns that lead to nothing new end the measuring: each kind of turn is among them."""

Parts = tuple[tuple[TableSpec, Shard], ...]
"""What one device holds."""
TimeParts = Callable[[Problem, Parts], float]
"""Seconds that a device's kernels really take for a step, forward and backward."""


def refined(
    problem: Problem,
    plan_by: Callable[[LearnedCosts, Plan | None], Plan],
    others: Sequence[Plan],
    costs: LearnedCosts,
    time_parts: TimeParts,
    seconds: float,
    progress: Progress | None = None,
) -> Plan:
    """The best, as measured, of some plans and of those that costs lead to as they are corrected.

    Tables that every device holds, and exchanges, take what costs say. A plan is given up at the first device that
    takes as long as the slowest one of the best plan so far. One that seems better is measured again, and so is the
    best: of many plans the luckiest would win. By turns a device that took unusually long is, too.

    Args:
        problem: tables and devices.
        plan_by: the planner; with a plan, that one after exchanges.
        others: plans that are measured too, by turns with the planner's, the one that seems best next; factors are
            learned from them as well.
        costs: to begin with.
        time_parts: runs a device's shards.
        seconds: after so many no other plan is begun; the planner's first is always measured.
        progress: where to show how many devices were measured, and the best plan's slowest.
    """
    progress, devices = progress or Silent(), _Devices(problem, time_parts)
    progress.start("refine the plan", None, "devices measured")
    end = time.monotonic() + seconds
    best = first = plan_by(costs, None)
    least = devices.slowest(best, costs)
    waiting, turns, idle = [*others], cycle(("other", "near", "anew", "again")), 0
    while time.monotonic() < end and (waiting or idle < IDLE):
        turn, known = next(turns), len(devices.sets)
        if turn == "again":
            devices.doubt(costs)
        corrected = costs.corrected(table_factors(problem, costs, devices.sets))
        if turn == "other" and waiting:
            waiting.sort(key=lambda plan: -max(corrected.device_seconds(problem, plan)))
            plan = waiting.pop()
        else:
            plan = plan_by(corrected, None if turn == "anew" else best)
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
    """What each device holds of the tables that not all of them hold; empty ranges of rows left out."""
    found: list[list[tuple[TableSpec, Shard]]] = [[] for _ in range(plan.world_size)]
    for table in problem.tables:
        if plan.placements[table.name].sharding != "data_parallel":
            for shard in plan.shards(table):
                if shard.rows.size:
                    found[shard.rank].append((table, shard))
    return [tuple(parts) for parts in found]


def table_factors(problem: Problem, costs: LearnedCosts, taken: Sequence[tuple[Parts, float]]) -> dict[str, float]:
    """Table -> how many times as long as predicted it seems to take; what nothing was measured of is left out.

    Logarithms of factors are taken to be normal around 0, and a set's predicted seconds to follow its tables' factors
    by their shares in them: the likeliest factors are those of a ridge regression, taken anew with the shares that they
    lead to.
    """
    names = sorted({table.name for parts, _ in taken for table, _ in parts})
    place = {name: column for column, name in enumerate(names)}
    log_T: Floats = np.zeros(len(names))
    for _ in range(PASSES):
        corrected = costs.corrected(dict(zip(names, np.exp(log_T).tolist(), strict=True)))
        shares_ST, off_S = np.zeros((len(taken), len(names))), np.zeros(len(taken))
        for row, (parts, seconds) in enumerate(taken):
            predicted, shares = corrected.parts_seconds(problem, parts)
            off_S[row] = np.log(seconds / predicted)
            np.add.at(shares_ST[row], [place[table.name] for table, _ in parts], shares)
        off_S += shares_ST @ log_T
        spread_SS = TABLE_ERROR**2 * shares_ST @ shares_ST.T + SET_ERROR**2 * np.eye(len(taken))
        log_T = TABLE_ERROR**2 * shares_ST.T @ np.linalg.solve(spread_SS, off_S)
    return dict(zip(names, np.exp(log_T).tolist(), strict=True))


class _Devices:
    """What devices of plans took; shards that lie together in two plans are run once for both.

    Args:
        problem: tables and devices.
        time_parts: runs a device's shards.
    """

    def __init__(self, problem: Problem, time_parts: TimeParts) -> None:
        self._problem, self._time_parts = problem, time_parts
        self._taken: dict[frozenset[tuple[str, Span, Span]], tuple[Parts, list[float]]] = {}

    @property
    def sets(self) -> list[tuple[Parts, float]]:
        """All that were run, and their seconds: of several runs the median."""
        return [(parts, float(np.median(seconds))) for parts, seconds in self._taken.values()]

    def doubt(self, costs: LearnedCosts) -> None:
        """Runs once more what took longest for what costs say, of all that ran once: other work may have been there."""
        over = {
            key: took[0] / costs.parts_seconds(self._problem, parts)[0] for key, (parts, took) in self._taken.items()
        }
        once = [key for key, (_, took) in self._taken.items() if len(took) == 1]
        worst = max(once, key=over.__getitem__, default=None)
        if worst and over[worst] > DOUBTFUL * float(np.median([*over.values()])):
            parts, took = self._taken[worst]
            took.append(self._time_parts(self._problem, parts))

    def slowest(self, plan: Plan, costs: LearnedCosts, *, enough: float = math.inf, runs: int = 1) -> float:
        """Seconds of the slowest device, its kernels as measured, what else it does as predicted.

        Of many sets the one that ran fastest did so by luck as well. So what costs say, which were corrected by all
        that was measured, counts as much as one run.

        Args:
            plan: whose devices.
            costs: those are run first that should be slowest by them.
            enough: the first that takes so long is taken for the slowest.
            runs: of each device at least, earlier ones counted.
        """
        predicted, parts = costs.device_seconds(self._problem, plan), device_parts(self._problem, plan)
        slowest = 0.0
        for rank in sorted(range(len(parts)), key=lambda rank: -predicted[rank]):
            kernels = costs.parts_seconds(self._problem, parts[rank])[0] if parts[rank] else 0.0
            slowest = max(slowest, predicted[rank] - kernels + self._seconds(parts[rank], kernels, runs))
            if slowest >= enough:
                break
        return slowest

    def _seconds(self, parts: Parts, said: float, runs: int) -> float:
        if not parts:
            return 0.0
        key = frozenset((table.name, shard.rows, shard.columns) for table, shard in parts)
        _, seconds = self._taken.setdefault(key, (parts, []))
        while len(seconds) < runs:
            seconds.append(self._time_parts(self._problem, parts))
        return math.exp((len(seconds) * math.log(float(np.median(seconds))) + math.log(said)) / (len(seconds) + 1))
