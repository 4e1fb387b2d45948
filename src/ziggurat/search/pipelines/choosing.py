"""Which of the evaluated pipelines is returned: the few best are judged again, on folds that did not choose them.

The best of many scores on the same folds is too good, and the more so the more were tried. Here the best few of a
search, and standard scaling, get fresh divisions of the rows into folds. Standard scaling is returned unless another is
ahead of it there by more than the noise of the difference, and pipelines that columns share unless others are ahead of
those: of what is as good, the simplest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ziggurat.search.pipelines.campaign import Campaign, Stopped
from ziggurat.search.pipelines.evaluation import AnyPipeline, Assignment
from ziggurat.search.pipelines.found import Trial
from ziggurat.search.pipelines.methods.proposals import Proposal
from ziggurat.search.pipelines.pipeline import simplest
from ziggurat.search.pipelines.table import Column

_MOST_RESERVED, _FEWEST_JUDGED, _FEWEST_OF_ONE_SCORE = 12, 8, 4
_MARGIN = 0.5
"""Standard errors of the paired difference by which standard scaling has to be beaten; corrected, see below."""


def reserved(budget: int, scores: int) -> int:
    """Returns how many evaluations of a budget judge finalists: a quarter, even, at most twelve; none below eight.

    Where an evaluation has one score, two finalists are judged twice at least: the noise of one difference is unknown.
    """
    least = _FEWEST_OF_ONE_SCORE if scores == 1 and budget >= _FEWEST_JUDGED else 0
    return max(least, min(_MOST_RESERVED, budget // _FEWEST_JUDGED * 2))


def finalists(trials: Sequence[Trial], most: int) -> list[Trial]:
    """Returns standard scaling, the best trial of each part of the method, then those with the best scores.

    A part proposes neighbours of one assignment, whose errors on the folds of the search are alike. Parts differ.
    """
    searched = [each for each in trials if each.repeat == 0]
    standard = [each for each in searched if each.origin == "standard"][:1]
    others = [each for each in searched if each.scores and each not in standard]
    others.sort(key=lambda each: (-each.score, each.number))
    first = list({each.origin: each for each in reversed(others)}.values())
    first.sort(key=lambda each: (-each.score, each.number))
    chosen = [*first, *(each for each in others if each not in first)]
    return standard + chosen[: max(0, most - len(standard))]


def judge(campaign: Campaign, budget: int) -> tuple[Trial, bool]:
    """Returns the trial to return, after the finalists' evaluations on fresh folds, up to ``budget`` in all.

    A first round judges about half of what is left, a second one the better half of them. If a signal or the deadline
    ends a round, those decide that were judged in it, or before; the second value says whether none did.
    """
    left = budget - len(campaign.trials)
    first = (left + 1) // 2 + (left > 4)
    running = finalists(campaign.trials, max(2, first))
    if left < 2 or len(running) < 2:
        return best_searched(campaign.trials), True
    fresh: dict[int, list[float]] = {each.number: [] for each in running}
    repeat, is_finished = 0, True
    while (left := budget - len(campaign.trials)) >= len(running):
        repeat += 1
        try:
            campaign.evaluate([Proposal("finalist", each.pipelines) for each in running], repeat, left)
        except Stopped:
            is_finished = False
        results = [campaign.result(each.pipelines, repeat) for each in running]
        for trial, result in zip(running, results, strict=True):
            if result is not None:
                fresh[trial.number] += list(result.scores) or [-math.inf]
        if not is_finished:
            running = [each for each in running if fresh[each.number]]
            break
        ranked = sorted(running[1:], key=lambda each: (-float(np.mean(fresh[each.number])), each.number))
        # Standard scaling stays; after the first round so many others do as the rest of the budget can judge again.
        most = max(2, budget - len(campaign.trials)) if repeat == 1 else len(running)
        running = [running[0], *ranked[: most - 1]]
    if not running or running[0].origin != "standard":
        return campaign.trials[0], is_finished  # standard scaling, as nothing could be compared with it
    return ahead(running, fresh, campaign.table.columns), is_finished


def best_searched(trials: Sequence[Trial]) -> Trial:
    """Returns the trial with the best score on the folds of the search; ties go to the earlier one."""
    return max((each for each in trials if each.repeat == 0), key=lambda each: (each.score, -each.number))


def ahead(running: Sequence[Trial], fresh: dict[int, list[float]], columns: Sequence[Column]) -> Trial:
    """Returns the best but for noise: standard scaling, then what columns of a kind share, then all others.

    Each has to be ahead of what was chosen before it by :data:`_MARGIN` standard errors.
    """
    chosen, *others = running  # the first is standard scaling
    shared = [each for each in others if is_shared(each.pipelines, columns)]
    for group in (shared, [each for each in others if each not in shared]):
        best = max(group, key=lambda each: (float(np.mean(fresh[each.number])), -each.number), default=None)
        if best is not None and _is_ahead(fresh[best.number], fresh[chosen.number], max(2, len(best.scores))):
            chosen = best
    return chosen


def is_shared(pipelines: Assignment, columns: Sequence[Column]) -> bool:
    """Whether the columns of each kind have one pipeline, but for what changes nothing in some of them."""
    kinds = {each.kind: [own for own in columns if own.kind == each.kind] for each in columns}

    def fits(pipeline: AnyPipeline, column: Column) -> bool:
        own = simplest(pipeline, has_missing=column.has_missing, missing_is_own=column.missing_is_own)
        return own == pipelines[column.name]

    return all(
        any(all(fits(pipelines[each.name], column) for column in group) for each in group) for group in kinds.values()
    )


def _is_ahead(ours: Sequence[float], theirs: Sequence[float], folds: int) -> bool:
    """Whether scores are ahead of others on the same folds by more than the margin of noise.

    Folds share training rows, so that their differences are not independent: the variance of the mean is
    (1 / J + validation rows / training rows) times that of the J differences (Nadeau and Bengio 2003, "Inference for
    the generalization error", section 5).
    """
    if not np.isfinite(ours).all():
        return False
    pairs = [(own, other) for own, other in zip(ours, theirs, strict=False) if math.isfinite(other)]
    if not pairs:
        return True  # the others failed
    leads = np.array([own - other for own, other in pairs])
    if len(leads) < 2:
        return False
    noise = float(leads.std(ddof=1)) * math.sqrt(1 / len(leads) + 1 / (folds - 1))
    return float(leads.mean()) > _MARGIN * noise
