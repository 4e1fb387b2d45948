"""Fits the power law between compute and loss, L(x) = a + b·x^(−c), with confidence intervals and a test against noise.

Source of the form: Zhang et al., "Wukong", arXiv 2403.02545. Their y = α + β·x^γ, of log-loss relative to a baseline,
is the same curve with γ = −c and with α and β divided by the baseline's log-loss.

Shape legend: N model sizes, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from ziggurat.core.errors import DataError
from ziggurat.metrics.power_law_curve import LARGEST, SMALLEST, Floats, least_squares_law
from ziggurat.metrics.power_law_curve import PowerLaw as PowerLaw
from ziggurat.metrics.size_noise import SizeNoise

CONSTANTS = 3
"""Number of constants of the law: any three points are fitted well, so a good fit to three says nothing."""
LEVEL = 0.95
"""Confidence level of every interval."""
EDGE = 2.0
"""An exponent within this factor of the fit's bounds is determined by the bounds, not by the points."""
MAX_SIZES_WITHOUT_RESIDUALS = 4
"""With more model sizes than this, the noise is estimated from the fit's residuals if each size was trained once."""


@dataclass(frozen=True, slots=True)
class PowerLawFit:
    """A fitted law and how reliable it is.

    Attributes:
        law: the fitted curve.
        r2_log: share of the variance of the model sizes' log loss that the law explains; nan if there is no variance,
            or if there are no more sizes than the law has constants.
        trend_p: p-value: the chance that losses without a trend fall this steeply over log x; nan if the noise is
            unknown.
        resampled: the law fitted to each resample; empty if the noise is unknown.
    """

    law: PowerLaw
    r2_log: float
    trend_p: float
    resampled: tuple[PowerLaw, ...] = ()

    def interval(self, name: str) -> tuple[float, float]:
        """Returns the central 95 % of ``floor``, ``scale`` or ``exponent`` over the resamples; nan without any."""
        return _central_interval(np.array([getattr(law, name) for law in self.resampled], np.float64))

    def band(self, x: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Returns the lower and upper edge of the central 95 % of the resampled curves; nan without any."""
        points = np.asarray(x, np.float64)
        if not self.resampled:
            return np.full(points.shape, np.nan), np.full(points.shape, np.nan)
        curves_RN = np.stack([law(points) for law in self.resampled])
        low, high = np.quantile(curves_RN, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        return low, high

    @property
    def flat(self) -> bool:
        """Whether no decreasing curve fits the points better than their mean."""
        return self.law.scale == 0

    @property
    def determined(self) -> bool:
        """Whether the points determine the exponent: the exponent and its interval stay away from the fit's bounds."""
        low, high = self.interval("exponent") if self.resampled else (self.law.exponent,) * 2
        lowest, highest = min(low, self.law.exponent), max(high, self.law.exponent)
        return lowest > SMALLEST * EDGE and highest < LARGEST / EDGE

    @property
    def visible(self) -> bool | None:
        """Whether the loss falls by more than its noise and the exponent is determined; None if noise is unknown."""
        if not self.resampled:
            return None
        return self.trend_p < (1 - LEVEL) / 2 and self.determined

    @property
    def verdict(self) -> str:
        """The result in one or two sentences, for the report."""
        if not self.resampled:
            once = "Each model size was trained once and there are few sizes: the noise is unknown"
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
    """Fits the law to the mean losses of several model sizes, each weighted by its noise.

    The fit is a least-squares fit by scipy over (a, log b, log c) with a ≥ 0. It starts from the best of 121 exponents,
    for each of which a and b are the solution of a linear problem. The intervals are from a parametric bootstrap: the
    means are drawn again with the deviation that all sizes' seeds have in common, by Student's t distribution
    (:meth:`SizeNoise.draw <ziggurat.metrics.size_noise.SizeNoise.draw>`). In simulations, intervals for two to four
    seeds and four to six sizes cover the true constants in .92 to .97 of the cases. If every size was trained once, the
    fit's residuals take the seeds' place.

    Args:
        x: compute of each model size, above 0, in any unit.
        losses: for each model size, one loss per seed.
        resamples: number of resamples of the bootstrap.
        seed: random seed of the bootstrap; the same seed gives the same intervals.

    Raises:
        DataError: there are fewer than three different sizes, or a size or loss is not positive and finite.
    """
    x_N = np.asarray(x, np.float64)
    noise = SizeNoise([np.asarray(losses_of_size, np.float64) for losses_of_size in losses])
    _check(x_N, noise)
    sigma_N = noise.standard_errors()
    best = least_squares_law(x_N, noise.means, sigma_N)
    residual_N = noise.means - best(x_N)
    if noise.degrees_of_freedom == 0 and len(x_N) > MAX_SIZES_WITHOUT_RESIDUALS:
        degrees_of_freedom = len(x_N) - CONSTANTS
        noise = noise.with_deviation(math.sqrt(float((residual_N**2).sum()) / degrees_of_freedom), degrees_of_freedom)
    if noise.degrees_of_freedom == 0:
        return PowerLawFit(best, _r2_log(noise.means, best(x_N)), math.nan)
    random = np.random.default_rng(seed)
    centre_N = best(x_N) if noise.one_seed_each else noise.means
    drawn_RN = np.stack([centre_N + noise.draw(random) for _ in range(resamples)])
    resampled = tuple(least_squares_law(x_N, mean_N, sigma_N, 1e-6) for mean_N in drawn_RN)
    return PowerLawFit(best, _r2_log(noise.means, best(x_N)), _trend_p(x_N, noise), resampled)


def _check(x_N: Floats, noise: SizeNoise) -> None:
    sizes = len(np.unique(x_N))
    if sizes < CONSTANTS:
        raise DataError(
            f"a power law has three constants and needs as many model sizes; received {sizes} different sizes",
            "train three sizes or more: --sizes 5",
        )
    if not (np.isfinite(x_N).all() and (x_N > 0).all()):
        raise DataError(f"sizes must be positive and finite, received {x_N.tolist()}", "leave out this model size")
    if not (np.isfinite(noise.means).all() and (noise.means > 0).all()):
        raise DataError(
            f"losses must be positive and finite, received means of {noise.means.tolist()}",
            "leave out this model size",
        )


def _trend_p(x_N: Floats, noise: SizeNoise) -> float:
    """One-sided t-test of the slope of loss over log x against the runs' noise; returns the p-value.

    The test is exact under the hypothesis of no trend.
    """
    log_N = np.log(x_N)
    centred_N = log_N - np.average(log_N, weights=noise.counts)
    sum_of_squares = float((noise.counts * centred_N**2).sum())
    slope = float((noise.counts * centred_N) @ noise.means) / sum_of_squares
    if noise.deviation == 0:
        return 0.0 if slope < 0 else 1.0
    return float(stats.t.cdf(slope / (noise.deviation / math.sqrt(sum_of_squares)), noise.degrees_of_freedom))


def _r2_log(y_N: Floats, fitted_N: Floats) -> float:
    around = float(((np.log(y_N) - np.log(y_N).mean()) ** 2).sum())
    if len(y_N) <= CONSTANTS or around == 0:
        return math.nan
    return 1 - float(((np.log(y_N) - np.log(fitted_N)) ** 2).sum()) / around


def _central_interval(values_R: Floats) -> tuple[float, float]:
    if not len(values_R):
        return math.nan, math.nan
    low, high = np.quantile(values_R, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
