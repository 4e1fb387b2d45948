"""``PipelineSearch`` is an estimator as scikit-learn expects them, and takes frames with categories."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from typing import Any

import numpy as np
import polars as pl
import pytest
from sklearn.utils.estimator_checks import check_estimator

from ziggurat.core.errors import ConfigError
from ziggurat.search import PipelineSearch
from ziggurat.search.pipelines.pipeline import STANDARD, CategoricalPipeline


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
    names = search.get_feature_names_out()
    assert len(names) == search.transform(other).shape[1]
    assert {name.partition("_")[0] for name in names} == {"colour", "size"}


def test_a_prediction_does_not_depend_on_the_rows_beside_it() -> None:
    random = np.random.default_rng(0)
    codes = random.integers(0, 6, 400).astype(float)
    labels = (random.random(400) < np.where(codes == 4, 0.9, 0.3)).astype(int)
    search = PipelineSearch("standard", kinds={"code": "categorical"}).fit(pl.DataFrame({"code": codes}), labels)
    alone = search.predict_proba(pl.DataFrame({"code": [4.0]}))[0]
    beside = search.predict_proba(pl.DataFrame({"code": [4.0, 2.5]}))[0]
    np.testing.assert_array_equal(alone, beside)
    assert alone[1] > 0.6


def test_target_means_of_the_fitted_rows_are_those_of_others() -> None:
    random = np.random.default_rng(0)
    table = pl.DataFrame({"id": [f"i{place // 2}" for place in range(600)], "size": random.normal(size=600)})
    labels = random.integers(0, 2, 600)
    search = PipelineSearch("standard").fit(table, labels)
    search.found_.pipelines["id"] = CategoricalPipeline(encoder="target")  # whatever the search may find
    search.fit = lambda X, y: search  # pyright: ignore[reportAttributeAccessIssue]
    fitted, as_new = search.fit_transform(table, labels)[:, 0], search.transform(table)[:, 0]
    assert np.corrcoef(as_new, labels)[0, 1] > 0.5
    assert abs(np.corrcoef(fitted, labels)[0, 1]) < 0.15


def test_an_interrupted_fit_is_not_a_fit() -> None:
    table, labels = frame(300, 0)
    for number, raised in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
        search = PipelineSearch("shared", budget=100_000)
        timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
        timer.start()
        with pytest.raises(raised):
            search.fit(table, labels)
        timer.join()
        assert not hasattr(search, "_model")
        standard = {name: STANDARD[each.kind] for name, each in search.found_.pipelines.items()}
        assert search.found_.pipelines == standard


def test_seeds_and_kinds_are_checked() -> None:
    table, labels = frame(100, 0)
    for state in (None, np.random.RandomState(3), np.int64(3)):
        PipelineSearch("standard", random_state=state).fit(table, labels)
    with pytest.raises(ValueError, match="no column 'color'"):
        PipelineSearch("standard", kinds={"color": "categorical"}).fit(table, labels)
    with pytest.raises(ValueError, match="'colour' is 'category'; give one of numeric"):
        PipelineSearch("standard", kinds={"colour": "category"}).fit(table, labels)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="'tags' of type List"):
        PipelineSearch("standard").fit(pl.DataFrame({"tags": [[1]] * 100}), labels)
