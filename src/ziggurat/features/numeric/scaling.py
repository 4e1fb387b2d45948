"""Steps that shift and scale by figures of the training values other than mean and deviation.

Each equals scikit-learn's transformer of the same name (``MinMaxScaler``, ``MaxAbsScaler``, ``RobustScaler``) on values
without a missing one; a column without any spread is shifted, not scaled. Values outside the range of the training
values are mapped by the same line, to numbers outside its ends; a ``clip`` step changes that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from ziggurat.core.config import Config
from ziggurat.features.numeric.sample import NumericSample, Values


class MinMaxConfig(Config):
    """Maps the least training value to 0 and the greatest to 1; values beyond them are below 0 or above 1."""

    name: Literal["min_max"] = "min_max"


@dataclass(frozen=True)
class MinMax:
    """x -> (x - low) / range; a constant column becomes 0."""

    low: float
    range: float

    @classmethod
    def fit(cls, config: MinMaxConfig, sample: NumericSample) -> Self:
        ends = sample.ends
        if ends is None:
            return cls(0.0, 1.0)
        low, high = ends
        with np.errstate(over="ignore"):
            spread = float(np.float64(high) - np.float64(low))
        return cls(low, spread) if 0.0 < spread < np.inf else cls(low if spread == 0.0 else 0.0, 1.0)

    def apply(self, values: Values) -> Values:
        return _over(values, self.low, self.range)


class MaxAbsConfig(Config):
    """Divides by the greatest absolute training value, so that 0 stays 0 and signs are kept."""

    name: Literal["max_abs"] = "max_abs"


@dataclass(frozen=True)
class MaxAbs:
    """x -> x / max \\|x\\|; a column of zeros stays 0."""

    size: float

    @classmethod
    def fit(cls, config: MaxAbsConfig, sample: NumericSample) -> Self:
        ends = sample.ends
        size = 0.0 if ends is None else max(map(abs, ends))
        return cls(size or 1.0)

    def apply(self, values: Values) -> Values:
        return _over(values, 0.0, self.size)


class RobustConfig(Config):
    """Shifts by the median and scales by the distance of the quartiles, which a few large values do not change."""

    name: Literal["robust"] = "robust"


@dataclass(frozen=True)
class Robust:
    """x -> (x - median) / (third quartile - first quartile); divided by 1 if the quartiles are equal."""

    median: float
    range: float

    @classmethod
    def fit(cls, config: RobustConfig, sample: NumericSample) -> Self:
        finite = sample.finite
        if len(finite) == 0:
            return cls(0.0, 1.0)
        with np.errstate(over="ignore"):
            first, median, third = np.quantile(finite, (0.25, 0.5, 0.75))
            spread = float(third - first)
        return cls(float(median), spread if 0.0 < spread < np.inf else 1.0)

    def apply(self, values: Values) -> Values:
        return _over(values, self.median, self.range)


def _over(values: Values, shift: float, scale: float) -> Values:
    with np.errstate(over="ignore"):  # the chain clips infinite results to the range of float32
        return (values - shift) / scale
