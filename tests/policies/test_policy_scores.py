"""Interquartile means, intervals and profiles of scores over tasks and seeds."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import trim_mean

from ziggurat.policies.scores import (
    interquartile_interval,
    interquartile_mean,
    interval,
    mean_interval,
    paired_difference,
    performance_profile,
    stratified_bootstrap,
)


def test_the_interquartile_mean_is_the_trimmed_mean_of_whole_quarters() -> None:
    scores = np.random.default_rng(0).normal(size=(8, 5))
    assert interquartile_mean(scores) == pytest.approx(trim_mean(scores.ravel(), 0.25))
    assert interquartile_mean(np.array([5.0])) == 5.0
    # Of three scores, the middle one counts whole and half of those next to the borders lie outside.
    assert interquartile_mean(np.array([0.0, 3.0, 9.0])) == pytest.approx((0 / 12 + 3 / 3 + 9 / 12) / 0.5)


def test_resamples_keep_tasks_apart() -> None:
    scores = np.array([[0.0, 100.0], [1.0, 101.0], [2.0, 102.0]])
    found = stratified_bootstrap(scores, lambda each: each[..., 1].min(1) - each[..., 0].max(1), resamples=300)
    assert found.min() >= 98.0
    assert len(set(found.tolist())) > 2


def test_each_task_draws_seeds_of_its_own() -> None:
    scores = np.repeat(np.arange(5.0)[:, None], 2, 1)
    apart = stratified_bootstrap(scores, lambda each: np.abs(each[..., 0] - each[..., 1]).max(1), resamples=200)
    assert (apart > 0).mean() > 0.9
    whole = stratified_bootstrap(np.stack([scores, -scores], -1), lambda each: each.sum(-1).any((1, 2)), resamples=50)
    assert not whole.any()  # further dimensions are drawn together


def test_intervals_hold_the_true_mean_about_as_often_as_they_say() -> None:
    draw = np.random.default_rng(3)
    held = 0
    for number in range(60):
        samples = draw.normal(size=(20, 1))
        low, high = interval(stratified_bootstrap(samples, lambda each: each.mean((1, 2)), seed=number, resamples=400))
        held += low <= 0 <= high
    assert 48 <= held <= 60


def test_pairs_cancel_what_seeds_have_in_common() -> None:
    draw = np.random.default_rng(0)
    common = draw.normal(size=(5, 4)) * 10
    ahead = paired_difference(common + 0.5, common)
    assert ahead == pytest.approx((0.5, 0.5, 0.5))
    low, high = interquartile_interval(common)[1:]
    assert high - low > 2


def test_profiles_are_shares_of_runs() -> None:
    scores = np.array([[0.1, 0.5], [0.9, 0.5]])
    assert performance_profile(scores, np.array([0.0, 0.1, 0.5, 0.89, 1.0])).tolist() == [1.0, 0.75, 0.25, 0.25, 0.0]
    assert mean_interval(np.array([2.0, 2.0])) == (2.0, 2.0, 2.0)
