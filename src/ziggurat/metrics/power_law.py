"""The power law between compute and loss, L(x) = a + b·x^(−c): fitted, with intervals, and told from noise.

Source of the form: Zhang et al., "Wukong", arXiv 2403.02545, whose y = α + β·x^γ of log-loss relative to a
baseline is the same curve, α and β divided by the baseline's log-loss and γ = −c.

Shape legend: N rungs, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from ziggurat.core.errors import DataError
from ziggurat.metrics.power_law_curve import LARGEST, SMALLEST, Floats, nearest_law
from ziggurat.metrics.power_law_curve import PowerLaw as PowerLaw
from ziggurat.metrics.size_noise import SizeNoise

CONSTANTS = 3
"""Of the law: that it comes near to as many points says nothing."""
LEVEL = 0.95
"""Of every interval."""
EDGE = 2.0
"""An exponent within this factor of the bounds that it is sought in is the bound's doing, not the points'."""
SEVERAL = 4
"""Rungs beyond as many leave residuals to estimate the noise from where each rung was trained once."""


@dataclass(frozen=True, slots=True)
class PowerLawFit:
    """A fitted law and how far to believe it.

    Attributes:
        law: the best curve.
        r2_log: share of the variance of the rungs' log loss that the law explains; nan where there is none, and through
            no more rungs than the law has constants.
        trend_p: chance that losses without any trend fall this steeply over log x; nan where the noise is unknown.
        draws: the law of each resample; empty where the noise is unknown.
    """

    law: PowerLaw
    r2_log: float
    trend_p: float
    draws: tuple[PowerLaw, ...] = ()

    def interval(self, name: str) -> tuple[float, float]:
        """The middle 95 % of ``floor``, ``scale`` or ``exponent`` over the resamples; nan without them."""
        return _middle(np.array([getattr(law, name) for law in self.draws], np.float64))

    def band(self, x: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Lower and upper edge of the middle 95 % of the resampled curves; nan without them."""
        points = np.asarray(x, np.float64)
        if not self.draws:
            return np.full(points.shape, np.nan), np.full(points.shape, np.nan)
        curves_RN = np.stack([law(points) for law in self.draws])
        low, high = np.quantile(curves_RN, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return low, high

    @property
    def flat(self) -> bool:
        """Whether no falling curve comes nearer to the points than their mean."""
        return self.law.scale == 0

    @property
    def determined(self) -> bool:
        """Whether the points say what the exponent is: it and its interval keep away from the bounds of the fit."""
        low, high = self.interval("exponent") if self.draws else (self.law.exponent,) * 2
        lowest, highest = min(low, self.law.exponent), max(high, self.law.exponent)
        return lowest > SMALLEST * EDGE and highest < LARGEST / EDGE

    @property
    def visible(self) -> bool | None:
        """Whether the loss falls beyond its noise and the exponent is determined; None where the noise is unknown."""
        if not self.draws:
            return None
        return self.trend_p < (1 - LEVEL) / 2 and self.determined

    @property
    def verdict(self) -> str:
        """One or two sentences for people."""
        if not self.draws:
            once = "Each rung was trained once and the rungs are few: the noise is unknown"
            if self.flat:
                return f"No fall visible: flat at {self.law.floor:.4f}. {once}. Train several seeds."
            return f"{once} and the curve may be chance. Train several seeds."
        low, high = self.interval("exponent")
        if self.trend_p >= (1 - LEVEL) / 2:
            flat = f" Flat at {self.law.floor:.4f}." if self.flat else ""
            return f"No power law visible: over these sizes the loss does not fall by more than its noise.{flat}"
        if low <= 0:
            return f"No power law visible: the exponent's interval, {low:.3g} to {high:.3g}, contains 0."
        if not self.determined:
            return (
                f"The loss falls with compute, but the exponent is not determined: 95 % of {low:.3g} to {high:.3g}, "
                f"and the fit looks no further than {SMALLEST:g} to {LARGEST:g}. Train more sizes or seeds."
            )
        return f"The loss falls along a power law: exponent {self.law.exponent:.3g}, 95 % of {low:.3g} to {high:.3g}."


def fit_power_law(
    x: Sequence[float], losses: Sequence[Sequence[float]], *, resamples: int = 1000, seed: int = 0
) -> PowerLawFit:
    """Fit the law to the mean losses of rungs, each weighed by its noise.

    Least squares over (a, log b, log c) with a ≥ 0, by scipy, from the best of 121 exponents, for each of which a and b
    follow linearly. The intervals are a bootstrap: seeds are drawn anew within each rung (their deviations widened by
    √(n/(n−1)), which a sample's own mean narrows them by); where every rung was trained once, residuals are.

    Args:
        x: compute of each rung, above 0, in any unit.
        losses: one loss a seed, for each rung.
        resamples: of the bootstrap.
        seed: of the bootstrap; the same seed, the same intervals.

    Raises:
        DataError: fewer than three different sizes, or a size or loss that is not positive and finite.
    """
    x_N = np.asarray(x, np.float64)
    noise = SizeNoise([np.asarray(rung, np.float64) for rung in losses])
    _check(x_N, noise)
    sigma_N = noise.errors()
    best = nearest_law(x_N, noise.means, sigma_N)
    residual_N = noise.means - best(x_N)
    if noise.freedom == 0 and len(x_N) > SEVERAL:
        freedom = len(x_N) - CONSTANTS
        noise = noise.with_deviation(math.sqrt(float((residual_N**2).sum()) / freedom), freedom)
    if noise.freedom == 0:
        return PowerLawFit(best, _r2_log(noise.means, best(x_N)), math.nan)
    random = np.random.default_rng(seed)
    centre_N = best(x_N) if noise.single else noise.means
    drawn_RN = np.stack([centre_N + noise.draw(random) for _ in range(resamples)])
    draws = tuple(nearest_law(x_N, mean_N, sigma_N, 1e-6) for mean_N in drawn_RN)
    return PowerLawFit(best, _r2_log(noise.means, best(x_N)), _trend_p(x_N, noise), draws)


def _check(x_N: Floats, noise: SizeNoise) -> None:
    sizes = len(np.unique(x_N))
    if sizes < CONSTANTS:
        raise DataError(
            f"a power law has three constants, and there are {len(x_N)} rungs of {sizes} different sizes",
            "train three sizes or more: --rungs 5",
        )
    if not (np.isfinite(x_N).all() and (x_N > 0).all()):
        raise DataError(f"sizes must be positive and finite, received {x_N.tolist()}", "leave out the rung")
    if not (np.isfinite(noise.means).all() and (noise.means > 0).all()):
        raise DataError(
            f"losses must be positive and finite, received means of {noise.means.tolist()}", "leave out the rung"
        )


def _trend_p(x_N: Floats, noise: SizeNoise) -> float:
    """One-sided t test of the slope of loss over log x against the runs' own noise: exact where there is no trend."""
    log_N = np.log(x_N)
    away_N = log_N - np.average(log_N, weights=noise.counts)
    sums = float((noise.counts * away_N**2).sum())
    slope = float((noise.counts * away_N) @ noise.means) / sums
    if noise.deviation == 0:
        return 0.0 if slope < 0 else 1.0
    return float(stats.t.cdf(slope / (noise.deviation / math.sqrt(sums)), noise.freedom))


def _r2_log(y_N: Floats, fitted_N: Floats) -> float:
    around = float(((np.log(y_N) - np.log(y_N).mean()) ** 2).sum())
    if len(y_N) <= CONSTANTS or around == 0:
        return math.nan
    return 1 - float(((np.log(y_N) - np.log(fitted_N)) ** 2).sum()) / around


def _middle(values_R: Floats) -> tuple[float, float]:
    if not len(values_R):
        return math.nan, math.nan
    low, high = np.quantile(values_R, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
