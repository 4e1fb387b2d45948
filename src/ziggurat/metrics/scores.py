"""A histogram of logits per class, from which AUC, the ROC curve and calibration are computed.

The bits of a float32, read as an integer with the order of the negative half reversed, sort as the numbers do. That
32-bit integer is the key. The histogram is sparse and keeps at most ``max_keys`` keys. When there are more distinct
keys, the lowest bit of all keys is dropped (``level`` grows by one), which merges neighbours; this is repeated until
they fit. Figures are therefore exact while at most ``max_keys`` distinct logits were seen. Afterwards two logits tie
only if they agree in all but their lowest ``level`` bits.

Why the order of updates and merges cannot matter: counts are integers, and the level is the smallest one at which all
keys seen so far fit. Fewer rows never have more distinct keys, so no partial state can have needed a higher level than
the whole; and the same keys remain whether bits are dropped early or late.

Shape legend: B rows, K distinct keys in ascending order.
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
    """The weight of the positives and of the negatives at each logit.

    Attributes:
        level: number of low bits dropped from the keys.
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
        """Counts these rows. A call sorts them and passes over the K keys, so pass many rows at a time."""
        positive_B = rows.positive_units_B
        self._absorb(sortable_keys(rows.logits_B) >> np.uint32(self.level), positive_B, rows.units_B - positive_B)

    def merge(self, other: ScoreHistogram) -> None:
        assert self.max_keys == other.max_keys, (self.max_keys, other.max_keys)
        level = max(self.level, other.level)
        self._coarsen(level)
        self._absorb(other.keys_K >> np.uint32(level - other.level), other.positive_K, other.negative_K)

    @property
    def logits(self) -> Float64Array:
        """The logit of each key, (K,): exact at level 0, otherwise the middle of the logits that share the key."""
        low_K = self.keys_K << np.uint32(self.level)
        high_K = low_K | np.uint32((1 << self.level) - 1)
        # Both are finite: 2^10 keys hold the sign, the exponent and a bit more, so no key mixes finite and infinite.
        return (from_sortable_keys(low_K).astype(np.float64) + from_sortable_keys(high_K).astype(np.float64)) / 2

    @property
    def totals(self) -> tuple[int, int]:
        """The total weight units of the positives and of the negatives."""
        return int(self.positive_K.sum()), int(self.negative_K.sum())

    def state(self) -> dict[str, Any]:
        return {"level": self.level, "keys": self.keys_K, "positive": self.positive_K, "negative": self.negative_K}

    @classmethod
    def from_state(cls, max_keys: int, state: dict[str, Any]) -> ScoreHistogram:
        restored = cls(max_keys)
        restored.level = int(state["level"])
        restored.keys_K, restored.positive_K, restored.negative_K = state["keys"], state["positive"], state["negative"]
        return restored

    def _absorb(self, keys: npt.NDArray[np.uint32], positive: Int64Array, negative: Int64Array) -> None:
        """Adds keys of the current level to the existing ones, then coarsens until they fit."""
        self._reject_overflow(positive, negative)
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
        """Raises the level to ``level`` and merges the keys that become equal."""
        if level > self.level:
            shifted_K = self.keys_K >> np.uint32(level - self.level)
            self.keys_K, self.positive_K, self.negative_K = _sum_runs(shifted_K, self.positive_K, self.negative_K)
            self.level = level

    def _reject_overflow(self, positive: Int64Array, negative: Int64Array) -> None:
        total = sum(self.totals) + float(positive.sum(dtype=np.float64) + negative.sum(dtype=np.float64))
        if total > MAX_TOTAL_UNITS:
            raise DataError(
                f"metrics: example weights sum to more than {MAX_TOTAL_UNITS >> 24:.3g}",
                "scale the weight column so that its mean is about 1",
            )


def sortable_keys(logits_B: npt.NDArray[np.float32]) -> npt.NDArray[np.uint32]:
    """Returns integers that sort as the finite floats do: negatives with all bits flipped, others with the sign bit."""
    bits_B = np.ascontiguousarray(logits_B).view(np.uint32)
    return np.where(bits_B & _SIGN, ~bits_B, bits_B | _SIGN)


def from_sortable_keys(keys_K: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """Inverts :func:`sortable_keys`."""
    return np.where(keys_K & _SIGN, keys_K ^ _SIGN, ~keys_K).view(np.float32)


def _sum_runs(
    keys: npt.NDArray[np.uint32], positive: Int64Array, negative: Int64Array
) -> tuple[npt.NDArray[np.uint32], Int64Array, Int64Array]:
    """Returns the distinct keys of an ascending array, with the sums of their weights."""
    ends = np.flatnonzero(np.concatenate([keys[1:] != keys[:-1], [True] if len(keys) else []]))
    return keys[ends], run_sums(positive, ends), run_sums(negative, ends)


def run_sums(values: Int64Array, ends: Int64Array) -> Int64Array:
    """Sums consecutive runs of values, given the last position of each run; faster than ``reduceat`` for short runs."""
    return np.diff(np.cumsum(values)[ends], prepend=np.int64(0))
