"""Tells whether look-ups have moved so far that another choice of copied rows would be faster.

Look-ups ahead are counted in two halves. For each, the planner chooses the rows to copy; its choice and the stored plan
are then priced by the other half. So a plan does not look better only because it knows the very look-ups that it is
judged by, as it would where few were counted. That finds rows that got colder as well as rows that got hotter, and
tables that have no copies but would gain by some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.plan import Plan
from ziggurat.core.row_order import FrequencyRanks, frequency_ranks
from ziggurat.core.tables import TableSpec
from ziggurat.planning.access_curve import AccessCurve
from ziggurat.planning.contract import PlannerSettings
from ziggurat.planning.flexshard import FlexShard
from ziggurat.planning.problem import Problem
from ziggurat.planning.tier_cost import PricedTable
from ziggurat.training.placement.counted_lookups import Counts, with_lookups

LEAST_GAIN = 0.03
"""The share of the modelled seconds of all tables in tiers that a new plan must save to be worth taking."""


def gains(
    problem: Problem,
    settings: PlannerSettings,
    plan: Plan,
    ranks: Mapping[str, FrequencyRanks],
    halves: Sequence[tuple[Counts, int]],
) -> dict[str, float]:
    """Returns the share of modelled seconds that other copies would save, for each table in tiers that would gain.

    Args:
        problem: the tables and devices, with the statistics by which the plan was made.
        settings: the planner; one that makes no tiers stands for FlexShard with its defaults.
        plan: the plan of the run.
        ranks: the rank of each row by falling frequency that the run has stored, if any.
        halves: the look-ups ahead in two parts, each with its number of examples.

    Returns:
        Empty unless all tables in tiers together gain at least :data:`LEAST_GAIN`.
    """
    tables = [each for each in problem.tables if plan.placements[each.name].sharding == "row_tiers"]
    if not tables or problem.statistics is None or not all(examples for _, examples in halves):
        return {}
    names = tuple(each.name for each in tables)
    config = settings if isinstance(settings, FlexShard.Config) else FlexShard.Config()
    planner = FlexShard(config.model_copy(update={"tables": names}))
    free = {name: each for name, each in problem.constraints.items() if name not in names}
    stored, best = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for (known, examples), (judging, judged) in (halves, halves[::-1]):
        counted = replace(with_lookups(problem.statistics, known), rows={"train": examples})
        try:
            other = planner.plan(problem.but(statistics=counted, constraints=free))
        except NoFeasiblePlan:  # longer histories may leave no room for any plan; the present one is kept
            return {}
        for table in tables:
            name, statistics = table.name, problem.statistics.tables.get(table.name)
            before = frequency_ranks(None if statistics is None else statistics.accesses, table.rows)
            lookups = judging[name], judged
            stored[name] += _seconds(problem, table, plan, ranks.get(name, before), *lookups)
            best[name] += _seconds(problem, table, other, frequency_ranks(known[name], table.rows), *lookups)
    if sum(best.values()) > (1 - LEAST_GAIN) * sum(stored.values()):
        return {}
    saved = {name: 1 - best[name] / stored[name] for name in names if stored[name]}
    return {name: share for name, share in saved.items() if share >= LEAST_GAIN}


def _seconds(
    problem: Problem,
    table: TableSpec,
    plan: Plan,
    ranks: FrequencyRanks,
    counts_R: npt.NDArray[np.int64],
    examples: int,
) -> float:
    """Returns the modelled seconds of a table in tiers, whose rows are in some order, by look-ups of some examples."""
    total = int(counts_R.sum())
    if not total:
        return 0.0
    in_order = np.empty_like(counts_R)
    in_order[ranks] = counts_R
    curve = AccessCurve.of_places(total / examples, in_order)
    priced = PricedTable(table, curve, problem.topology, problem.read, problem.looked_up)
    copied, hosts, _ = plan.placements[table.name].tiers(table.rows)
    return sum(load.seconds(problem.topology) for load in priced.loads(copied.size, hosts.size))
