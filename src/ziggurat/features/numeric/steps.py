"""The steps of a numeric feature's chain: each is fitted on a sample of training values, then applied to any values.

Values are float64 with NaN for missing values, which only ``fill`` and ``bucketise`` replace. Each step follows its
config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import pydantic

from ziggurat.core.config import Config
from ziggurat.features.numeric.bins import BinStrategy
from ziggurat.features.numeric.bins import boundaries as bin_boundaries
from ziggurat.features.numeric.missing import MissingFlag, MissingFlagConfig
from ziggurat.features.numeric.power import Power, PowerConfig
from ziggurat.features.numeric.sample import NumericSample as NumericSample
from ziggurat.features.numeric.sample import Values
from ziggurat.features.numeric.scaling import MaxAbs, MaxAbsConfig, MinMax, MinMaxConfig, Robust, RobustConfig
from ziggurat.features.numeric.spline import Spline, SplineConfig


class FillConfig(Config):
    """Replaces missing values."""

    name: Literal["fill"] = "fill"
    value: pydantic.FiniteFloat | Literal["mean", "median", "min"] = "median"
    """The replacement: a number, or a statistic of the training values (0 if all of them are missing)."""


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
    """Clips values to a range."""

    name: Literal["clip"] = "clip"
    low: pydantic.FiniteFloat | None = None
    """Lower end of the range."""
    high: pydantic.FiniteFloat | None = None
    """Upper end of the range."""
    low_quantile: float | None = pydantic.Field(default=None, ge=0.0, le=1.0)
    """Lower end of the range, as a quantile of the training values."""
    high_quantile: float | None = pydantic.Field(default=None, ge=0.0, le=1.0)
    """Upper end of the range, as a quantile of the training values."""

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
            raise ValueError(f"low {self.low:g} is above high {self.high:g}")
        return self


@dataclass(frozen=True)
class Clip:
    """x -> min(max(x, low), high); an end that is None is unbounded."""

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
    """Compresses large values: sign(x) log(1 + |x|)."""

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
    """Shifts and scales values to mean 0 and standard deviation 1 over the training values."""

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
        if not np.isfinite(mean) or not np.isfinite(std):  # sums above 1e308
            return cls(0.0, 1.0)
        return cls(mean, 1.0 if std <= 1e-12 * max(1.0, abs(mean)) else std)

    def apply(self, values: Values) -> Values:
        return (values - self.mean) / self.std


class QuantileConfig(Config):
    """Maps values to [0, 1] by their rank among the training values, or to a normal distribution."""

    NEWER: ClassVar[frozenset[str]] = frozenset({"output"})

    name: Literal["quantile"] = "quantile"
    bins: int = pydantic.Field(default=100, ge=1, le=65_536)
    """Number of intervals that contain equally many training values; values within an interval are interpolated
    linearly."""
    levels: Literal["shares", "even"] = "shares"
    """What the ends of the intervals become: the share of training values below them; or numbers at even distances,
    so that a value that many rows have takes no more room than others. ``even`` looks for ends finely enough that
    there are ``bins`` intervals even so."""
    output: Literal["uniform", "normal"] = "uniform"
    """``uniform``: the rank itself, from 0 to 1. ``normal``: the number below which a standard normal variable is with
    that probability, within ±5.2."""


_MOST_QUANTILES = 64
"""How many times ``bins`` quantiles are looked at, at most."""


@dataclass(frozen=True)
class Quantile:
    """x -> the share of training values below it, linear between ``knots``; a tie maps to the middle of its ranks."""

    knots: tuple[float, ...]
    levels: tuple[float, ...]

    @classmethod
    def fit(cls, config: QuantileConfig, sample: NumericSample) -> Self:
        present = sample.finite
        if len(present) == 0:
            return cls((0.0,), (0.5,))
        if config.levels == "even":
            return cls._even(present, config.bins)
        probabilities = np.linspace(0.0, 1.0, config.bins + 1)
        quantiles = np.quantile(present, probabilities)
        knots, first, counts = np.unique(quantiles, return_index=True, return_counts=True)
        levels = (probabilities[first] + probabilities[first + counts - 1]) / 2
        return cls(tuple(knots.tolist()), tuple(levels.tolist()))

    @classmethod
    def _even(cls, present: Values, bins: int) -> Self:
        """Doubles the number of quantiles until enough of them differ, then drops some of those that are too many."""
        ordered, count, knots = np.sort(present), bins, np.empty(0)
        while True:
            places = np.round(np.linspace(0, len(ordered) - 1, count + 1)).astype(np.int64)
            knots = np.unique(ordered[places])
            if len(knots) > bins or count >= min(len(ordered), _MOST_QUANTILES * bins):
                break
            count *= 2
        if len(knots) > bins + 1:
            knots = knots[np.round(np.linspace(0, len(knots) - 1, bins + 1)).astype(np.int64)]
        levels = np.linspace(0.0, 1.0, len(knots)) if len(knots) > 1 else np.array([0.5])
        return cls(tuple(knots.tolist()), tuple(levels.tolist()))

    def apply(self, values: Values) -> Values:
        return np.interp(values, self.knots, self.levels)


_RAREST = 1e-7


@dataclass(frozen=True)
class NormalQuantile(Quantile):
    """x -> the standard normal quantile of the share of training values below it, that share within 1e-7 of 0 and 1."""

    def apply(self, values: Values) -> Values:
        from scipy.special import ndtri  # slow to import and seldom needed

        return ndtri(np.clip(super().apply(values), _RAREST, 1.0 - _RAREST))


class BucketiseConfig(Config):
    """Maps a value to the number of its interval. It must be the last step and makes the feature categorical."""

    NEWER: ClassVar[frozenset[str]] = frozenset({"strategy"})

    name: Literal["bucketise"] = "bucketise"
    bins: int | None = pydantic.Field(default=None, ge=2, le=65_536)
    """Number of intervals (fewer if training values tie)."""
    strategy: BinStrategy = "quantile"
    """How ``bins`` are cut. ``quantile``: intervals that contain equally many training values. ``uniform``: intervals
    of equal width. ``kmeans``: around the centres of k-means."""
    boundaries: tuple[float, ...] | None = None
    """Boundaries of the intervals, ascending; a value equal to a boundary belongs to the interval above it."""

    @pydantic.model_validator(mode="after")
    def _bins_or_boundaries(self) -> Self:
        if (self.bins is None) == (self.boundaries is None):
            raise ValueError("give either bins or boundaries")
        if self.bins is None and self.strategy != "quantile":
            raise ValueError(f"strategy {self.strategy} says how bins are cut: give bins, not boundaries")
        if self.boundaries is not None:
            if not self.boundaries or not np.isfinite(self.boundaries).all():
                raise ValueError("boundaries must be finite numbers, at least one")
            if any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
                raise ValueError("boundaries must ascend")
        return self


@dataclass(frozen=True)
class Bucketise:
    """x -> 1 + the number of boundaries at or below x; a missing value becomes row 0."""

    boundaries: tuple[float, ...]

    @classmethod
    def fit(cls, config: BucketiseConfig, sample: NumericSample) -> Self:
        if config.boundaries is not None:
            return cls(config.boundaries)
        assert config.bins is not None
        return cls(bin_boundaries(sample, config.bins, config.strategy))

    @property
    def rows(self) -> int:
        """Rows of the feature's table: one for missing values, then one per interval."""
        return 2 + len(self.boundaries)

    def apply(self, values: Values) -> Values:
        buckets = 1.0 + np.searchsorted(np.asarray(self.boundaries, np.float64), values, side="right")
        return np.where(np.isnan(values), 0.0, buckets)


