"""GAUC: AUC within each group (for example a user or a query), averaged over groups weighted by impressions.

GAUC = Σ_g w_g AUC_g / Σ_g w_g over the groups g that contain both classes; w_g is the weight of the group's rows.
(Zhou et al. 2018, "Deep interest network", eq. 5 and its footnote: weighted by impressions.)

A group's rows may be anywhere in the data, so all of them must be kept to rank them. In constant memory it is therefore
only possible to keep all rows of *some* groups. Groups are kept in the order of a hash of their key, as many as fit
into a budget of distinct (group, logit) entries: the first group that no longer fits, and all groups after it, are
dropped for good. The hash is independent of the rows, so the kept groups are an unbiased sample. While all groups
fit, the figure is exact.

Why the order of updates and merges cannot matter: the number of entries before a given hash only grows, so a group is
dropped at some point if and only if it does not fit in the end.

Shape legend: B rows, E entries in ascending order of (group, key), G groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.metrics.rows import MetricRows
from ziggurat.metrics.scores import run_sums, sortable_keys

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

_NO_LIMIT = 1 << 64


@dataclass(frozen=True, slots=True)
class GroupedFigures:
    """GAUC and the groups that it was computed from.

    Attributes:
        gauc: GAUC over the kept groups; nan if none of them contains both classes.
        groups_kept: number of groups whose rows were all kept.
        groups_one_class: number of kept groups that are all positive or all negative; they have no AUC and do not
            count.
        groups_seen: number of all groups; exact while everything fits, otherwise estimated from the density of the kept
            hashes (Bar-Yossef et al. 2002, "Counting distinct elements in a data stream": k smallest values).
    """

    gauc: float
    groups_kept: int
    groups_one_class: int
    groups_seen: float


class GroupedScores:
    """Score histograms of groups, which share one memory budget.

    Attributes:
        limit: groups whose hash is ``limit`` or larger are dropped.
        groups_E: uint64 hashes of group keys.
        keys_E: uint32 sortable keys of the logits.
        positive_E: int64 weight units of the positive rows.
        negative_E: int64 weight units of the negative rows.
    """

    def __init__(self, max_entries: int) -> None:
        self.max_entries = max_entries
        self.limit = _NO_LIMIT
        self.groups_E: UInt64Array = np.empty(0, np.uint64)
        self.keys_E: npt.NDArray[np.uint32] = np.empty(0, np.uint32)
        self.positive_E: Int64Array = np.empty(0, np.int64)
        self.negative_E: Int64Array = np.empty(0, np.int64)

    def may_be_kept(self, groups_B: UInt64Array) -> npt.NDArray[np.bool_]:
        """Returns a mask of the rows whose group has not been dropped; the caller may discard the others."""
        if self.limit == _NO_LIMIT:
            return np.ones(len(groups_B), np.bool_)
        return groups_B < np.uint64(self.limit)

    def add(self, rows: MetricRows) -> None:
        """Counts these rows. A call sorts them and the E entries, so pass many rows at a time."""
        assert rows.groups_B is not None
        kept = rows.take(self.may_be_kept(rows.groups_B))
        assert kept.groups_B is not None
        positive = kept.positive_units_B
        self._absorb(kept.groups_B, sortable_keys(kept.logits_B), positive, kept.units_B - positive)

    def merge(self, other: GroupedScores) -> None:
        assert self.max_entries == other.max_entries, (self.max_entries, other.max_entries)
        self._drop_from(other.limit)
        kept = self.may_be_kept(other.groups_E)
        self._absorb(other.groups_E[kept], other.keys_E[kept], other.positive_E[kept], other.negative_E[kept])

    def compute(self) -> GroupedFigures:
        """Returns GAUC over the kept groups."""
        ends_G = _run_ends(self.groups_E)
        kept = len(ends_G)
        seen = kept if self.limit == _NO_LIMIT else max(kept + 1, kept * (_NO_LIMIT / max(self.limit, 1)))
        if kept == 0:
            return GroupedFigures(float("nan"), 0, 0, float(seen))
        positive_G = run_sums(self.positive_E, ends_G)
        negative_G = run_sums(self.negative_E, ends_G)
        sizes_G = np.diff(ends_G, prepend=-1)
        lower_groups_E = np.repeat(np.cumsum(negative_G) - negative_G, sizes_G)
        below_E = np.cumsum(self.negative_E) - self.negative_E - lower_groups_E
        wins_E = self.positive_E * (below_E + self.negative_E / 2)
        wins_G = np.add.reduceat(wins_E, ends_G - sizes_G + 1)
        both_G = (positive_G > 0) & (negative_G > 0)
        auc_G = wins_G[both_G] / positive_G[both_G] / negative_G[both_G]
        weight_G = (positive_G + negative_G)[both_G].astype(np.float64)
        gauc = float((auc_G * weight_G).sum() / weight_G.sum()) if both_G.any() else float("nan")
        return GroupedFigures(gauc, kept, kept - int(both_G.sum()), float(seen))

    def state(self) -> dict[str, Any]:
        return {
            "limit": self.limit,
            "groups": self.groups_E,
            "keys": self.keys_E,
            "positive": self.positive_E,
            "negative": self.negative_E,
        }

    @classmethod
    def from_state(cls, max_entries: int, state: dict[str, Any]) -> GroupedScores:
        restored = cls(max_entries)
        restored.limit = int(state["limit"])
        restored.groups_E, restored.keys_E = state["groups"], state["keys"]
        restored.positive_E, restored.negative_E = state["positive"], state["negative"]
        return restored

    def _absorb(
        self, groups: UInt64Array, keys: npt.NDArray[np.uint32], positive: Int64Array, negative: Int64Array
    ) -> None:
        """Adds entries to the existing ones, then drops groups until the budget is met."""
        groups = np.concatenate([self.groups_E, groups])
        keys = np.concatenate([self.keys_E, keys])
        order = _order(groups, keys)
        groups, keys = groups[order], keys[order]
        ends = _run_ends(groups, keys)
        self.groups_E, self.keys_E = groups[ends], keys[ends]
        self.positive_E = run_sums(np.concatenate([self.positive_E, positive])[order], ends)
        self.negative_E = run_sums(np.concatenate([self.negative_E, negative])[order], ends)
        if len(self.groups_E) > self.max_entries:
            self._drop_from(int(self.groups_E[self.max_entries]))

    def _drop_from(self, limit: int) -> None:
        """Drops the groups whose hash is ``limit`` or larger."""
        if limit < self.limit:
            self.limit = limit
            end = int(np.searchsorted(self.groups_E, np.uint64(limit)))
            self.groups_E, self.keys_E = self.groups_E[:end].copy(), self.keys_E[:end].copy()
            self.positive_E, self.negative_E = self.positive_E[:end].copy(), self.negative_E[:end].copy()


def _order(groups: UInt64Array, keys: npt.NDArray[np.uint32]) -> Int64Array:
    """Returns the positions that sort by group, then key.

    Equivalent to ``lexsort``, but made of two quicksorts of one word each, which is 4 times faster.
    """
    by_group = np.argsort(groups)
    sorted_groups = groups[by_group]
    rank = np.zeros(len(groups), np.uint64)
    np.cumsum(sorted_groups[1:] != sorted_groups[:-1], out=rank[1:])
    return by_group[np.argsort(rank << np.uint64(32) | keys[by_group])]


def _run_ends(*sorted_arrays: npt.NDArray[Any]) -> Int64Array:
    """Returns the position of the last occurrence of each combination of values."""
    last = np.zeros(len(sorted_arrays[0]), np.bool_)
    last[-1:] = True
    for array in sorted_arrays:
        last[:-1] |= array[1:] != array[:-1]
    return np.flatnonzero(last)
