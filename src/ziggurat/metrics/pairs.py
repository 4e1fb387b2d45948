"""How well predictions order labels that are numbers: a histogram of (prediction, label) pairs, and XAUC.

XAUC is the chance that of two rows with different labels the one with the larger label has the larger prediction; equal
predictions count half. For labels of 0 and 1 it is the AUC. (Zhan et al. 2022, "Deconfounding duration bias in
watch-time prediction for video recommendation", section 5.1.2, who estimate it on pairs drawn at random.)

All distinct pairs are kept while they fit into a budget. Beyond it pairs are kept in the order of a hash of both
numbers, as many as fit: an unbiased sample of the distinct pairs. The pairs before a given hash only grow in number, so
a pair is dropped at some point if and only if it does not fit in the end: the state has the same bits in any order of
updates and merges.

Shape legend: B rows, E pairs in ascending order of their hash.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.hashing import hash_integers
from ziggurat.metrics.scores import from_sortable_keys, run_sums, sortable_keys

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

_SEED = 0x70616972735F5F
_NO_LIMIT = 1 << 64
_HALF = np.uint64(32)


class PairHistogram:
    """The weight of each pair of a prediction and a label.

    Attributes:
        limit: pairs whose hash is ``limit`` or larger are dropped.
        pairs_E: uint64, the sortable keys of prediction and label.
        units_E: int64 weight units.
    """

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self.limit = _NO_LIMIT
        self.pairs_E: UInt64Array = np.empty(0, np.uint64)
        self.units_E: Int64Array = np.empty(0, np.int64)

    def add(
        self, predictions_B: npt.NDArray[np.float32], labels_B: npt.NDArray[np.float32], units_B: Int64Array
    ) -> None:
        """Counts rows. A call sorts them and the E pairs, so pass many rows at a time."""
        counted_B = units_B > 0
        keys_B = sortable_keys(predictions_B[counted_B]).astype(np.uint64) << _HALF
        self._absorb(keys_B | sortable_keys(labels_B[counted_B]).astype(np.uint64), units_B[counted_B])

    def merge(self, other: PairHistogram) -> None:
        assert self.max_entries == other.max_entries, (self.max_entries, other.max_entries)
        self.limit = min(self.limit, other.limit)
        self._absorb(other.pairs_E, other.units_E)

    @property
    def predictions(self) -> Float64Array:
        """The predictions of the pairs, (E,)."""
        return from_sortable_keys((self.pairs_E >> _HALF).astype(np.uint32)).astype(np.float64)

    @property
    def labels(self) -> Float64Array:
        """The labels of the pairs, (E,)."""
        return from_sortable_keys(self.pairs_E.astype(np.uint32)).astype(np.float64)

    @property
    def is_whole(self) -> bool:
        """Whether no pair was dropped."""
        return self.limit == _NO_LIMIT

    def state(self) -> dict[str, Any]:
        return {"limit": self.limit, "pairs": self.pairs_E, "units": self.units_E}

    @classmethod
    def from_state(cls, max_entries: int, state: dict[str, Any]) -> PairHistogram:
        restored = cls(max_entries)
        restored.limit, restored.pairs_E, restored.units_E = int(state["limit"]), state["pairs"], state["units"]
        return restored

    def _absorb(self, pairs: UInt64Array, units: Int64Array) -> None:
        pairs, units = np.concatenate([self.pairs_E, pairs]), np.concatenate([self.units_E, units])
        hashes = _hashes(pairs)
        if not self.is_whole:
            kept = hashes < np.uint64(self.limit)
            hashes, pairs, units = hashes[kept], pairs[kept], units[kept]
        order = np.argsort(hashes)
        hashes = hashes[order]
        ends = np.flatnonzero(np.concatenate([hashes[1:] != hashes[:-1], [True] if len(hashes) else []]))
        self.pairs_E, self.units_E = pairs[order][ends], run_sums(units[order], ends)
        if len(ends) > self.max_entries:
            self.limit = int(hashes[ends[self.max_entries]])
            self.pairs_E = self.pairs_E[: self.max_entries].copy()
            self.units_E = self.units_E[: self.max_entries].copy()


def xauc(histogram: PairHistogram) -> float:
    """Returns the chance that two rows with different labels are ordered by their predictions; nan if labels are equal.

    Concordant pairs are counted one bit of the predictions' ranks at a time: of two ranks that first differ in a bit,
    the one with a 1 there is larger. Within rows that share the bits before it, a running sum over ascending labels
    counts those with a 0.
    """
    order = np.lexsort((histogram.pairs_E >> _HALF, histogram.pairs_E & np.uint64(2**32 - 1)))
    pairs, weights = histogram.pairs_E[order], histogram.units_E[order].astype(np.float64)
    _, ranks = np.unique(pairs >> _HALF, return_inverse=True)
    _, labels = np.unique(pairs & np.uint64(2**32 - 1), return_inverse=True)
    compared = (weights.sum() ** 2 - (np.bincount(labels, weights) ** 2).sum()) / 2 if len(pairs) else 0.0
    if compared <= 0:
        return float("nan")
    concordant = 0.0
    for bit in reversed(range(int(ranks.max(initial=0)).bit_length())):
        prefix = ranks >> (bit + 1)
        within = np.argsort(prefix, kind="stable")  # ascending labels within each prefix
        low = np.where((ranks[within] >> bit) & 1, 0.0, weights[within])
        before = np.cumsum(low) - low
        starts_of_prefix, starts_of_label = _run_starts(prefix[within]), _run_starts(prefix[within], labels[within])
        below = before[starts_of_label] - before[starts_of_prefix]
        concordant += float((np.where((ranks[within] >> bit) & 1, weights[within], 0.0) * below).sum())
    tied = _tied(ranks, weights)
    return float((concordant + tied / 2) / compared)


def _run_starts(*arrays: Int64Array) -> Int64Array:
    """Returns for each position that of the first one of its run of equal values."""
    first = np.ones(len(arrays[0]), np.bool_)
    first[1:] = False
    for array in arrays:
        first[1:] |= array[1:] != array[:-1]
    return np.flatnonzero(first)[np.cumsum(first) - 1]


def _tied(ranks: Int64Array, weights: Float64Array) -> float:
    """Returns the weight of the pairs with equal predictions and different labels; each (rank, label) occurs once."""
    return float(((np.bincount(ranks, weights) ** 2).sum() - (weights**2).sum()) / 2)


def _hashes(pairs: UInt64Array) -> UInt64Array:
    return hash_integers(pairs.view(np.int64), _SEED)
