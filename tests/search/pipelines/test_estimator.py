"""``PipelineSearch`` is an estimator as scikit-learn expects them, and takes frames with categories."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.utils.estimator_checks import check_estimator

from ziggurat.search import PipelineSearch


@pytest.mark.parametrize("method", ["standard", "cluster"])
def test_it_passes_the_checks_of_scikit_learn(method: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_estimator(PipelineSearch(method, budget=3, folds=2, metric="accuracy"))


def frame(rows: int, seed: int) -> tuple[pl.DataFrame, Any]:
    random = np.random.default_rng(seed)
    colours = random.choice(["red", "green", "blue"], rows)
    size = random.lognormal(size=rows)
    labels = np.where((colours == "red") ^ (np.abs(np.log(size)) > 1), "yes", "no")
    sized = pl.Series(size).scatter(0, None)
    return pl.DataFrame({"colour": colours, "size": sized}), labels


def test_a_frame_with_categories_and_categories_that_are_new() -> None:
    table, labels = frame(300, 0)
    search = PipelineSearch(budget=20, metric="log_loss").fit(table, labels)
    other, truth = frame(300, 1)
    assert search.score(other, truth) > 0.7
    assert search.found_.score > search.found_.standard
    new = other.with_columns(pl.lit("violet").alias("colour"))
    assert np.isfinite(search.predict_proba(new)).all()
    with pytest.raises(ValueError, match="was fitted with"):
        search.transform(other.select("size"))
