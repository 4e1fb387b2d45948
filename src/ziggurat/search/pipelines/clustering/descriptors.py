"""What a column looks like, in a few numbers: type, missing and unique shares, moments, quantiles, ties to the label.

They are computed on the rows that are given, which are the training rows of one fold: validation rows of that fold have
no part in them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import stats

from ziggurat.search.pipelines.table import Column, Floats, Ints, Table

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BINS = 10
_FARTHEST = 3.0
DESCRIPTORS = (
    "numeric", "categorical", "time", "missing", "unique", "mean", "std", "skew", "kurtosis",
    *(f"quantile_{each:g}" for each in _QUANTILES), "correlation", "information",
)  # fmt: skip


def describe(table: Table, rows: Ints) -> Floats:
    """Returns (D, 16) descriptors of the columns over some rows.

    Of a category the numbers are the logs of how many rows have the same one. Mean, std, skew and kurtosis are as
    sign(x) log(1 + |x|); quantiles are of the standardised values; the correlation is the largest absolute one with a
    class against the rest; the information is that of ten bins about the class, as a share of the class's entropy.
    """
    return np.array([_of(each.rows(rows), table.labels[rows], len(table.classes)) for each in table.columns])


def standardised(descriptors: Floats) -> Floats:
    """Returns (D, K) with mean 0 and standard deviation 1 over the columns, within ±3; what does not vary is 0."""
    spread = descriptors.std(axis=0)
    shifted = (descriptors - descriptors.mean(axis=0)) / np.where(spread > 1e-9, spread, 1.0)
    return np.clip(np.where(spread > 1e-9, shifted, 0.0), -_FARTHEST, _FARTHEST)


def _of(column: Column, labels: Ints, classes: int) -> list[float]:
    missing = column.missing
    present = column.values[~missing]
    kinds = [float(column.kind == each) for each in ("numeric", "categorical", "time")]
    shares = [float(missing.mean()), len(np.unique(present)) / max(1, len(present))]
    if len(present) == 0:
        return [*kinds, *shares, *[0.0] * (len(DESCRIPTORS) - len(kinds) - len(shares))]
    numbers = present if column.kind != "categorical" else _log_counts(present)
    mean, std = float(numbers.mean()), float(numbers.std())
    scaled = (numbers - mean) / std if std > 1e-12 * max(1.0, abs(mean)) else np.zeros(len(numbers))
    skew, kurtosis = float((scaled**3).mean()), float((scaled**4).mean())
    moments = [float(np.copysign(np.log1p(abs(each)), each)) for each in (mean, std, skew, kurtosis)]
    quantiles = [float(each) for each in np.quantile(scaled, _QUANTILES)]
    chosen = labels[~missing]
    return [*kinds, *shares, *moments, *quantiles, _correlation(scaled, chosen, classes), _information(column, labels)]


def _log_counts(codes: Floats) -> Floats:
    _, places, counts = np.unique(codes, return_inverse=True, return_counts=True)
    return np.log(counts[places])


def _correlation(scaled: Floats, labels: Ints, classes: int) -> float:
    """Returns the largest absolute correlation of standardised numbers with a class against the rest."""
    most = 0.0
    for each in range(classes if classes > 2 else 1):
        side = (labels == each).astype(np.float64)
        if side.std() > 0:
            most = max(most, abs(float((scaled * (side - side.mean())).mean() / side.std())))
    return most


def _information(column: Column, labels: Ints) -> float:
    """Returns the mutual information of a column's bins, of which one is missing, and the class, over its entropy."""
    places = _bins(column)
    joint = np.zeros((int(places.max()) + 1, int(labels.max()) + 1))
    np.add.at(joint, (places, labels), 1.0)
    joint /= joint.sum()
    outer = joint.sum(axis=1, keepdims=True) @ joint.sum(axis=0, keepdims=True)
    some = joint > 0
    entropy = float(stats.entropy(joint.sum(axis=0)))
    return float((joint[some] * np.log(joint[some] / outer[some])).sum()) / entropy if entropy > 0 else 0.0


def _bins(column: Column) -> npt.NDArray[np.int64]:
    if column.kind == "categorical":
        counts = np.bincount(column.values.astype(np.int64) + 1)
        frequent = np.argsort(-counts, kind="stable")[:_BINS]
        places = np.full(len(counts), len(frequent))
        places[frequent] = np.arange(len(frequent))
        return places[column.values.astype(np.int64) + 1]
    present = column.values[~column.missing]
    edges = np.unique(np.quantile(present, np.linspace(0, 1, _BINS + 1)[1:-1])) if len(present) else np.empty(0)
    places = np.searchsorted(edges, column.values, side="right")
    return np.where(column.missing, len(edges) + 1, places).astype(np.int64)
