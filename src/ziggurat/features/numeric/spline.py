"""The spline step: one number becomes several, the values of a basis of B-splines at it.

Every basis function is a step of its own, of which a feature has ``knots + degree - 1``; in each place they sum to 1. A
model that is linear in them is a smooth curve of the number. Outside the training values they stay as they are at the
ends (``SplineTransformer(extrapolation="constant")`` of scikit-learn), so that no row is given numbers that training
has not seen.

Source: de Boor (1978), "A practical guide to splines", the recursion over degrees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
import pydantic

from ziggurat.core.config import Config
from ziggurat.features.numeric.sample import NumericSample, Values

_LARGEST = 1e300
"""Ends of the range at most, so that distances of knots do not overflow."""


class SplineConfig(Config):
    """Several numbers: the values of B-splines, each of which is above 0 in a part of the range. It must be the last
    step."""

    name: Literal["spline"] = "spline"
    knots: int = pydantic.Field(default=5, ge=2, le=64)
    """Number of knots, the ends of the range included, between which the curve is a polynomial."""
    degree: int = pydantic.Field(default=3, ge=1, le=5)
    """Degree of the polynomials."""
    spacing: Literal["uniform", "quantile"] = "uniform"
    """``uniform``: knots at even distances. ``quantile``: with equally many training values between them; even
    distances if two of them are equal."""

    @property
    def numbers(self) -> int:
        """How many numbers a value becomes."""
        return self.knots + self.degree - 1


@dataclass(frozen=True)
class Spline:
    """x -> the basis function on ``degree + 2`` ascending knots, at x clipped to [low, high]."""

    knots: tuple[float, ...]
    low: float
    high: float

    @classmethod
    def fit(cls, config: SplineConfig, sample: NumericSample, index: int) -> Self:
        """Fits the basis function of this index, counted from 0."""
        inner = _knots(config, sample)
        before, after = inner[1] - inner[0], inner[-1] - inner[-2]
        steps = np.arange(1, config.degree + 1)
        knots = np.concatenate([inner[0] - before * steps[::-1], inner, inner[-1] + after * steps])
        chosen = knots[index : index + config.degree + 2]
        return cls(tuple(chosen.tolist()), float(inner[0]), float(inner[-1]))

    def apply(self, values: Values) -> Values:
        found = self._basis(np.clip(values, self.low, self.high))
        return np.where(np.isnan(values), np.nan, np.nan_to_num(found, nan=0.0))  # NaN is outside the knots

    @cached_property
    def _basis(self) -> Callable[[Values], Values]:
        from scipy.interpolate import BSpline  # slow to import and seldom needed

        return BSpline.basis_element(self.knots, extrapolate=False)


def _knots(config: SplineConfig, sample: NumericSample) -> Values:
    """Returns the knots within the range, strictly ascending."""
    low, high = np.clip(sample.ends or (0.0, 1.0), -_LARGEST, _LARGEST)
    if config.spacing == "quantile" and len(sample.finite):
        found = np.clip(np.quantile(sample.finite, np.linspace(0.0, 1.0, config.knots)), -_LARGEST, _LARGEST)
        if np.all(np.diff(found) > 0):
            return found
    even = np.linspace(low, high, config.knots)
    if np.all(np.diff(even) > 0):
        return even
    around = max(0.5, 1e-6 * abs(low))  # a constant, or values that are as good as equal
    return np.linspace(low - around, low + around, config.knots)
