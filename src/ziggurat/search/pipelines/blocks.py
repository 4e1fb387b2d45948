"""The scikit-learn transformer of one column that a pipeline describes, and what it takes as input.

Each transformer maps (n, 1) to (n, w). It is fitted on training rows alone; ``fit_transform`` of a target encoder gives
those rows values that were fitted without them.
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import FeatureUnion
from sklearn.pipeline import Pipeline as Steps
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)

from ziggurat.search.pipelines.fast_categories import categorical_block
from ziggurat.search.pipelines.fast_numbers import numeric_block
from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline, TimePipeline
from ziggurat.search.pipelines.table import MISSING_CODE, Column, Floats, Ints

_QUANTILES = 100
_ALL_ROWS: Any = None
_SEED: Any = 0
_MOST_CATEGORIES = 64
_DAY_S = 86_400.0


def input_of(column: Column, pipeline: NumericPipeline | CategoricalPipeline | TimePipeline) -> Floats:
    """Returns (N, 1), what the transformer of ``pipeline`` takes of a column."""
    hashed = isinstance(pipeline, CategoricalPipeline) and pipeline.encoder == "hash"
    return (column.hashed() if hashed else column.values)[:, None]


def transformer_of(pipeline: NumericPipeline | CategoricalPipeline | TimePipeline, rows: int) -> Steps:
    """Returns the transformer, not fitted.

    Args:
        pipeline: what it does.
        rows: how many rows it will be fitted on, which bounds the number of quantiles.
    """
    match pipeline:
        case NumericPipeline():
            return _numeric(pipeline, rows)
        case CategoricalPipeline():
            return _categorical(pipeline)
        case TimePipeline():
            return Steps([("time", Times(pipeline.encoder)), ("impute", SimpleImputer(keep_empty_features=True))])


def fitted_block(
    pipeline: NumericPipeline | CategoricalPipeline | TimePipeline, train: Floats, labels: Ints, other: Floats
) -> tuple[Floats, Floats]:
    """Returns the transformed training rows and other rows, fitted on the training rows alone: (n, w) and (m, w).

    Numbers and categories take the fast path, which computes what :func:`transformer_of` does.

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
                steps = transformer_of(pipeline, len(train))
                fitted, rest = steps.fit_transform(train, labels), steps.transform(other)
    if not (np.isfinite(fitted).all() and np.isfinite(rest).all()):
        raise ValueError("a transformed value is not finite")
    return np.ascontiguousarray(fitted, np.float64), np.ascontiguousarray(rest, np.float64)


def _numeric(pipeline: NumericPipeline, rows: int) -> Steps:
    strategy: Any = np.min if pipeline.imputer == "min" else pipeline.imputer
    parts: list[tuple[str, Any]] = [("impute", SimpleImputer(strategy=strategy, keep_empty_features=True))]
    quantiles = max(1, min(_QUANTILES, rows))
    match pipeline.scaler:
        case "none":
            pass
        case "standard":
            parts.append(("scale", StandardScaler()))
        case "min_max":
            parts.append(("scale", MinMaxScaler()))
        case "max_abs":
            parts.append(("scale", MaxAbsScaler()))
        case "robust":
            parts.append(("scale", RobustScaler()))
        case "power":
            parts.append(("scale", PowerTransformer()))
        case "quantile_uniform":
            parts.append(("scale", QuantileTransformer(n_quantiles=quantiles, subsample=_ALL_ROWS)))
        case "quantile_normal":
            parts.append(
                ("scale", QuantileTransformer(n_quantiles=quantiles, output_distribution="normal", subsample=_ALL_ROWS))
            )
        case "log":
            parts.append(("scale", FunctionTransformer(signed_log)))
    match pipeline.discretiser:
        case "none":
            pass
        case "spline":
            parts.append(("spread", SplineTransformer(n_knots=pipeline.bins, degree=3, knots="uniform")))
        case kind:
            strategy = kind.removesuffix("_bins")
            cut = KBinsDiscretizer(
                n_bins=pipeline.bins, encode="onehot-dense", strategy=strategy, subsample=_ALL_ROWS, random_state=0,
                quantile_method="averaged_inverted_cdf",
            )  # fmt: skip
            parts.append(("spread", cut))
    steps = Steps(parts)
    if not pipeline.missing_flag:
        return steps
    flag = MissingIndicator(features="all")
    return Steps([("both", FeatureUnion([("value", steps), ("missing", flag)]))])


def _categorical(pipeline: CategoricalPipeline) -> Steps:
    parts: list[tuple[str, Any]] = []
    if pipeline.imputer == "most_frequent":
        parts.append(("impute", SimpleImputer(missing_values=MISSING_CODE, strategy="most_frequent")))
    match pipeline.encoder:
        case "ordinal":
            places = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
            parts += [("encode", places), ("scale", StandardScaler())]
        case "one_hot":
            dummies = OneHotEncoder(
                min_frequency=pipeline.min_frequency or None, max_categories=_MOST_CATEGORIES,
                handle_unknown="infrequent_if_exist", sparse_output=False,
            )  # fmt: skip
            parts.append(("encode", dummies))
        case "target":
            means = TargetEncoder(smooth="auto", cv=5, random_state=_SEED)
            parts += [("encode", means), ("scale", StandardScaler())]
        case "hash":
            parts.append(("encode", Buckets(pipeline.buckets)))
    return Steps(parts)


def signed_log(values: Any) -> Any:
    """Returns sign(x) log(1 + |x|), as the step ``log`` of a config."""
    return np.copysign(np.log1p(np.abs(values)), values)


class Buckets(TransformerMixin, BaseEstimator):
    """Hashes below 2³¹ -> one-hot of their buckets, (n, 1) -> (n, buckets); a missing value is zeros."""

    def __init__(self, buckets: int = 32) -> None:
        self.buckets = buckets

    def fit(self, X: Any, y: Any = None) -> Self:
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X: Any) -> Floats:
        places = np.asarray(X)[:, 0]
        hot = np.zeros((len(places), self.buckets))
        present = np.flatnonzero(places >= 0)
        hot[present, (places[present] % self.buckets).astype(np.int64)] = 1.0
        return hot


class Times(TransformerMixin, BaseEstimator):
    """Seconds since 1970 -> sines and cosines of hour, weekday and month, and the age; NaN stays NaN."""

    def __init__(self, encoder: str = "cyclic") -> None:
        self.encoder = encoder

    def fit(self, X: Any, y: Any = None) -> Self:
        present = X[~np.isnan(X)]
        self.mean_, self.std_ = (float(present.mean()), float(present.std())) if len(present) else (0.0, 1.0)
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
            parts.append((seconds - self.mean_) / (self.std_ or 1.0))
        return np.stack(parts, axis=1)
