"""The blocks of categories by NumPy: what the encodings of a config compute, on numbers of categories.

The tests compare each with the encoding that it stands for, and with scikit-learn's. Target encoding is cross-fitted: a
training row gets a mean that was computed without the rows of its part, and other rows the mean over all training rows.
The parts are drawn, where a config's are given by hashes of the rows' places; all else is the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import StratifiedKFold

from ziggurat.search.pipelines.blocks.one_hot import one_hot
from ziggurat.search.pipelines.pipeline import CategoricalPipeline
from ziggurat.search.pipelines.table import Floats, Ints

MOST_CATEGORIES = 62
"""The most categories with a number of their own where they are one-hot."""
_PARTS = 5
Places = npt.NDArray[np.int64]


def categorical_block(
    pipeline: CategoricalPipeline, train: Floats, labels: Ints, other: Floats
) -> tuple[Floats, Floats]:
    """Returns (n, w) of the training codes (n,) and (m, w) of the others, fitted on the training rows alone.

    Args:
        pipeline: what to compute.
        train: numbers of categories, -1 for missing; their buckets for ``hash``.
        labels: (n,) classes of the training rows.
        other: as ``train``, of other rows.
    """
    first, second = train.astype(np.int64) + 1, other.astype(np.int64) + 1
    if pipeline.imputer == "most_frequent" and (first > 0).any():
        present, counts = np.unique(first[first > 0], return_counts=True)
        fill = present[int(counts.argmax())]
        first, second = np.where(first > 0, first, fill), np.where(second > 0, second, fill)
    match pipeline.encoder:
        case "hash":
            return one_hot(first, pipeline.buckets + 1), one_hot(second, pipeline.buckets + 1)  # missing ones first
        case "ordinal":
            return _ordinal(first, second)
        case "one_hot":
            return _one_hot(first, second)
        case "target":
            return _target(first, labels, second)


def _standardised(train: Floats, other: Floats) -> tuple[Floats, Floats]:
    mean, std = train.mean(axis=0), train.std(axis=0)
    std = np.where(std < 10 * np.finfo(np.float64).eps * np.maximum(1.0, np.abs(mean)), 1.0, std)
    return (train - mean) / std, (other - mean) / std


def _ordinal(train: Places, other: Places) -> tuple[Floats, Floats]:
    """Returns places among the known categories, -1 for one that is not, -2 for a missing value; standardised."""
    known = np.unique(train[train > 0])

    def placed(codes: Places) -> Floats:
        places = np.searchsorted(known, codes)
        found = known[np.minimum(places, len(known) - 1)] == codes if len(known) else np.zeros(len(codes), np.bool_)
        return np.where(codes == 0, -2.0, np.where(found, places, -1.0))[:, None]

    return _standardised(placed(train), placed(other))


def _one_hot(train: Places, other: Places) -> tuple[Floats, Floats]:
    """Returns a number for missing values, one for rare and unknown categories, then one for each frequent one."""
    counts = np.bincount(train)
    counts[0] = 0
    order = np.argsort(-counts, kind="stable")
    frequent = np.sort(order[counts[order] > 0][:MOST_CATEGORIES])

    def hot(codes: Places) -> Floats:
        places = np.searchsorted(frequent, codes)
        known = np.append(frequent, -1)[places] == codes
        return one_hot(np.where(codes == 0, 0, np.where(known, places + 2, 1)), len(frequent) + 2)

    return hot(train), hot(other)


def target_parts(labels: Ints) -> list[tuple[Places, Places]]:
    """Returns (rows that fit, rows that are encoded) of each part of the cross-fitting, a function of the labels."""
    divider = StratifiedKFold(_PARTS, shuffle=True, random_state=0)
    return list(divider.split(np.zeros(len(labels)), labels))


def _target(train: Places, labels: Ints, other: Places) -> tuple[Floats, Floats]:
    classes = np.unique(labels)
    targets = [labels == each for each in (classes if len(classes) > 2 else classes[-1:])]
    parts = target_parts(labels)
    first, second = np.empty((len(train), len(targets))), np.empty((len(other), len(targets)))
    for place, target in enumerate(targets):
        values = target.astype(np.float64)
        for fitted, encoded in parts:
            first[encoded, place] = _means(train[fitted], values[fitted], train[encoded])
        second[:, place] = _means(train, values, other)
    return _standardised(first, second)


def _means(codes: Places, values: Floats, wanted: Places) -> Floats:
    """Returns the smoothed mean of each wanted category: empirical Bayes, by the variance within and over all.

    Source: Micci-Barreca 2001, "A preprocessing scheme for high-cardinality categorical attributes", equations 5 and 6,
    as scikit-learn's ``TargetEncoder(smooth="auto")``.
    """
    size = int(max(codes.max(), wanted.max(initial=0))) + 1
    counts = np.bincount(codes, minlength=size).astype(np.float64)
    overall, variance = values.mean(), values.var()
    some = np.maximum(counts, 1.0)
    means = np.bincount(codes, values, size) / some
    within = np.bincount(codes, (values - means[codes]) ** 2, size) / some
    weight = variance * counts
    total = weight + within
    share = np.divide(weight, total, out=np.ones_like(weight), where=total > 0)
    smoothed = share * means + (1 - share) * overall
    return np.where((counts > 0) & (variance > 0), smoothed, overall)[wanted]