StepConfig = Annotated[
    FillConfig
    | ClipConfig
    | LogConfig
    | StandardiseConfig
    | MinMaxConfig
    | MaxAbsConfig
    | RobustConfig
    | PowerConfig
    | QuantileConfig
    | BucketiseConfig
    | SplineConfig
    | MissingFlagConfig,
    pydantic.Field(discriminator="name"),
]
Step = (
    Fill
    | Clip
    | Log
    | Standardise
    | MinMax
    | MaxAbs
    | Robust
    | Power
    | Quantile
    | NormalQuantile
    | Bucketise
    | Spline
    | MissingFlag
)


def check_places(configs: Sequence[StepConfig]) -> None:
    """Checks that each step of a number is in a place where it can be.

    Raises:
        ValueError: one is not.
    """
    for name in ("bucketise", "spline"):
        if any(step.name == name for step in configs[:-1]):
            raise ValueError(f"{name} must be the last transform")
    if any(step.name == "missing_flag" for step in configs[1:]):
        raise ValueError("missing_flag must be the first transform: those before it would fill what is missing")


def check_one_number_each(configs: Sequence[StepConfig], what: str) -> None:
    """Checks that steps make one dense number of a number.

    Raises:
        ValueError: one makes several numbers, or an id; the message begins with ``what``.
    """
    check_places(configs)
    for step in configs:
        if step.name in {"bucketise", "spline"}:
            raise ValueError(f"{what} are dense inputs: leave out {step.name}")


def fit_step(config: StepConfig, sample: NumericSample, index: int = 0) -> Step:
    """Returns the step of a config, fitted on a sample; ``index`` says which of a spline's numbers it makes."""
    match config:
        case FillConfig():
            return Fill.fit(config, sample)
        case ClipConfig():
            return Clip.fit(config, sample)
        case LogConfig():
            return Log.fit(config, sample)
        case StandardiseConfig():
            return Standardise.fit(config, sample)
        case MinMaxConfig():
            return MinMax.fit(config, sample)
        case MaxAbsConfig():
            return MaxAbs.fit(config, sample)
        case RobustConfig():
            return Robust.fit(config, sample)
        case PowerConfig():
            return Power.fit(config, sample)
        case QuantileConfig():
            return (NormalQuantile if config.output == "normal" else Quantile).fit(config, sample)
        case BucketiseConfig():
            return Bucketise.fit(config, sample)
        case SplineConfig():
            return Spline.fit(config, sample, index)
        case MissingFlagConfig():
            return MissingFlag.fit(config, sample)
