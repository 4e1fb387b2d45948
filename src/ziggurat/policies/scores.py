"""Compares methods over tasks and seeds: interquartile means, performance profiles, and how sure they are.

These are the figures that Agarwal et al. recommend for few seeds ("Deep Reinforcement Learning at the Edge of the
Statistical Precipice", arXiv 2108.13264, section 4). Intervals come of a stratified bootstrap: each resample draws, for
each task on its own, as many seeds as there are, with replacement. Percentiles of the resamples are the interval.

Shape legend: S seeds, K tasks, B resamples.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ziggurat.policies.actions import Floats

RESAMPLES = 2000
CONFIDENCE = 0.95


def interquartile_mean(scores: Floats) -> float:
    """Returns the mean of the middle half of all scores.

    A score on the border of the middle half counts with the share of it that lies inside, so that every number of
    scores has the same definition; scipy's trimmed mean, which rliable uses, drops whole scores only.
    """
    ordered = np.sort(np.asarray(scores, np.float64).ravel())
    count = len(ordered)
    edges = np.arange(count + 1) / count
    weights = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return float(weights @ ordered / weights.sum())


def stratified_bootstrap(
    scores_SK: Floats, statistic: Callable[[Floats], float], *, seed: int = 0, resamples: int = RESAMPLES
) -> Floats:
    """Returns the statistic of each resample, (B,); each task's seeds are drawn on their own."""
    draw = np.random.default_rng(seed)
    seeds, tasks = scores_SK.shape
    found = np.empty(resamples)
    for number in range(resamples):
        rows = draw.integers(0, seeds, (seeds, tasks))
        found[number] = statistic(scores_SK[rows, np.arange(tasks)])
    return found


def interval(samples: Floats, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns the percentiles that hold the middle ``confidence`` of the resamples."""
    low, high = np.quantile(samples, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def interquartile_interval(scores_SK: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Returns the interquartile mean over all seeds and tasks, and the ends of its interval."""
    return (interquartile_mean(scores_SK), *interval(stratified_bootstrap(scores_SK, interquartile_mean, seed=seed)))


def paired_difference(mine_SK: Floats, theirs_SK: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Returns the difference of two methods' interquartile means, and the ends of its interval.

    Row s of both belongs to the same seed, and both are resampled together: what a seed has in common cancels.
    """
    both = np.stack([mine_SK, theirs_SK], -1)
    draw = np.random.default_rng(seed)
    seeds, tasks = mine_SK.shape
    found = np.empty(RESAMPLES)
    for number in range(RESAMPLES):
        drawn = both[draw.integers(0, seeds, (seeds, tasks)), np.arange(tasks)]
        found[number] = interquartile_mean(drawn[..., 0]) - interquartile_mean(drawn[..., 1])
    return (interquartile_mean(mine_SK) - interquartile_mean(theirs_SK), *interval(found))


def performance_profile(scores_SK: Floats, levels: Floats) -> Floats:
    """Returns for each level the share of runs, over all seeds and tasks, whose score is above it."""
    return (np.asarray(scores_SK).ravel()[None] > levels[:, None]).mean(1)


def mean_interval(samples: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Returns the mean of one row of samples, and the ends of its bootstrap interval."""
    column = np.asarray(samples, np.float64)[:, None]
    return (float(column.mean()), *interval(stratified_bootstrap(column, lambda each: float(each.mean()), seed=seed)))
