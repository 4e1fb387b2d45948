"""Where a number is cut into intervals: by equal masses, at even distances, or between the centres of clusters.

As scikit-learn's ``KBinsDiscretizer`` with the strategies of these names, whose bins without a training value are left
out.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ziggurat.features.numeric.sample import NumericSample, Values

BinStrategy = Literal["quantile", "uniform", "kmeans"]

_MOST_ITERATIONS = 300
_TOLERANCE = 1e-4


def boundaries(sample: NumericSample, bins: int, strategy: BinStrategy) -> tuple[float, ...]:
    """Returns the boundaries between intervals of the training values, ascending; none if there are no values.

    Args:
        sample: the training values.
        bins: the most intervals.
        strategy: ``quantile``: intervals of equally many values. ``uniform``: of equal width. ``kmeans``: a value
            belongs to the nearest centre of k-means.
    """
    present = sample.finite
    if len(present) == 0:
        return ()
    low = float(present.min())
    if strategy == "quantile":
        edges = np.quantile(present, np.linspace(0.0, 1.0, bins + 1)[1:-1])
    elif strategy == "uniform":
        ends = sample.ends
        assert ends is not None
        low, high = ends
        shares = np.linspace(0.0, 1.0, bins + 1)[1:-1]
        edges = low * (1.0 - shares) + high * shares
    else:
        centres = kmeans_centres(present, bins)
        edges = centres[:-1] / 2 + centres[1:] / 2
    unique = np.unique(edges)
    return tuple(unique[unique > low].tolist())


def kmeans_centres(values: Values, clusters: int) -> Values:
    """Returns the ascending centres of k-means on numbers, begun at the middles of intervals of equal width.

    These are Lloyd's iterations. A cluster that loses all its values begins again at the value that is farthest from
    its centre, as in scikit-learn; there are fewer centres than ``clusters`` if there are fewer distinct values.
    Numbers are ordered once, so that a cluster is a range of them and its sum the difference of two prefix sums.
    """
    ordered = np.sort(values)
    distinct = np.unique(ordered)
    if len(distinct) <= clusters:
        return distinct
    shift, scale = float(ordered[0]), float(ordered[-1] / 2 - ordered[0] / 2)
    scaled = (ordered / 2 - shift / 2) / scale  # between 0 and 1: sums of large numbers do not overflow
    sums = np.concatenate([[0.0], np.cumsum(scaled)])
    edges = np.linspace(0.0, 1.0, clusters + 1)
    centres = edges[:-1] / 2 + edges[1:] / 2
    tolerance, previous = _TOLERANCE * float(scaled.var()), np.empty(0, np.int64)
    for _ in range(_MOST_ITERATIONS):
        ends = np.searchsorted(scaled, centres[:-1] / 2 + centres[1:] / 2, side="left")
        ends = np.concatenate([[0], ends, [len(scaled)]])
        moved = _means(scaled, sums, ends, centres)
        change = float(np.square(moved - centres).sum())
        centres, same = np.sort(moved), np.array_equal(ends, previous)
        previous = ends
        if same or change <= tolerance:
            break
    middle = np.unique(centres) - 0.5
    return (shift + scale) + middle * scale + middle * scale


def _means(scaled: Values, sums: Values, ends: np.ndarray, centres: Values) -> Values:
    """Returns the means of the clusters, of which ``ends`` bounds the ranges of values."""
    counts = np.diff(ends).astype(np.float64)
    totals = np.diff(sums[ends])
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        owners = np.repeat(np.arange(len(centres)), np.diff(ends))
        farthest = np.argsort(-np.abs(scaled - centres[owners]), kind="stable")[: len(empty)]
        for cluster, place in zip(empty, farthest, strict=True):
            counts[owners[place]] -= 1
            totals[owners[place]] -= scaled[place]
            counts[cluster], totals[cluster] = 1.0, scaled[place]
    return np.where(counts > 0, totals / np.maximum(counts, 1.0), centres)
