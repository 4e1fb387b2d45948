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
    return float(interquartile_means(np.asarray(scores, np.float64)[None])[0])


def interquartile_means(scores_BSK: Floats) -> Floats:
    """Returns the interquartile mean of each resample, (B,)."""
    ordered = np.sort(scores_BSK.reshape(len(scores_BSK), -1), -1)
    edges = np.arange(ordered.shape[1] + 1) / ordered.shape[1]
    weights = np.clip(np.minimum(edges[1:], 0.75) - np.maximum(edges[:-1], 0.25), 0, None)
    return ordered @ weights / weights.sum()


def stratified_bootstrap(
    scores_SK: Floats, statistic: Callable[[Floats], Floats], *, seed: int = 0, resamples: int = RESAMPLES
) -> Floats:
    """Returns the statistic of each resample, (B,); each task's seeds are drawn on their own.

    Args:
        scores_SK: the scores; further dimensions are resampled together.
        statistic: resamples (B, S, K, …) -> (B,).
        seed: seeds the draw.
        resamples: B.
    """
    seeds, tasks = scores_SK.shape[:2]
    rows = np.random.default_rng(seed).integers(0, seeds, (resamples, seeds, tasks))
    return statistic(scores_SK[rows, np.arange(tasks)])


def interval(samples: Floats, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns the percentiles that hold the middle ``confidence`` of the resamples."""
    low, high = np.quantile(samples, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def interquartile_interval(scores_SK: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Returns the interquartile mean over all seeds and tasks, and the ends of its interval."""
    return (interquartile_mean(scores_SK), *interval(stratified_bootstrap(scores_SK, interquartile_means, seed=seed)))


def paired_difference(mine_SK: Floats, theirs_SK: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Returns the difference of two methods' interquartile means, and the ends of its interval.

    Row s of both belongs to the same seed, and both are resampled together: what a seed has in common cancels.
    """
    both = np.stack([mine_SK, theirs_SK], -1)
    found = stratified_bootstrap(
        both, lambda each: interquartile_means(each[..., 0]) - interquartile_means(each[..., 1]), seed=seed
    )
    return (interquartile_mean(mine_SK) - interquartile_mean(theirs_SK), *interval(found))


def performance_profile(scores_SK: Floats, levels: Floats) -> Floats:
    """Returns for each level the share of runs, over all seeds and tasks, whose score is above it."""
    return (np.asarray(scores_SK).ravel()[None] > levels[:, None]).mean(1)


def mean_interval(samples: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Returns the mean of one row of samples, and the ends of its bootstrap interval."""
    column = np.asarray(samples, np.float64)[:, None]
    return (float(column.mean()), *interval(stratified_bootstrap(column, lambda each: each.mean((1, 2)), seed=seed)))
