"""The checked rows of one update: the input of every accumulator in this package.

Weights are rounded to whole multiples of 2^-24, so that sums of them are integers and addition is associative. The
relative rounding error is 3e-8 at weight 1; totals may reach 2^37 (1.4e11). An unweighted row has weight 1 exactly.

Shape legend: B rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.core.hashing import hash_integers

WEIGHT_UNITS = 1 << 24
"""Weight 1, in the units of ``MetricRows.units_B``."""

GROUP_SEED = 0x67726F7570732047
"""Seed of the hash of group keys. It is one that no split has: a split by a hash of the same key leaves only keys whose
hash of its own seed is in a part of the range, and by that hash these groups would not be a uniform sample."""

MAX_TOTAL_UNITS = 1 << 61
"""Above this total an int64 sum of weights might overflow; such weights are rejected."""


@dataclass(frozen=True, slots=True)
class MetricRows:
    """Finite logits with their labels.

    Attributes:
        logits_B: float32, finite; negative zero has become zero, so that equal scores have equal bits.
        positive_B: bool.
        units_B: int64 weights, in multiples of 1 / ``WEIGHT_UNITS``.
        groups_B: uint64 hashes of the group keys (the hash is a bijection, so groups cannot collide), or None.
        part_units_B: for labels between 0 and 1, the part of ``units_B`` that is positive: such a row is a positive
            row and a negative one. None for labels of 0 and 1, which ``positive_B`` says.
    """

    logits_B: npt.NDArray[np.float32]
    positive_B: npt.NDArray[np.bool_]
    units_B: npt.NDArray[np.int64]
    groups_B: npt.NDArray[np.uint64] | None
    part_units_B: npt.NDArray[np.int64] | None = None

    @property
    def positive_units_B(self) -> npt.NDArray[np.int64]:  # noqa: N802 (a shape suffix)
        """The weight of each row as a positive, int64."""
        return np.where(self.positive_B, self.units_B, np.int64(0)) if self.part_units_B is None else self.part_units_B

    def __len__(self) -> int:
        return len(self.logits_B)

    def take(self, chosen: npt.NDArray[Any] | slice) -> MetricRows:
        """Returns the rows at these positions, under this mask, or in this slice."""
        groups_B = None if self.groups_B is None else self.groups_B[chosen]
        part_B = None if self.part_units_B is None else self.part_units_B[chosen]
        return MetricRows(self.logits_B[chosen], self.positive_B[chosen], self.units_B[chosen], groups_B, part_B)

    def ungrouped(self) -> MetricRows:
        """Returns the same rows without their groups."""
        return MetricRows(self.logits_B, self.positive_B, self.units_B, None, self.part_units_B)


def read_rows(
    logits_B: npt.ArrayLike,
    labels_B: npt.ArrayLike,
    weights_B: npt.ArrayLike | None = None,
    groups_B: npt.ArrayLike | None = None,
    *,
    soft: bool = False,
) -> tuple[MetricRows, npt.NDArray[np.bool_]]:
    """Checks the rows of one update; returns all of them, unchanged, and a mask of those whose logit is finite.

    ``soft`` says that labels are numbers from 0 to 1: a row is then a positive of weight label · weight and a negative
    of the rest.

    Raises:
        DataError: shapes differ, a label is neither 0 nor 1 (for ``soft``, not between them), a weight is negative or
            not a number, or group keys are not integers. The message names the first such row of this update.
    """
    with np.errstate(over="ignore"):
        logits = np.asarray(logits_B).astype(np.float32) + np.float32(0.0)
    labels = np.asarray(labels_B)
    if logits.ndim != 1 or labels.shape != logits.shape:
        raise DataError(f"metrics: logits of shape {logits.shape} with labels of shape {labels.shape}; need (B,) each")
    positive = labels == 1
    if soft:
        _reject(~((labels >= 0) & (labels <= 1)), labels, "label", "0 to 1 is allowed")
    else:
        _reject(~(positive | (labels == 0)), labels, "label", "0 and 1 are allowed")
    units = np.full(len(logits), WEIGHT_UNITS, np.int64) if weights_B is None else weight_units(weights_B, logits.shape)
    groups = None if groups_B is None else _group_hashes(groups_B, logits.shape)
    part = np.rint(labels.astype(np.float64) * units).astype(np.int64) if soft else None
    return MetricRows(logits, positive, units, groups, part), np.isfinite(logits)


def concatenate(parts: list[MetricRows]) -> MetricRows:
    """Concatenates the rows of several updates; either all of them have groups, or none has."""
    groups = [part.groups_B for part in parts if part.groups_B is not None]
    split = [part.part_units_B for part in parts if part.part_units_B is not None]
    assert len(groups) in {0, len(parts)}
    assert len(split) in {0, len(parts)}
    return MetricRows(
        np.concatenate([part.logits_B for part in parts]),
        np.concatenate([part.positive_B for part in parts]),
        np.concatenate([part.units_B for part in parts]),
        np.concatenate(groups) if groups else None,
        np.concatenate(split) if split else None,
    )


def weight_units(weights_B: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """Returns weights in multiples of 1 / ``WEIGHT_UNITS``.

    Raises:
        DataError: the shape is another, or a weight is negative, too large or not a number.
    """
    weights = np.asarray(weights_B).astype(np.float64)
    if weights.shape != shape:
        raise DataError(f"metrics: weights of shape {weights.shape} with logits of shape {shape}; need the same")
    allowed_max = float(MAX_TOTAL_UNITS // WEIGHT_UNITS)
    _reject(~((weights >= 0) & (weights <= allowed_max)), weights, "weight", f"0 to {allowed_max:.3g} is allowed")
    return np.rint(weights * WEIGHT_UNITS).astype(np.int64)


def _group_hashes(groups_B: npt.ArrayLike, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    groups = np.asarray(groups_B)
    if groups.shape != shape or not np.issubdtype(groups.dtype, np.integer):
        raise DataError(
            f"metrics: group keys are {groups.dtype} of shape {groups.shape}; need integers of shape {shape}"
        )
    return hash_integers(groups, GROUP_SEED)


def _reject(bad_B: npt.NDArray[np.bool_], values_B: npt.NDArray[Any], what: str, allowed: str) -> None:
    if bad_B.any():
        row = int(np.argmax(bad_B))
        raise DataError(f"metrics: {what} {values_B[row].item()!r} in row {row} of the update; {allowed}")
