"""The fast blocks are what scikit-learn's transformers compute."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from reference_transformers import transformer_of

from ziggurat.search.pipelines.blocks.fitted import fitted_block, input_of
from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline, possible, title
from ziggurat.search.pipelines.table import Table

ROWS, FITTED = 400, 300


def make_table() -> Table:
    random = np.random.default_rng(3)
    skewed = random.lognormal(size=ROWS) - 0.5
    holes = np.where(random.random(ROWS) < 0.2, np.nan, random.normal(size=ROWS))
    ties = np.where(random.random(ROWS) < 0.6, 0.0, random.integers(0, 5, ROWS))
    texts = np.array([f"c{min(each, 90)}" for each in random.geometric(0.05, ROWS)])
    some = [None if draw < 0.1 else text for draw, text in zip(random.random(ROWS), texts, strict=True)]
    labels = random.integers(0, 3, ROWS)
    columns = {"skewed": skewed, "holes": holes, "ties": ties, "constant": np.ones(ROWS), "text": some}
    return Table.of(columns, labels, {"text": "categorical"})


TABLE = make_table()


@pytest.mark.parametrize("name", ["skewed", "holes", "ties", "constant"])
def test_numbers(name: str) -> None:
    column = TABLE.column(name)
    labels, failed = TABLE.labels, []
    for pipeline in possible("numeric", has_missing=column.has_missing):
        assert isinstance(pipeline, NumericPipeline)
        if name == "constant" and pipeline.discretiser == "spline":
            continue  # scikit-learn gives no finite numbers there
        if pipeline.discretiser == "kmeans_bins" and pipeline.scaler == "quantile_uniform":
            continue  # of values spread evenly, many divisions are as good
        if pipeline.discretiser == "kmeans_bins" and name == "ties":
            continue  # of fewer values than bins, each is an interval here; scikit-learn's depend on rounding
        if pipeline.scaler.startswith("quantile") and name != "skewed":
            continue  # equal values are at the middle of their ranks here; scikit-learn's are at an end, or between
        values = input_of(column, pipeline)
        ours = fitted_block(pipeline, values[:FITTED], labels[:FITTED], values[FITTED:])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steps = transformer_of(pipeline, FITTED)
            theirs = steps.fit_transform(values[:FITTED]), steps.transform(values[FITTED:])
        # k-means stops within a tolerance and quantiles lie between values, so that one may be beyond a border.
        most = 0.02 if pipeline.discretiser in {"kmeans_bins", "quantile_bins"} else 0.0
        same = [
            left.shape == right.shape and (~np.isclose(left, right, rtol=1e-4, atol=1e-5)).mean() <= most
            for left, right in zip(ours, theirs, strict=True)
        ]
        if not all(same):
            failed.append(title(pipeline))
    assert failed == []


@pytest.mark.parametrize("classes", [2, 3])
def test_categories(classes: int) -> None:
    column, labels = TABLE.column("text"), np.minimum(TABLE.labels, classes - 1)
    for pipeline in possible("categorical", has_missing=True):
        assert isinstance(pipeline, CategoricalPipeline)
        if pipeline.encoder == "hash" and pipeline.imputer == "most_frequent":
            continue  # the most frequent bucket is not that of the most frequent category
        values = input_of(column, pipeline)
        ours = fitted_block(pipeline, values[:FITTED], labels[:FITTED], values[FITTED:])
        steps = transformer_of(pipeline, FITTED)
        theirs = steps.fit_transform(values[:FITTED], labels[:FITTED]), steps.transform(values[FITTED:])
        for left, right in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-9, err_msg=title(pipeline))
