"""Recognises columns of plainly written numbers in one step, and summarises numbers by one sort.

Most columns of wide logs are such: ``-3``, ``0.25``, ``1.5e-7``. What is written otherwise (leading zeros, blanks,
words among numbers, fractions that are all zero) is for :mod:`ziggurat.data.inference.columns` to judge.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from ziggurat.data.readers.arrow_compute import pc

_PLAIN = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$"
_FRACTION_MARKS = r"[.eE]"
EXACT_FLOAT = 2.0**53
"""From here on, float64 does not hold every whole number."""
_BEYOND_INT64 = 2.0**63


def plain_numbers(texts: pl.Series) -> pl.Series | None:
    """Returns text cells as Int64, or as Float64 with at least one fraction; None if a cell is not plainly a number."""
    cells = texts.to_arrow()
    if cells.null_count == len(cells) or not pc.all(pc.match_substring_regex(cells, _PLAIN)).as_py():
        return None
    fractional = pc.any(pc.match_substring_regex(cells, _FRACTION_MARKS)).as_py()
    try:
        numbers = cells.cast(pa.float64() if fractional else pa.int64())
    except pa.ArrowInvalid:  # beyond int64
        return None
    series = pl.Series(texts.name, numbers)
    if not fractional:
        return series
    values = present(series).to_numpy()
    return series if np.isfinite(values).all() and (values != np.floor(values)).any() else None


def present(series: pl.Series) -> pl.Series:
    """Returns the cells that are not missing; polars takes a fifth of a millisecond to find that all are there."""
    return series.drop_nulls() if series.null_count() else series


def all_whole(floats: pl.Series) -> bool:
    """Whether all finite ones of some floats are whole numbers within int64, which readers take for integers."""
    finite = floats.filter(floats.is_finite())
    return bool(((finite == finite.floor()) & (finite.abs() < _BEYOND_INT64)).all())


@dataclass(frozen=True, slots=True)
class NumberSummary:
    """What :class:`~ziggurat.data.inference.columns.ColumnProfile` holds of a column of numbers, by the same names.

    Attributes:
        distinct: number of distinct values.
        once, twice: how many of them occur once, and twice.
    """

    distinct: int
    once: int
    twice: int
    common: tuple[int | float, ...]
    minimum: float = 0.0
    median: float = 0.0
    percentile_99: float = 0.0
    maximum: float = 0.0
    balanced_threshold: float = 0.0
    ascending: bool = False


def summarise_numbers(values: npt.NDArray[np.int64] | npt.NDArray[np.float64], most_common: int) -> NumberSummary:
    """Summarises the numbers of a column without its missing cells, in the file's order; NaN is not allowed."""
    if not len(values):
        return NumberSummary(0, 0, 0, ())
    ordered = np.sort(values)
    last = len(ordered) - 1
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    times = np.diff(starts, append=len(ordered))
    frequent = starts[np.argsort(-times, kind="stable")[:most_common]]
    minimum, median, percentile_99, maximum = (ordered[round(share * last)] for share in (0, 0.5, 0.99, 1))
    median_start = int(np.searchsorted(ordered, median))
    above_start = int(np.searchsorted(ordered, median, side="right"))
    next_above = ordered[above_start] if above_start <= last else median
    reached = [(median, len(ordered) - median_start), (next_above, len(ordered) - min(above_start, last))]
    threshold, _ = min(reached, key=lambda each: abs(each[1] / len(ordered) - 0.5))
    return NumberSummary(
        distinct=len(starts),
        once=int((times == 1).sum()),
        twice=int((times == 2).sum()),
        common=tuple(ordered[frequent].tolist()),
        minimum=float(minimum),
        median=float(median),
        percentile_99=float(percentile_99),
        maximum=float(maximum),
        balanced_threshold=float(threshold),
        ascending=len(values) > 2 and bool((values[1:] > values[:-1]).all()),
    )
