"""The transformers of scikit-learn that compute what the blocks of numbers and categories do, for comparison."""

from __future__ import annotations

from collections import Counter
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
    OrdinalEncoder,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
    TargetEncoder,
)

from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline
from ziggurat.search.pipelines.table import MISSING_CODE, Floats

_QUANTILES = 100
_ALL_ROWS: Any = None
_SEED: Any = 0
_MOST_CATEGORIES = 62


def transformer_of(pipeline: NumericPipeline | CategoricalPipeline, rows: int) -> Steps:
    """Returns the transformer of one column, (n, 1) to (n, w), not fitted.

    Args:
        pipeline: what it does.
        rows: how many rows it will be fitted on, which bounds the number of quantiles.
    """
    return _numeric(pipeline, rows) if isinstance(pipeline, NumericPipeline) else _categorical(pipeline)


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
            holes = FunctionTransformer(lambda codes: np.where(codes == MISSING_CODE, np.nan, codes))
            places = OrdinalEncoder(
                handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2
            )  # fmt: skip
            parts += [("holes", holes), ("encode", places), ("scale", StandardScaler())]
        case "one_hot":
            parts.append(("encode", FrequentCategories()))
        case "target":
            means = TargetEncoder(smooth="auto", cv=5, random_state=_SEED)
            parts += [("encode", means), ("scale", StandardScaler())]
        case "hash":
            parts.append(("encode", Buckets(pipeline.buckets)))
    return Steps(parts)


def signed_log(values: Any) -> Any:
    """Returns sign(x) log(1 + |x|), as the step ``log`` of a config."""
    return np.copysign(np.log1p(np.abs(values)), values)


class FrequentCategories(TransformerMixin, BaseEstimator):
    """Codes -> a number for missing ones, one for rare and unknown ones, one for each of the 62 most frequent."""

    def fit(self, X: Any, y: Any = None) -> Self:
        counts = Counter(code for code in np.asarray(X)[:, 0].tolist() if code != MISSING_CODE)
        often = sorted(counts, key=lambda code: (-counts[code], code))[:_MOST_CATEGORIES]
        self.frequent_ = sorted(often)
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X: Any) -> Floats:
        hot = np.zeros((len(X), len(self.frequent_) + 2))
        for row, code in enumerate(np.asarray(X)[:, 0].tolist()):
            known = code in self.frequent_
            hot[row, 2 + self.frequent_.index(code) if known else int(code != MISSING_CODE)] = 1.0
        return hot


class Buckets(TransformerMixin, BaseEstimator):
    """Numbers of buckets -> one-hot, (n, 1) -> (n, buckets + 1); the first is for missing values."""

    def __init__(self, buckets: int = 32) -> None:
        self.buckets = buckets

    def fit(self, X: Any, y: Any = None) -> Self:
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X: Any) -> Floats:
        return np.eye(self.buckets + 1)[1 + np.asarray(X)[:, 0].astype(np.int64)]
