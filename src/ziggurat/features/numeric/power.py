"""The power step: Yeo & Johnson's transformation with the exponent of greatest likelihood, then standardised.

Source: Yeo & Johnson (2000), "A new family of power transformations to improve normality or symmetry", Biometrika 87.
As scikit-learn's ``PowerTransformer``, but for the exponent, which is sought in [-5, 5] among those that do not make a
constant of the column by rounding, as they do where values are far from 0 compared with their spread, such as years.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from ziggurat.core.config import Config
from ziggurat.features.numeric.sample import NumericSample, Values

_BOUNDS = (-5.0, 5.0)
_LEAST_SPREAD = 1e-7
"""The least deviation of transformed values, as a share of the greatest of them: half of a float's digits are left."""


class PowerConfig(Config):
    """Makes values more symmetric by the power of Yeo and Johnson that fits best, then standardises them."""

    name: Literal["power"] = "power"


@dataclass(frozen=True)
class Power:
    """x -> (yj(x) - mean) / std, with yj(x) = ((1 + x)^exponent - 1) / exponent for x >= 0, and
    -((1 - x)^(2 - exponent) - 1) / (2 - exponent) below, or the logarithms that these become in the limit."""

    exponent: float
    mean: float
    std: float

    @classmethod
    def fit(cls, config: PowerConfig, sample: NumericSample) -> Self:
        finite = sample.finite
        if len(finite) == 0:
            return cls(1.0, 0.0, 1.0)
        if finite.min() == finite.max():
            return cls(1.0, float(yeo_johnson(finite[:1], 1.0)[0]), 1.0)
        exponent = _most_likely(finite)
        transformed = yeo_johnson(finite, exponent)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = float(transformed.mean()), float(transformed.std())
        if not np.isfinite(mean) or not np.isfinite(std):
            return cls(exponent, 0.0, 1.0)
        return cls(exponent, mean, 1.0 if std <= 1e-12 * max(1.0, abs(mean)) else std)

    def apply(self, values: Values) -> Values:
        with np.errstate(over="ignore"):
            return (yeo_johnson(values, self.exponent) - self.mean) / self.std


def yeo_johnson(values: Values, exponent: float) -> Values:
    """Returns Yeo & Johnson's transformation of values; NaN stays NaN."""
    negative = values < 0
    power = np.where(negative, 2.0 - exponent, exponent)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        logs = np.log1p(np.abs(values))
        sizes = np.where(power == 0.0, logs, np.expm1(power * logs) / power)
    return np.where(negative, -sizes, sizes)


def _most_likely(values: Values) -> float:
    """Returns the exponent of greatest likelihood, as eq. 3.1 of the paper has it."""
    signed_logs = float(np.sum(np.copysign(np.log1p(np.abs(values)), values)))

    def loss(exponent: float) -> float:
        transformed = yeo_johnson(values, exponent)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            variance = float(transformed.var())
            if not variance > (_LEAST_SPREAD * np.abs(transformed).max()) ** 2:
                return 1e300
            log_variance = float(np.log(variance))
        found = 0.5 * len(values) * log_variance - (exponent - 1.0) * signed_logs
        return found if np.isfinite(found) else 1e300  # overflow, or a constant by rounding: no exponent to choose

    from scipy.optimize import minimize_scalar  # slow to import and seldom needed

    result = minimize_scalar(loss, bounds=_BOUNDS, method="bounded", options={"xatol": 1e-8})
    return float(result.x) if result.fun < loss(1.0) else 1.0  # with 1, values stay what they are
