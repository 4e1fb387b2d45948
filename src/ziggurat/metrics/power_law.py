"""The power law between compute and loss, L(x) = a + b·x^(−c): fitted, with intervals, and told from noise.

Source of the form: Zhang et al., "Wukong", arXiv 2403.02545, whose y = α + β·x^γ of log-loss relative to a
baseline is the same curve, α and β divided by the baseline's log-loss and γ = −c.

Shape legend: N rungs, R resamples, G exponents on a grid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from ziggurat.core.errors import DataError
from ziggurat.metrics.rung_noise import RungNoise

Floats = npt.NDArray[np.float64]

SMALLEST, LARGEST = 1e-5, 10.0
"""Bounds of the exponent: outside of them the curve is a logarithm or a step."""
LEVEL = 0.95
"""Of every interval."""
SEVERAL = 4
"""Rungs beyond as many leave residuals to estimate the noise from where each rung was trained once."""

_GRID_G = np.geomspace(SMALLEST, LARGEST, 121)


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """x ↦ floor + scale · x^(−exponent); the field's a, b and c. With exponent 0 it is flat."""

    floor: float
    scale: float
    exponent: float

    def __call__(self, x: npt.ArrayLike) -> Floats:
        return self.floor + self.scale * np.asarray(x, np.float64) ** -self.exponent


@dataclass(frozen=True, slots=True)
class PowerLawFit:
    """A fitted law and how far to believe it.

    Attributes:
        law: the best curve.
        r2_log: share of the variance of the rungs' log loss that the law explains; nan where there is none.
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
    def visible(self) -> bool | None:
        """Whether the loss falls with compute beyond its noise; None where the noise is unknown."""
        if not self.draws:
            return None
        return self.trend_p < (1 - LEVEL) / 2 and self.interval("exponent")[0] > 0

    @property
    def verdict(self) -> str:
        """One sentence for people."""
        if self.visible is None:
            return (
                "Each rung was trained once and the rungs are few: the noise is unknown and the curve may be chance. "
                "Train several seeds."
            )
        low, high = self.interval("exponent")
        if self.visible:
            return (
                f"The loss falls along a power law: exponent {self.law.exponent:.3g}, 95 % of {low:.3g} to {high:.3g}."
            )
        if self.trend_p >= (1 - LEVEL) / 2:
            return "No power law visible: over these sizes the loss does not fall by more than its noise."
        return f"No power law visible: the exponent's interval, {low:.3g} to {high:.3g}, contains 0."


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
    noise = RungNoise([np.asarray(rung, np.float64) for rung in losses])
    _check(x_N, noise)
    sigma_N = noise.errors()
    best = _fit(x_N, noise.means, sigma_N)
    residual_N = noise.means - best(x_N)
    if noise.freedom == 0 and len(x_N) > SEVERAL:
        noise = noise.with_deviation(math.sqrt(float((residual_N**2).sum()) / (len(x_N) - 3)), len(x_N) - 3)
    if noise.freedom == 0:
        return PowerLawFit(best, _r2_log(noise.means, best(x_N)), math.nan)
    random = np.random.default_rng(seed)
    centre_N = best(x_N) if noise.single else noise.means
    drawn_RN = np.stack([centre_N + noise.draw(random) for _ in range(resamples)])
    draws = tuple(_fit(x_N, mean_N, sigma_N, 1e-6) for mean_N in drawn_RN)
    return PowerLawFit(best, _r2_log(noise.means, best(x_N)), _trend_p(x_N, noise), draws)


def _check(x_N: Floats, noise: RungNoise) -> None:
    sizes = len(np.unique(x_N))
    if sizes < 3:
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


def _fit(x_N: Floats, y_N: Floats, sigma_N: Floats, exact: float = 1e-12) -> PowerLaw:
    """The constrained least-squares law; flat where no falling curve is nearer than the mean."""
    middle = math.exp(float(np.log(x_N).mean()))
    u_N = x_N / middle
    floor, height, exponent = _profile(u_N, y_N, sigma_N)
    unit_N = sigma_N / sigma_N.mean() * (float(np.ptp(y_N)) or 1.0)
    if height <= 0:
        return PowerLaw(float(np.average(y_N, weights=sigma_N**-2)), 0.0, 0.0)

    def residuals(theta: Floats) -> Floats:
        return (theta[0] + np.exp(theta[1] - np.exp(theta[2]) * np.log(u_N)) - y_N) / unit_N

    def slopes(theta: Floats) -> Floats:
        fall_N = np.exp(theta[1] - np.exp(theta[2]) * np.log(u_N))
        return np.stack([np.ones_like(u_N), fall_N, -fall_N * np.exp(theta[2]) * np.log(u_N)], axis=1) / unit_N[:, None]

    bounds = ([0.0, -np.inf, math.log(SMALLEST)], [np.inf, np.inf, math.log(LARGEST)])
    start = np.clip([floor, math.log(height), math.log(exponent)], bounds[0], bounds[1])
    found = optimize.least_squares(
        residuals, start, cast("Any", slopes), bounds=bounds, ftol=exact, xtol=exact, gtol=exact
    )
    floor, height, exponent = float(found.x[0]), math.exp(found.x[1]), math.exp(found.x[2])
    return PowerLaw(floor if floor > 1e-9 * float(y_N.mean()) else 0.0, height * middle**exponent, exponent)


def _profile(u_N: Floats, y_N: Floats, sigma_N: Floats) -> tuple[float, float, float]:
    """Of all exponents on the grid the one whose best floor ≥ 0 and height ≥ 0 come nearest, with them."""
    w_N = sigma_N**-2 / (sigma_N**-2).sum()
    basis_GN = u_N ** -_GRID_G[:, None]
    mean_G, mean_y = basis_GN @ w_N, float(y_N @ w_N)
    spread_G = (basis_GN - mean_G[:, None]) ** 2 @ w_N
    height_G = ((basis_GN - mean_G[:, None]) * (y_N - mean_y)) @ w_N / spread_G
    floor_G = mean_y - height_G * mean_G
    through_zero_G = (basis_GN * y_N) @ w_N / (basis_GN**2 @ w_N)
    height_G = np.where(floor_G < 0, through_zero_G, height_G)
    floor_G = np.maximum(floor_G, 0)
    flat_G = height_G * np.ptp(basis_GN, axis=1) <= 1e-12 * mean_y  # of rounding, where nothing falls
    height_G[flat_G], floor_G[flat_G] = 0, mean_y
    loss_G = (floor_G[:, None] + height_G[:, None] * basis_GN - y_N) ** 2 @ w_N
    best = int(loss_G.argmin())
    return float(floor_G[best]), float(height_G[best]), float(_GRID_G[best])


def _trend_p(x_N: Floats, noise: RungNoise) -> float:
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
    return 1 - float(((np.log(y_N) - np.log(fitted_N)) ** 2).sum()) / around if around > 0 else math.nan


def _middle(values_R: Floats) -> tuple[float, float]:
    if not len(values_R):
        return math.nan, math.nan
    low, high = np.quantile(values_R, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
