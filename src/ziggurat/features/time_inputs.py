"""Turns parts of times into inputs of the model: columns that are derived from a raw time column, and their encoding.

=================  ====================================================================================================
a time feature     becomes
=================  ====================================================================================================
as: cyclical       two numbers, the sine and cosine of the position in the cycle: of the day (to the second), the week
                   (by days, from Monday), the month (31 days) or the year (12 months); both 0 where the time is missing
as: categorical    one id: 1 + the hour, the weekday from Monday, the day or the month from 0; 0 where it is missing
part: age          one number: days, standardised over the training rows and clipped to their range, so that rows later
                   than those count as the newest ones. The first training row may be day 0, or any other day: that
                   cancels out. The mean where the time is missing.
=================  ====================================================================================================

Derived columns exist in memory only, between reader and encoder: for training and prediction alike they are added by
:func:`with_time_columns`. Their numbers and ids are encoded by the same numeric chains and identity encoders as others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.features.columns import numbers
from ziggurat.features.config import (
    CategoricalFeature,
    InputFeature,
    NumericFeature,
    TimeFeature,
)
from ziggurat.features.encoders.identity import IdentityConfig
from ziggurat.features.numeric.steps import ClipConfig, FillConfig, StandardiseConfig, StepConfig

Seconds = npt.NDArray[np.float64]
Days = npt.NDArray[np.int64]

_DAY = 86_400.0
_MOST_DAYS = 10_000 * 366
_VALUES = {"hour": 24, "weekday": 7, "day": 31, "month": 12}
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_STANDARDISED: tuple[StepConfig, ...] = (
    StandardiseConfig(),
    ClipConfig(low_quantile=0.0, high_quantile=1.0),
    FillConfig(value=0.0),
)


class TimeNumber(NumericFeature):
    """A number that a time feature becomes."""

    origin: TimeFeature
    wave: Literal["sin", "cos"] | None = None

    @property
    def source_column(self) -> str:
        return f"@{self.wave or 'days'} of {self.origin.part} in {self.origin.source_column}"

    @property
    def log_columns(self) -> tuple[str, ...]:
        return self.origin.log_columns

    def values(self, seconds: Seconds) -> pa.Array:
        """Returns the numbers of some times, NaN for missing."""
        if self.wave is None:
            return pa.array(seconds / _DAY)
        angle = 2 * np.pi * _position(self.origin.part, seconds)
        return pa.array(np.sin(angle) if self.wave == "sin" else np.cos(angle))


class TimeId(CategoricalFeature):
    """The id that a time feature becomes."""

    origin: TimeFeature

    @property
    def source_column(self) -> str:
        return f"@{self.origin.part} in {self.origin.source_column}"

    @property
    def log_columns(self) -> tuple[str, ...]:
        return self.origin.log_columns

    def values(self, seconds: Seconds) -> pa.Array:
        """Returns the ids of some times."""
        known = np.isfinite(seconds)
        whole = np.floor(_position(self.origin.part, np.where(known, seconds, 0.0)) * _VALUES[self.origin.part] + 1e-9)
        return pa.array(np.where(known, 1 + whole.astype(np.int64), 0))

    def describe(self, encoded: int) -> str:
        """Returns what an id stands for, for people."""
        if encoded == 0:
            return "missing"
        if self.origin.part == "weekday":
            return _WEEKDAYS[encoded - 1]
        return str(encoded - 1 if self.origin.part == "hour" else encoded)


def time_columns(features: Sequence[InputFeature]) -> list[TimeNumber | TimeId]:
    """Returns the inputs that are derived from times."""
    return [feature for feature in features if isinstance(feature, TimeNumber | TimeId)]


def with_time_columns(table: pa.Table, features: Sequence[InputFeature]) -> pa.Table:
    """Returns the raw columns with those that are derived from times: for each, one of the name that its input reads.

    Args:
        table: raw columns, in which times are float64 seconds since 1970 UTC.
        features: the inputs of the model.
    """
    seconds: dict[str, Seconds] = {}
    for feature in time_columns(features):
        raw = feature.origin.source_column
        if raw not in seconds:
            seconds[raw] = numbers(table.column(raw))
        if feature.source_column not in table.column_names:
            table = table.append_column(feature.source_column, feature.values(seconds[raw]))
    return table


@dataclass(frozen=True, slots=True)
class _Calendar:
    """Days since 1970, and the first day of their months."""

    days: Days
    months: Any

    @classmethod
    def of(cls, seconds: Seconds) -> _Calendar:
        days = np.clip(np.floor(seconds / _DAY), -_MOST_DAYS, _MOST_DAYS).astype(np.int64)
        return cls(days, days.astype("datetime64[D]").astype("datetime64[M]"))


def _position(part: str, seconds: Seconds) -> Seconds:
    """Returns the position in the cycle, in [0, 1), NaN for missing."""
    known = np.isfinite(seconds)
    filled = np.where(known, seconds, 0.0)
    calendar = _Calendar.of(filled)
    if part == "hour":
        share = np.mod(filled, _DAY) / _DAY
    elif part == "weekday":
        share = np.mod(calendar.days + 3, 7) / 7  # 1970 began on a Thursday
    elif part == "day":
        share = (calendar.days - calendar.months.astype("datetime64[D]").astype(np.int64)) / 31
    else:
        share = np.mod(calendar.months.astype(np.int64), 12) / 12
    return np.where(known, share, np.nan)


def time_inputs(feature: TimeFeature) -> list[InputFeature]:
    """Returns the inputs that a time feature becomes."""
    if feature.part == "age":
        return [TimeNumber(name=feature.name, origin=feature, transforms=_STANDARDISED)]
    if feature.encoding == "categorical":
        rows = _VALUES[feature.part] + 1
        return [TimeId(name=feature.name, origin=feature, type="integer", encoder=IdentityConfig(rows=rows))]
    fill = (FillConfig(value=0.0),)
    return [
        TimeNumber(name=f"{feature.name}_{wave}", origin=feature, wave=wave, transforms=fill) for wave in ("sin", "cos")
    ]
