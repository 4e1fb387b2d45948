"""The curve L(x) = a + b·x^(−c), and its least-squares fit to points.

Shape legend: N points, G exponents on a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from scipy import optimize

Floats = npt.NDArray[np.float64]

SMALLEST, LARGEST = 1e-5, 10.0
"""Bounds of the fitted exponent; outside them the curve is practically a logarithm or a step."""

_GRID_G = np.geomspace(SMALLEST, LARGEST, 121)


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """x ↦ floor + scale · x^(−exponent), the literature's a, b and c. With exponent 0 the curve is flat."""

    floor: float
    scale: float
    exponent: float

    def __call__(self, x: npt.ArrayLike) -> Floats:
        return self.floor + self.scale * np.asarray(x, np.float64) ** -self.exponent


def least_squares_law(x_N: Floats, y_N: Floats, sigma_N: Floats, tolerance: float = 1e-12) -> PowerLaw:
    """Fits the law by constrained least squares; flat if no decreasing curve fits better than the mean.

    Args:
        x_N: compute of each point, above 0.
        y_N: loss of each point.
        sigma_N: standard error of each loss.
        tolerance: relative tolerance at which the optimiser stops.
    """
    middle = math.exp(float(np.log(x_N).mean()))
    u_N = x_N / middle
    floor, height, exponent = _profile(u_N, y_N, sigma_N)
    unit_N = sigma_N / sigma_N.mean() * (float(np.ptp(y_N)) or 1.0)
    if height <= 0:
        return PowerLaw(float(np.average(y_N, weights=sigma_N**-2)), 0.0, 0.0)

    def residuals(theta: Floats) -> Floats:
        return (theta[0] + np.exp(theta[1] - np.exp(theta[2]) * np.log(u_N)) - y_N) / unit_N

    def jacobian(theta: Floats) -> Floats:
        fall_N = np.exp(theta[1] - np.exp(theta[2]) * np.log(u_N))
        return np.stack([np.ones_like(u_N), fall_N, -fall_N * np.exp(theta[2]) * np.log(u_N)], axis=1) / unit_N[:, None]

    bounds = ([0.0, -np.inf, math.log(SMALLEST)], [np.inf, np.inf, math.log(LARGEST)])
    start = np.clip([floor, math.log(height), math.log(exponent)], bounds[0], bounds[1])
    found = optimize.least_squares(
        residuals, start, cast("Any", jacobian), bounds=bounds, ftol=tolerance, xtol=tolerance, gtol=tolerance
    )
    floor, height, exponent = float(found.x[0]), math.exp(found.x[1]), math.exp(found.x[2])
    return PowerLaw(floor if floor > 1e-9 * float(y_N.mean()) else 0.0, height * middle**exponent, exponent)


def _profile(u_N: Floats, y_N: Floats, sigma_N: Floats) -> tuple[float, float, float]:
    """Returns floor ≥ 0, height ≥ 0 and exponent of the least-squares fit among the exponents of the grid."""
    w_N = sigma_N**-2 / (sigma_N**-2).sum()
    basis_GN = u_N ** -_GRID_G[:, None]
    mean_G, mean_y = basis_GN @ w_N, float(y_N @ w_N)
    spread_G = (basis_GN - mean_G[:, None]) ** 2 @ w_N
    height_G = ((basis_GN - mean_G[:, None]) * (y_N - mean_y)) @ w_N / spread_G
    floor_G = mean_y - height_G * mean_G
    through_zero_G = (basis_GN * y_N) @ w_N / (basis_GN**2 @ w_N)
    height_G = np.where(floor_G < 0, through_zero_G, height_G)
    floor_G = np.maximum(floor_G, 0)
    flat_G = height_G * np.ptp(basis_GN, axis=1) <= 1e-12 * mean_y  # only rounding error: nothing falls
    height_G[flat_G], floor_G[flat_G] = 0, mean_y
    loss_G = (floor_G[:, None] + height_G[:, None] * basis_GN - y_N) ** 2 @ w_N
    best = int(loss_G.argmin())
    return float(floor_G[best]), float(height_G[best]), float(_GRID_G[best])
