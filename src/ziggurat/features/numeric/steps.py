"""The steps of a numeric feature's chain: each is fitted on a sample of training values, then applied to any values.

Values are float64 with NaN for "missing", which only ``fill`` changes. A step's config stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
import pydantic

from ziggurat.core.config import Config
from ziggurat.features.numeric.moments import Moments

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NumericSample:
    """What a step is fitted on.

    Attributes:
        values: the sampled training values as the steps before have left them, NaN for missing.
        exact: moments of *all* training values, while no step before has changed them; then None.
    """

    values: Values
    exact: Moments | None = None

    @property
    def present(self) -> Values:
        return self.values[~np.isnan(self.values)]


class FillConfig(Config):
    """Give missing values a value."""

    name: Literal["fill"] = "fill"
    value: pydantic.FiniteFloat | Literal["mean", "median", "min"] = "median"
    """A number, or a figure of the training values (0 when every training value is missing)."""


@dataclass(frozen=True)
class Fill:
    """Missing -> ``value``."""

    value: float

    @classmethod
    def fit(cls, config: FillConfig, sample: NumericSample) -> Self:
        present = sample.present
        if isinstance(config.value, float | int):
            return cls(float(config.value))
        if len(present) == 0:
            return cls(0.0)
        match config.value:
            case "mean":
                return cls(sample.exact.mean if sample.exact else float(present.mean()))
            case "min":
                return cls(sample.exact.min if sample.exact else float(present.min()))
            case _:
                return cls(float(np.median(present)))

    def apply(self, values: Values) -> Values:
        return np.where(np.isnan(values), self.value, values)


class ClipConfig(Config):
    """Move values outside a range to its ends."""

    name: Literal["clip"] = "clip"
    low: pydantic.FiniteFloat | None = None
    """Lower end."""
    high: pydantic.FiniteFloat | None = None
    """Upper end."""
    low_quantile: float | None = pydantic.Field(default=None, ge=0.0, le=1.0)
    """Lower end as a quantile of the training values."""
    high_quantile: float | None = pydantic.Field(default=None, ge=0.0, le=1.0)
    """Upper end as a quantile of the training values."""

    @pydantic.model_validator(mode="after")
    def _one_end_each(self) -> Self:
        if self.low is not None and self.low_quantile is not None:
            raise ValueError("give low or low_quantile, not both")
        if self.high is not None and self.high_quantile is not None:
            raise ValueError("give high or high_quantile, not both")
        ends = (self.low, self.low_quantile, self.high, self.high_quantile)
        if all(end is None for end in ends):
            raise ValueError("give at least one of low, high, low_quantile, high_quantile")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low {self.low:g} lies above high {self.high:g}")
        return self


@dataclass(frozen=True)
class Clip:
    """x -> min(max(x, low), high); an end that is None is open."""

    low: float | None
    high: float | None

    @classmethod
    def fit(cls, config: ClipConfig, sample: NumericSample) -> Self:
        low, high, present = config.low, config.high, sample.present
        if config.low_quantile is not None and len(present):
            low = float(np.quantile(present, config.low_quantile))
        if config.high_quantile is not None and len(present):
            high = float(np.quantile(present, config.high_quantile))
        return cls(low, high if high is None or low is None else max(low, high))

    def apply(self, values: Values) -> Values:
        low, high = (-np.inf if self.low is None else self.low), (np.inf if self.high is None else self.high)
        return np.clip(values, low, high)


class LogConfig(Config):
    """Compress large values: sign(x) log(1 + |x|)."""

    name: Literal["log"] = "log"


@dataclass(frozen=True)
class Log:
    """x -> sign(x) log(1 + \\|x\\|)."""

    @classmethod
    def fit(cls, config: LogConfig, sample: NumericSample) -> Self:
        return cls()

    def apply(self, values: Values) -> Values:
        return np.copysign(np.log1p(np.abs(values)), values)


class StandardiseConfig(Config):
    """Shift and scale to mean 0 and standard deviation 1 over the training values."""

    name: Literal["standardise"] = "standardise"


@dataclass(frozen=True)
class Standardise:
    """x -> (x - mean) / std; a constant column becomes 0."""

    mean: float
    std: float

    @classmethod
    def fit(cls, config: StandardiseConfig, sample: NumericSample) -> Self:
        present = sample.present
        if len(present) == 0:
            return cls(0.0, 1.0)
        mean = sample.exact.mean if sample.exact else float(present.mean())
        std = sample.exact.std if sample.exact else float(present.std())
        if not np.isfinite(mean) or not np.isfinite(std):  # sums beyond 1e308
            return cls(0.0, 1.0)
        return cls(mean, 1.0 if std <= 1e-12 * max(1.0, abs(mean)) else std)

    def apply(self, values: Values) -> Values:
        return (values - self.mean) / self.std


class QuantileConfig(Config):
    """Spread values evenly over [0, 1] by their rank among the training values."""

    name: Literal["quantile"] = "quantile"
    bins: int = pydantic.Field(default=100, ge=1, le=65_536)
    """Intervals of equal training mass; values between their ends are interpolated linearly."""


@dataclass(frozen=True)
class Quantile:
    """x -> the share of training values below it, linear between ``knots``; a tie maps to the middle of its ranks."""

    knots: tuple[float, ...]
    levels: tuple[float, ...]

    @classmethod
    def fit(cls, config: QuantileConfig, sample: NumericSample) -> Self:
        present = sample.present
        if len(present) == 0:
            return cls((0.0,), (0.5,))
        probabilities = np.linspace(0.0, 1.0, config.bins + 1)
        quantiles = np.quantile(present, probabilities)
        knots, first, counts = np.unique(quantiles, return_index=True, return_counts=True)
        levels = (probabilities[first] + probabilities[first + counts - 1]) / 2
        return cls(tuple(knots.tolist()), tuple(levels.tolist()))

    def apply(self, values: Values) -> Values:
        return np.interp(values, self.knots, self.levels)


class BucketiseConfig(Config):
    """Turn the value into the number of its interval; must be the last step and makes the feature categorical."""

    name: Literal["bucketise"] = "bucketise"
    bins: int | None = pydantic.Field(default=None, ge=2, le=65_536)
    """This many intervals of equal training mass (fewer where values tie)."""
    boundaries: tuple[float, ...] | None = None
    """Interval boundaries, ascending; a value equal to a boundary belongs to the interval above."""

    @pydantic.model_validator(mode="after")
    def _bins_or_boundaries(self) -> Self:
        if (self.bins is None) == (self.boundaries is None):
            raise ValueError("give bins or boundaries, one of the two")
        if self.boundaries is not None:
            if not self.boundaries or not np.isfinite(self.boundaries).all():
                raise ValueError("boundaries must be finite numbers, at least one")
            if any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
                raise ValueError("boundaries must ascend")
        return self


@dataclass(frozen=True)
class Bucketise:
    """x -> 1 + the number of boundaries at or below x; row 0 is left to missing values."""

    boundaries: tuple[float, ...]

    @classmethod
    def fit(cls, config: BucketiseConfig, sample: NumericSample) -> Self:
        if config.boundaries is not None:
            return cls(config.boundaries)
        assert config.bins is not None
        present = sample.present
        if len(present) == 0:
            return cls(())
        inner = np.linspace(0.0, 1.0, config.bins + 1)[1:-1]
        boundaries = np.unique(np.quantile(present, inner))
        return cls(tuple(boundaries[boundaries > present.min()].tolist()))

    @property
    def rows(self) -> int:
        """Rows of the feature's table: missing, then one for each interval."""
        return 2 + len(self.boundaries)

    def apply(self, values: Values) -> Values:
        buckets = 1.0 + np.searchsorted(np.asarray(self.boundaries, np.float64), values, side="right")
        return np.where(np.isnan(values), 0.0, buckets)


StepConfig = Annotated[
    FillConfig | ClipConfig | LogConfig | StandardiseConfig | QuantileConfig | BucketiseConfig,
    pydantic.Field(discriminator="name"),
]
Step = Fill | Clip | Log | Standardise | Quantile | Bucketise


def fit_step(config: StepConfig, sample: NumericSample) -> Step:
    """The step that ``config`` asks for, fitted on ``sample``."""
    match config:
        case FillConfig():
            return Fill.fit(config, sample)
        case ClipConfig():
            return Clip.fit(config, sample)
        case LogConfig():
            return Log.fit(config, sample)
        case StandardiseConfig():
            return Standardise.fit(config, sample)
        case QuantileConfig():
            return Quantile.fit(config, sample)
        case BucketiseConfig():
            return Bucketise.fit(config, sample)
