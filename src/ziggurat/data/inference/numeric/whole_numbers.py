"""Tells ids from quantities among whole numbers, by their values alone; names have been asked before.

What speaks for ids: the same few values recur although their range has room for many more; or every number of a large
range occurs; how often a value occurs has nothing to do with its neighbours. What speaks for quantities: negative
values; a long tail; round values, or prices that end in 9; neighbouring values that occur about equally often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from ziggurat.data.inference.numeric.plain_numbers import plain_numbers

Values = npt.NDArray[np.int64]

_SMOOTH = 0.5
"""Correlation of how often neighbouring values occur, from which on a frequency is smooth."""
_GAPS = 0.6
"""Recurring values fill less than this share of what chance would fill: only certain values are allowed."""
_MOSTLY_NOISE = 1.0
"""Where chance explains this share of the differences between counts, they mean nothing."""
_UNEVEN_DIGITS = 0.5
"""Total difference of the last digits' shares from a tenth each, from which on they are uneven."""
_MOSTLY_ZERO = 0.9
"""Share of zeros from which on the other values are rare amounts."""
_NUMBERED, _WITHOUT_GAPS = 300, 0.98
"""So many values, of which hardly one is left out, number things; a quantity has gaps in its tail."""
_WIDE, _WIDE_RECURRING = 2**40, 2**24
"""Span from which on integers over their whole range are hashes; and from which on, if the same few of them recur."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the values of a column of whole numbers say.

    Attributes:
        fill: different values in the middle of the range, compared with those that as many draws from it would give.
        recurrence: rows per different value, in the middle of the range.
        smoothness: correlation of the frequency of a value with that of the next one.
        uneven_digits: total difference of the last digits' shares from a tenth each, beyond that of chance.
        lean: where the median of the different values lies in their range, from 0 to 1; one half if they are even.
        tail: the same of the rows.
        negative: share of the different values below 0.
        zeros: share of the rows that are 0.
        distinct: number of different values.
        span: number of integers from the smallest value to the largest.
    """

    fill: float
    recurrence: float
    smoothness: float
    uneven_digits: float
    lean: float
    tail: float
    negative: float
    zeros: float
    distinct: int
    span: float

    @classmethod
    def of(cls, values: Values) -> Evidence:
        """Returns the evidence of at least three different values."""
        distinct, counts = np.unique(values, return_counts=True)
        span = float(distinct[-1]) - float(distinct[0]) + 1
        low, high = np.searchsorted(np.cumsum(counts), [0.1 * len(values), 0.9 * len(values)])
        core, core_counts = distinct[low : high + 1], counts[low : high + 1]
        core_span, rows = float(core[-1]) - float(core[0]) + 1, int(core_counts.sum())
        expected = core_span * -np.expm1(-rows / core_span)
        return cls(
            fill=len(core) / expected,
            recurrence=rows / len(core),
            smoothness=_neighbours(counts),
            uneven_digits=_uneven_digits(distinct),
            lean=float((float(distinct[len(distinct) // 2]) - float(distinct[0])) / max(1.0, span - 1)),
            tail=float((float(np.median(values)) - float(distinct[0])) / max(1.0, span - 1)),
            negative=float((distinct < 0).mean()),
            zeros=float((values == 0).mean()),
            distinct=len(distinct),
            span=span,
        )

    @property
    def recurs_with_gaps(self) -> bool:
        """Whether the same few of many possible values recur."""
        return self.recurrence >= 1.5 and self.fill < _GAPS


def whole_numbers(cells: pl.Series) -> pl.Series:
    """Returns the cells of a column of whole numbers as Int64; those that are missing, or typed times, are null."""
    if cells.dtype == pl.String:
        plain = plain_numbers(cells)
        if plain is not None and plain.dtype == pl.Int64:
            return plain
        text = cells.str.strip_chars().str.strip_prefix("+")
        integers = text.cast(pl.Int64, strict=False)
        floats = text.cast(pl.Float64, strict=False).fill_nan(None)
        cells = integers if integers.null_count() <= floats.null_count() else floats
    elif cells.dtype.is_float():
        cells = cells.fill_nan(None)
    return cells.cast(pl.Int64, strict=False)


def is_quantity(values: Values) -> tuple[bool, str, bool]:
    """Whether whole numbers, at least three different ones, are quantities (True) or ids (False), why, and if surely.

    Where it is not sure, what the numbers say of the label has more weight
    (:mod:`ziggurat.data.inference.label_order`).
    """
    found = Evidence.of(values)
    if found.span >= (_WIDE_RECURRING if found.recurs_with_gaps else _WIDE) and 0.3 <= found.lean <= 0.7:
        return False, "spread over the whole range as hashes are", True
    if found.negative > 0.02:
        return True, "some below 0", False
    if found.zeros > _MOSTLY_ZERO:
        return True, "nearly all 0", True
    return *_by_frequency(found), False


def _by_frequency(found: Evidence) -> tuple[bool, str]:
    if found.recurs_with_gaps:
        if found.uneven_digits >= _UNEVEN_DIGITS:
            return True, "round values, or prices"
        return False, "they recur, with gaps between them, as ids do"
    if found.distinct >= _NUMBERED and found.distinct >= _WITHOUT_GAPS * found.span:
        return False, "each number of their range occurs, as where things are numbered"
    if found.smoothness >= _SMOOTH:
        return True, "neighbouring values are about equally frequent"
    if found.lean < 0.35 and found.tail < 0.2:
        return True, "most values small"
    if found.uneven_digits >= _UNEVEN_DIGITS:
        return True, "round values, or prices"
    if found.recurrence >= 1.5:
        return False, "neighbouring values differ in how frequent they are, as ids do"
    return True, "they hardly recur"


def _neighbours(counts: Any) -> float:
    """Returns the correlation of the logarithms of neighbouring counts, without the noise of small counts.

    A count c varies by chance, its logarithm by about 1 / c in variance. 0 if that explains most of the differences.
    """
    if len(counts) < 8:
        return 0.0
    logs = np.log(counts)
    variance, noise = float(logs.var()), float((1 / counts).mean())
    if variance <= noise / _MOSTLY_NOISE:
        return 0.0
    covariance = float(((logs[:-1] - logs.mean()) * (logs[1:] - logs.mean())).mean())
    return covariance / max(variance - noise, variance / 4)


def _uneven_digits(distinct: Values) -> float:
    if len(distinct) < 30:
        return 0.0
    shares = np.bincount(np.abs(distinct % 10), minlength=10) / len(distinct)
    chance = 10 * np.sqrt(2 / np.pi * 0.09 / len(distinct))
    return max(0.0, float(np.abs(shares - 0.1).sum() - chance))
