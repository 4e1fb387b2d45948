"""The fit of the power law: points with known constants, noise without a trend, and too few model sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from ziggurat.core.errors import DataError
from ziggurat.metrics.power_law import PowerLaw, fit_power_law
from ziggurat.metrics.power_law_curve import LARGEST
from ziggurat.metrics.size_noise import SizeNoise

SIZES = np.geomspace(1e5, 3e7, 6)


def noisy_losses(law: PowerLaw, noise: float, seeds: int, random_seed: int = 0) -> list[list[float]]:
    random = np.random.default_rng(random_seed)
    return [(float(law(size)) + random.normal(0, noise, seeds)).tolist() for size in SIZES]


@pytest.mark.parametrize("exponent", [0.05, 0.2, 0.6])
@pytest.mark.parametrize("floor", [0.0, 0.4])
def test_exact_points_recover_the_constants(exponent: float, floor: float) -> None:
    law = PowerLaw(floor, 0.05 * SIZES[0] ** exponent, exponent)
    found = fit_power_law(SIZES, [[float(law(size))] for size in SIZES], resamples=20)
    assert found.law.exponent == pytest.approx(exponent, rel=1e-3)
    assert found.law.floor == pytest.approx(floor, abs=1e-4)
    assert found.law.scale == pytest.approx(law.scale, rel=1e-2)
    assert found.r2_log == pytest.approx(1, abs=1e-9)
    assert found.visible


def test_intervals_cover_the_true_constants_as_often_as_they_say() -> None:
    """200 laws with two to four seeds of four to six sizes: 95 % intervals contain the constants of .90 to .98 of them.

    Intervals from each size's own deviations contain .78 to .90.
    """
    random = np.random.default_rng(11)
    covered = dict.fromkeys(("floor", "scale", "exponent"), 0)
    within_band = 0
    for number in range(200):
        sizes = np.geomspace(1e5, 3e7, 4 + number % 3)
        exponent = (0.1, 0.3, 0.6)[number % 7 % 3]
        law = PowerLaw(0.4, 0.05 * sizes[0] ** exponent, exponent)
        losses = [(float(law(size)) + random.normal(0, 4e-4, 2 + number % 5 % 3)).tolist() for size in sizes]
        found = fit_power_law(sizes, losses, resamples=80, seed=number)
        for name in covered:
            low, high = found.interval(name)
            covered[name] += low <= getattr(law, name) <= high
        low, high = found.band(sizes[-1:])
        within_band += bool(low[0] <= law(sizes[-1:])[0] <= high[0])
    for count in (*covered.values(), within_band):
        assert 0.90 <= count / 200 <= 0.98


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_noise_without_a_trend_is_no_power_law(seeds: int) -> None:
    found = [fit_power_law(SIZES, noisy_losses(PowerLaw(0.4, 0, 0), 1e-3, seeds, d), resamples=60) for d in range(20)]
    assert sum(fit.visible is True for fit in found) <= 1
    assert sum("does not fall by more than its noise" in fit.verdict for fit in found) >= 18


def test_a_rising_loss_is_no_power_law() -> None:
    found = fit_power_law(SIZES, [[0.4 + 0.01 * k, 0.401 + 0.01 * k] for k in range(6)], resamples=50)
    assert (found.law.scale, found.law.exponent) == (0.0, 0.0)
    assert found.law.floor == pytest.approx(0.4255)
    assert found.trend_p > 0.999
    assert found.visible is False


def test_equal_losses_give_a_flat_law_without_r2() -> None:
    found = fit_power_law(SIZES, [[0.5, 0.5]] * 6, resamples=20)
    assert found.law == PowerLaw(0.5, 0.0, 0.0)
    assert math.isnan(found.r2_log)
    assert found.visible is False


def test_noisy_model_sizes_have_less_weight() -> None:
    """The last model size is off by far more than the others, and its seeds differ by as much."""
    law = PowerLaw(0.4, 0.05 * SIZES[0] ** 0.3, 0.3)
    losses = [[float(law(size)) + delta for delta in (-1e-5, 0, 1e-5)] for size in SIZES]
    losses[-1] = [losses[-1][1] + delta for delta in (-0.005, 0.005, 0.015)]
    found = fit_power_law(SIZES, losses, resamples=20)
    unweighted = fit_power_law(SIZES, [[float(np.mean(each))] for each in losses], resamples=20)
    assert abs(found.law.exponent - 0.3) < abs(unweighted.law.exponent - 0.3) / 2


def test_noise_is_unknown_with_few_sizes_and_one_seed_each() -> None:
    found = fit_power_law(SIZES[:3], [[0.5], [0.45], [0.43]])
    assert found.visible is None
    assert found.law(SIZES[:3]) == pytest.approx([0.5, 0.45, 0.43], abs=1e-6)
    assert all(map(math.isnan, (*found.interval("exponent"), *found.band(SIZES)[0])))
    assert "Train several seeds" in found.verdict


def test_an_interval_that_reaches_the_bounds_leaves_the_exponent_undetermined() -> None:
    """A step after the first size: every large enough exponent fits it, and some resamples use the largest allowed."""
    once = [[0.6], [0.5003], [0.4998], [0.5002], [0.4999], [0.5001]]
    twice = [[mean - 0.02, mean + 0.02] for mean in (0.6, 0.5, 0.5, 0.5, 0.5, 0.5)]
    for losses in (once, twice):
        found = fit_power_law(SIZES, losses, resamples=200)
        assert found.trend_p < 0.025
        low, high = found.interval("exponent")
        assert high > LARGEST / 2
        assert low > 0
        assert (found.determined, found.visible) == (False, False)
        assert found.verdict.startswith(
            f"The loss falls with compute, but the exponent is not determined: 95 % of {low:.3g} to {high:.3g}"
        )


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_curve_through_three_points_has_no_r2(seeds: int) -> None:
    found = fit_power_law(SIZES[:3], [[0.5] * seeds, [0.45] * seeds, [0.43] * seeds], resamples=20)
    assert math.isnan(found.r2_log)
    assert fit_power_law(SIZES[:4], [[0.5], [0.45], [0.43], [0.42]]).r2_log == pytest.approx(1, abs=0.01)


def test_the_verdict_says_that_a_fit_is_flat() -> None:
    found = fit_power_law(SIZES[:3], [[0.64], [0.6411], [0.6422]])
    assert found.flat
    assert found.verdict.startswith("No fall visible: flat at 0.6411. Each model size was trained once")
    seeds = fit_power_law(SIZES[:3], [[0.6399, 0.6401], [0.641, 0.6412], [0.6421, 0.6423]], resamples=20)
    assert seeds.verdict.endswith("does not fall by more than its noise. Flat at 0.6411.")


def test_the_same_seed_gives_the_same_intervals() -> None:
    losses = noisy_losses(PowerLaw(0.4, 1.0, 0.25), 1e-3, 3)
    one, two, other = (fit_power_law(SIZES, losses, resamples=50, seed=seed) for seed in (1, 1, 2))
    assert one == two
    assert other.law == one.law
    assert other.interval("exponent") != one.interval("exponent")


def test_the_unit_of_compute_changes_only_the_scale() -> None:
    losses = noisy_losses(PowerLaw(0.4, 1.0, 0.25), 1e-4, 3)
    flop, gflop = (fit_power_law(SIZES / unit, losses, resamples=20) for unit in (1.0, 1e9))
    assert gflop.law.exponent == pytest.approx(flop.law.exponent, rel=1e-6)
    assert gflop.law.floor == pytest.approx(flop.law.floor, rel=1e-6)
    assert gflop.law.scale == pytest.approx(flop.law.scale * 1e9**-flop.law.exponent, rel=1e-5)


@pytest.mark.parametrize(
    ("sizes", "losses", "message"),
    [
        ([1e5, 1e6], [[0.5], [0.4]], "needs as many model sizes; received 2 different sizes"),
        ([1e5, 1e6, 1e6, 1e6], [[0.5], [0.4], [0.4], [0.3]], "needs as many model sizes; received 2 different sizes"),
        ([0.0, 1e5, 1e6], [[0.5], [0.4], [0.3]], "sizes must be positive and finite"),
        ([1e4, 1e5, 1e6], [[0.5], [math.nan], [0.3]], "losses must be positive and finite"),
    ],
)
def test_unusable_points_are_rejected(sizes: list[float], losses: list[list[float]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        fit_power_law(sizes, losses)


def test_standard_errors_match_hand_computed_ones() -> None:
    noise = SizeNoise([np.array([1.0, 3.0]), np.array([5.0, 5.0, 5.0])])
    assert (noise.degrees_of_freedom, noise.deviation) == (3, pytest.approx(math.sqrt(2 / 3)))
    expected = [math.sqrt((2 + 4 * 2 / 3) / (1 + 4) / 2), math.sqrt((0 + 4 * 2 / 3) / (2 + 4) / 3)]
    assert noise.standard_errors() == pytest.approx(expected)


def test_draws_follow_students_t_distribution() -> None:
    """Quantiles of the deviations from each mean: the pooled deviation's standard error times t's quantiles."""
    noise = SizeNoise([np.array([1.0, 3.0]), np.array([5.0, 5.0, 5.0])])
    random = np.random.default_rng(0)
    draws = np.stack([noise.draw(random) for _ in range(40_000)])
    expected = np.outer(stats.t.ppf([0.05, 0.5, 0.95], 3), noise.deviation / np.sqrt([2, 3]))
    assert np.quantile(draws, [0.05, 0.5, 0.95], axis=0) == pytest.approx(expected, abs=0.03)
    assert abs(np.corrcoef(draws.T)[0, 1]) < 0.05
