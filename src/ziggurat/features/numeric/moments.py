"""Streaming moments and a uniform sample of numeric training values, both deterministic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ziggurat.core.hashing import hash_integers

SAMPLE_ROWS = 262_144
_MERGED_VALUES = 65_536

_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Moments:
    """Count, mean, standard deviation, minimum, maximum and number of zeros of values, and how many are missing.

    ``squares`` is the sum of squared deviations from the mean. Two sets are merged as in Chan, Golub & LeVeque (1979).
    """

    count: int = 0
    missing: int = 0
    mean: float = float("nan")
    squares: float = 0.0
    min: float = float("nan")
    max: float = float("nan")
    zeros: int = 0

    @property
    def std(self) -> float:
        """Population standard deviation."""
        return float(np.sqrt(self.squares / self.count)) if self.count else float("nan")

    @classmethod
    def of(cls, values: npt.NDArray[np.float64]) -> Self:
        """Returns the moments of an array in which NaN is missing."""
        present = values[~np.isnan(values)]
        missing = len(values) - len(present)
        if len(present) == 0:
            return cls(missing=missing)
        mean = float(present.mean())
        with np.errstate(over="ignore"):  # squares of values above 1e154; the result is then infinite
            squares = float(np.square(present - mean).sum())
        return cls(
            count=len(present),
            missing=missing,
            mean=mean,
            squares=squares,
            min=float(present.min()),
            max=float(present.max()),
            zeros=int(np.count_nonzero(present == 0.0)),
        )

    def merge(self, other: Moments) -> Moments:
        """Returns the moments of both sets together."""
        missing = self.missing + other.missing
        if self.count == 0 or other.count == 0:
            filled = other if self.count == 0 else self
            return Moments(filled.count, missing, filled.mean, filled.squares, filled.min, filled.max, filled.zeros)
        count = self.count + other.count
        delta = other.mean - self.mean
        return Moments(
            count=count,
            missing=missing,
            mean=self.mean + delta * other.count / count,
            squares=self.squares + other.squares + delta * delta * self.count * other.count / count,
            min=min(self.min, other.min),
            max=max(self.max, other.max),
            zeros=self.zeros + other.zeros,
        )


class MomentsStream:
    """Moments of a stream of values; the result has the same bits however the values are split into blocks."""

    def __init__(self) -> None:
        self._moments = Moments()
        self._rest = np.empty(0, np.float64)

    def add(self, values: npt.NDArray[np.float64]) -> None:
        """Adds a block of values, NaN for missing."""
        joined = np.concatenate([self._rest, values])
        whole = len(joined) - len(joined) % _MERGED_VALUES
        for start in range(0, whole, _MERGED_VALUES):
            self._moments = self._moments.merge(Moments.of(joined[start : start + _MERGED_VALUES]))
        self._rest = joined[whole:].copy()

    def result(self) -> Moments:
        """Returns the moments of all values so far."""
        return self._moments.merge(Moments.of(self._rest))


class RowSample:
    """A uniform sample of rows without replacement: the rows whose row numbers have the smallest hashes (bottom-k).

    The sample does not depend on how rows are split into blocks. It contains all rows while there are at most ``size``.
    """

    def __init__(self, columns: int, size: int = SAMPLE_ROWS) -> None:
        self._size = size
        self._hashes = np.empty(0, np.uint64)
        self._rows = np.empty(0, np.int64)
        self._values = [np.empty(0, np.float64) for _ in range(columns)]

    def add(self, rows: npt.NDArray[np.int64], values: list[npt.NDArray[np.float64]]) -> None:
        """Adds rows to sample from.

        Args:
            rows: row numbers.
            values: one array per column: ``values[c][i]`` is column c of row ``rows[i]``.
        """
        hashes = hash_integers(rows)
        if len(self._hashes) == self._size:
            small = np.flatnonzero(hashes < self._hashes.max())
            hashes, rows, values = hashes[small], rows[small], [column[small] for column in values]
        self._hashes = np.concatenate([self._hashes, hashes])
        self._rows = np.concatenate([self._rows, rows])
        self._values = [np.concatenate([old, new]) for old, new in zip(self._values, values, strict=True)]
        if len(self._hashes) > self._size:
            kept = np.argpartition(self._hashes, self._size - 1)[: self._size]
            self._hashes, self._rows = self._hashes[kept], self._rows[kept]
            self._values = [column[kept] for column in self._values]

    def columns(self) -> list[npt.NDArray[np.float64]]:
        """Returns the sampled values of each column, in row order."""
        order = np.argsort(self._rows)
        return [column[order] for column in self._values]


def quantiles(sample: npt.NDArray[np.float64]) -> dict[str, float]:
    """Returns common quantiles of the sample, without missing values, by probability; NaN if no value is present."""
    present = sample[~np.isnan(sample)]
    values = np.quantile(present, _QUANTILES) if len(present) else np.full(len(_QUANTILES), np.nan)
    return {f"{probability:g}": float(value) for probability, value in zip(_QUANTILES, values, strict=True)}
