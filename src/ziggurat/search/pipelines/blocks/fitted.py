"""The block of one column that a pipeline gives, fitted on training rows alone, and what it takes as input."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from ziggurat.search.pipelines.blocks.categories import categorical_block
from ziggurat.search.pipelines.blocks.numbers import numeric_block
from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline, TimePipeline
from ziggurat.search.pipelines.table import Column, Floats, Ints

_DAY_S = 86_400.0


def input_of(column: Column, pipeline: NumericPipeline | CategoricalPipeline | TimePipeline) -> Floats:
    """Returns (N, 1), what ``pipeline`` takes of a column."""
    if isinstance(pipeline, CategoricalPipeline) and pipeline.encoder == "hash":
        return column.buckets(pipeline.buckets)[:, None]
    return column.values[:, None]


def fitted_block(
    pipeline: NumericPipeline | CategoricalPipeline | TimePipeline, train: Floats, labels: Ints, other: Floats
) -> tuple[Floats, Floats]:
    """Returns the transformed training rows and other rows, fitted on the training rows alone: (n, w) and (m, w).

    Args:
        pipeline: what to compute.
        train: (n, 1) input, see :func:`input_of`.
        labels: (n,) classes of the training rows.
        other: (m, 1) input of other rows.

    Raises:
        ValueError: it cannot be fitted, or gives values that are not finite.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        match pipeline:
            case NumericPipeline():
                fitted, rest = numeric_block(pipeline, train[:, 0], other[:, 0])
            case CategoricalPipeline():
                fitted, rest = categorical_block(pipeline, train[:, 0], labels, other[:, 0])
            case TimePipeline():
                times = Times(pipeline.encoder).fit(train)
                fitted, rest = times.transform(train), times.transform(other)
    if not (np.isfinite(fitted).all() and np.isfinite(rest).all()):
        raise ValueError("a transformed value is not finite")
    return np.ascontiguousarray(fitted, np.float64), np.ascontiguousarray(rest, np.float64)


class Times(TransformerMixin, BaseEstimator):
    """Seconds since 1970 -> sines and cosines of hour, weekday and month, and the age; all are 0 where it is missing.

    They are those of the ``time`` features that a config gets: the age is standardised over the training rows, and rows
    later or earlier than those count as their last or first.
    """

    def __init__(self, encoder: str = "cyclic") -> None:
        self.encoder = encoder

    def fit(self, X: Any, y: Any = None) -> Self:
        present = X[~np.isnan(X)]
        self.mean_, self.std_ = (float(present.mean()), float(present.std())) if len(present) else (0.0, 1.0)
        self.range_ = (float(present.min()), float(present.max())) if len(present) else (0.0, 0.0)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X: Any) -> Floats:
        seconds = np.asarray(X, np.float64)[:, 0]
        parts: list[Floats] = []
        if self.encoder != "age":
            days = seconds / _DAY_S
            known = np.where(np.isnan(seconds), 0.0, seconds).astype("datetime64[s]")
            month = (known.astype("datetime64[M]").astype(np.int64) % 12).astype(np.float64)
            for share in (days % 1.0, np.floor(days + 3) % 7 / 7, np.where(np.isnan(seconds), np.nan, month) / 12):
                parts += [np.sin(2 * np.pi * share), np.cos(2 * np.pi * share)]
        if self.encoder != "cyclic":
            parts.append((np.clip(seconds, *self.range_) - self.mean_) / (self.std_ or 1.0))
        return np.nan_to_num(np.stack(parts, axis=1))
