"""The population stability index: how far a distribution of scores is from another, in bins."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_ADDED = 0.5
"""Rows that are added to each bin of both sides, so that an empty bin does not make the index infinite."""


def psi(expected: Sequence[int] | npt.NDArray[np.int64], actual: Sequence[int] | npt.NDArray[np.int64]) -> float:
    """Returns the population stability index of two counts in the same bins.

    With the shares p of the one and q of the other it is the sum of (q - p) ln(q / p), which is 0 where they are equal
    and the same if they are exchanged. Without drift it is near (bins - 1) (1 / rows + 1 / expected rows).

    Source: Siddiqi 2006, "Credit Risk Scorecards", chapter 8, which takes 0.1 and 0.25 as limits; the index is the
    divergence of Jeffreys 1946.

    Args:
        expected: rows in each bin (bins,).
        actual: rows in each bin (bins,).
    """
    before, after = (np.asarray(each, np.float64) + _ADDED for each in (expected, actual))
    p, q = before / before.sum(), after / after.sum()
    return float(((q - p) * np.log(q / p)).sum())
