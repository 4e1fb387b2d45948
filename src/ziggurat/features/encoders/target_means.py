"""Mean labels by category, smoothed towards the mean of all rows, from counts by fold.

Source: Micci-Barreca (2001), "A preprocessing scheme for high-cardinality categorical attributes in classification and
prediction problems", SIGKDD Explorations 3(1), eqs. 3 to 5; with the variances that scikit-learn's ``TargetEncoder``
estimates. Beyond it, rows count by their weight.

Shapes: K folds, R categories.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(slots=True)
class TargetCounts:
    """Weights, and weighted sums of labels and of their squares, by fold and category.

    Sums are added row by row, so that they are the same to the bit however the rows are divided into calls. Labels are
    counted from that of the first row, which keeps squares of labels far from 0 exact.
    """

    weights_KR: Numbers
    sums_KR: Numbers
    squares_KR: Numbers
    shift: float | None = None

    @classmethod
    def empty(cls, folds: int, categories: int) -> TargetCounts:
        weights_KR, sums_KR, squares_KR = np.zeros((3, folds, categories))
        return cls(weights_KR, sums_KR, squares_KR)

    def add(self, folds_B: Ids, categories_B: Ids, labels_B: Numbers, weights_B: Numbers) -> None:
        """Adds rows."""
        if len(labels_B) and self.shift is None:
            self.shift = float(labels_B[0])
        shifted_B = labels_B - (self.shift or 0.0)
        places_B = folds_B * self.weights_KR.shape[1] + categories_B
        np.add.at(self.weights_KR.reshape(-1), places_B, weights_B)
        np.add.at(self.sums_KR.reshape(-1), places_B, weights_B * shifted_B)
        np.add.at(self.squares_KR.reshape(-1), places_B, weights_B * shifted_B * shifted_B)

    def means(self, smooth: float | None) -> Numbers:
        """Returns the smoothed mean label of each category over all folds, (R,).

        Args:
            smooth: as how many rows the mean of all counts; None: empirical Bayes.
        """
        return self._means([True] * len(self.weights_KR), smooth)

    def means_of_others(self, smooth: float | None) -> Numbers:
        """Returns the smoothed mean label of each category over all folds but one, (K, R)."""
        folds = range(len(self.weights_KR))
        return np.stack([self._means([other != fold for other in folds], smooth) for fold in folds])

    def _means(self, taken: list[bool], smooth: float | None) -> Numbers:
        """Sums up the folds that are taken: what is left out is never added, so nothing of it remains by rounding."""
        weights_R, sums_R, squares_R = (
            table[taken].sum(axis=0) for table in (self.weights_KR, self.sums_KR, self.squares_KR)
        )
        total = float(weights_R.sum())
        shift = self.shift or 0.0
        if total == 0.0:
            return np.full(len(weights_R), shift)
        mean = float(sums_R.sum()) / total
        seen = weights_R > 0
        divisors_R = np.where(seen, weights_R, 1.0)
        means_R = sums_R / divisors_R
        if smooth is not None:
            found_R = (sums_R + smooth * mean) / np.where(seen, weights_R + smooth, 1.0)
        else:
            variance = max(0.0, float(squares_R.sum()) / total - mean * mean)
            within_R = np.maximum(0.0, squares_R / divisors_R - means_R * means_R)
            evidence_R = variance * weights_R
            known = evidence_R + within_R > 0
            share_R = np.where(known, evidence_R / np.where(known, evidence_R + within_R, 1.0), 0.0)
            found_R = share_R * means_R + (1.0 - share_R) * mean
        return np.where(seen, found_R, mean) + shift
