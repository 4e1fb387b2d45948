"""How often each logit occurred, per class: the one histogram from which AUC, ROC and calibration are read.

A float32's bits, read as an integer with the negative half turned round, sort as the numbers do. That 32-bit integer is
the key; the histogram is sparse and keeps at most ``max_keys`` of them. When more distinct keys arrive, the lowest bit
is dropped from all of them ("level" + 1), which joins neighbours, and again until they fit. So figures are exact while
at most ``max_keys`` distinct logits were seen, and afterwards two logits tie only when they agree in all but their
lowest ``level`` bits.

Why the order of updates and merges cannot matter: counts are integers, and the level is the least at which the keys
seen fit. Fewer rows never have more distinct keys, so no partial state can have needed a level that the whole does
not; and dropping bits early or late leaves the same keys.

Shape legend: B rows, K distinct keys, ascending.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.metrics.rows import MAX_TOTAL_UNITS, MetricRows

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_SIGN = np.uint32(1 << 31)


class ScoreHistogram:
    """Weight of the positives and of the negatives at each logit.

    Attributes:
        level: how many low bits of the keys were dropped.
        keys_K: uint32, ascending, already shifted right by ``level``.
        positive_K: int64 weight units of the positive rows.
        negative_K: int64 weight units of the negative rows.
    """

    def __init__(self, max_keys: int) -> None:
        self.max_keys = max_keys
        self.level = 0
        self.keys_K: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self.positive_K: Int64Array = np.empty(0, np.int64)
        self.negative_K: Int64Array = np.empty(0, np.int64)

    def add(self, rows: MetricRows) -> None:
        """Count these rows. Costs a sort of them and a pass over the K keys, so feed it many at a time."""
        zero = np.int64(0)
        self._absorb(
            sortable_keys(rows.logits_B) >> np.uint32(self.level),
            np.where(rows.positive_B, rows.units_B, zero),
            np.where(rows.positive_B, zero, rows.units_B),
        )

    def merge(self, other: ScoreHistogram) -> None:
        assert self.max_keys == other.max_keys, (self.max_keys, other.max_keys)
        level = max(self.level, other.level)
        self._coarsen(level)
        self._absorb(other.keys_K >> np.uint32(level - other.level), other.positive_K, other.negative_K)

    @property
    def logits(self) -> Float64Array:
        """The logit that each key stands for, (K,): itself at level 0, else the middle of those that share the key."""
        low_K = self.keys_K << np.uint32(self.level)
        high_K = low_K | np.uint32((1 << self.level) - 1)
        # Both are finite: 2^10 keys hold the sign, the exponent and a bit more, so no key mixes finite and infinite.
        return (from_sortable_keys(low_K).astype(np.float64) + from_sortable_keys(high_K).astype(np.float64)) / 2

    @property
    def totals(self) -> tuple[int, int]:
        """Weight units of the positives and of the negatives."""
        return int(self.positive_K.sum()), int(self.negative_K.sum())

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "keys": self.keys_K, "positive": self.positive_K, "negative": self.negative_K}

    @classmethod
    def from_state(cls, max_keys: int, state: dict[str, Any]) -> ScoreHistogram:
        made = cls(max_keys)
        made.level = int(state["level"])
        made.keys_K, made.positive_K, made.negative_K = state["keys"], state["positive"], state["negative"]
        return made

    def _absorb(self, keys: npt.NDArray[np.uint32], positive: Int64Array, negative: Int64Array) -> None:
        """Join new keys, of this level, to those that are here, and coarsen until they fit."""
        self._refuse_overflow(positive, negative)
        keys = np.concatenate([self.keys_K, keys])
        order = np.argsort(keys)
        self.keys_K, self.positive_K, self.negative_K = _sum_runs(
            keys[order],
            np.concatenate([self.positive_K, positive])[order],
            np.concatenate([self.negative_K, negative])[order],
        )
        while len(self.keys_K) > self.max_keys:
            self._coarsen(self.level + 1)

    def _coarsen(self, level: int) -> None:
        if level > self.level:
            shifted_K = self.keys_K >> np.uint32(level - self.level)
            self.keys_K, self.positive_K, self.negative_K = _sum_runs(shifted_K, self.positive_K, self.negative_K)
            self.level = level

    def _refuse_overflow(self, positive: Int64Array, negative: Int64Array) -> None:
        total = sum(self.totals) + float(positive.sum(dtype=np.float64) + negative.sum(dtype=np.float64))
        if total > MAX_TOTAL_UNITS:
            raise DataError(
                f"metrics: example weights sum to more than {MAX_TOTAL_UNITS >> 24:.3g}",
                "scale the weight column so that its mean is about 1",
            )


def sortable_keys(logits_B: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Integers that sort as the finite floats do: flip all bits of the negatives, the sign bit of the others."""
    bits_B = np.ascontiguousarray(logits_B).view(np.uint32)
    return np.where(bits_B & _SIGN, ~bits_B, bits_B | _SIGN)


def from_sortable_keys(keys_K: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """The floats that :func:`sortable_keys` was given."""
    return np.where(keys_K & _SIGN, keys_K ^ _SIGN, ~keys_K).view(np.float32)


def _sum_runs(
    keys: npt.NDArray[np.uint32], positive: Int64Array, negative: Int64Array
) -> tuple[npt.NDArray[np.uint32], Int64Array, Int64Array]:
    """Distinct keys of an ascending array, with the sums of their weights."""
    ends = np.flatnonzero(np.concatenate([keys[1:] != keys[:-1], [True] if len(keys) else []]))
    return keys[ends], run_sums(positive, ends), run_sums(negative, ends)


def run_sums(values: Int64Array, ends: Int64Array) -> Int64Array:
    """Sums of consecutive runs, given where each run ends; faster than reduceat where runs are short."""
    return np.diff(np.cumsum(values)[ends], prepend=np.int64(0))
