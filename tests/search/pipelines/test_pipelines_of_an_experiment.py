"""``ziggurat search pipelines`` over a log: the table is the training rows, and what it writes trains as it stands."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import MakeExperiment, make_experiment
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Silent
from ziggurat.features.config import CategoricalFeature, NumericFeature, TimeFeature
from ziggurat.search.pipelines.blocks import fitted_block, input_of
from ziggurat.search.pipelines.downstream import LogisticRegressionTask
from ziggurat.search.pipelines.evaluation import Evaluator
from ziggurat.search.pipelines.experiment_search import BEST_FILE, search_feature_pipelines
from ziggurat.search.pipelines.experiment_table import table_of, with_pipelines
from ziggurat.search.pipelines.features_section import features_of
from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline, TimePipeline, possible
from ziggurat.training.experiment import load_experiment
from ziggurat.training.preparation import prepare
from ziggurat.training.train import train

__all__ = ["make_experiment"]

FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "categorical"},
    {"name": "age", "kind": "numeric"},
    {"name": "tags", "kind": "bag", "type": "integer"},
]


def test_every_pipeline_is_a_config(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(features=FEATURES)
    numbers, categories = possible("numeric", has_missing=True), possible("categorical", has_missing=True)
    for number, category in itertools.zip_longest(numbers, categories, fillvalue=CategoricalPipeline()):
        made = with_pipelines(experiment, {"age": number, "user": category}, "made")
        made.check()
        assert made.features[-1].name == "tags"
    time = TimeFeature.model_validate({"name": "when", "kind": "time", "part": "hour", "format": "seconds"})
    parts = [each["part"] for each in features_of(time, TimePipeline(encoder="cyclic_and_age"))]
    assert parts == ["hour", "weekday", "month", "age"]
    with pytest.raises(ConfigError, match="give a numeric pipeline"):
        features_of(NumericFeature(name="age"), CategoricalPipeline())
    kept = features_of(CategoricalFeature(name="user", table="people"), CategoricalPipeline())
    assert kept == [{"name": "user", "kind": "categorical", "table": "people"}]


@pytest.mark.parametrize("scaler", ["standard", "min_max", "max_abs", "robust", "power", "quantile_normal", "log"])
def test_the_config_computes_what_the_search_judged(make_experiment: MakeExperiment, scaler: Any) -> None:
    experiment = make_experiment(features=FEATURES, model={"name": "logistic_regression"})
    pipeline = NumericPipeline(scaler=scaler, missing_flag=True)
    table = table_of(experiment, 10_000, 0, None, Silent())
    values = input_of(table.column("age"), pipeline)
    ours, _ = fitted_block(pipeline, values, table.labels, values)
    dataset = prepare(with_pipelines(experiment, {"age": pipeline}, "made"))
    blocks = dataset.split("train")
    read = [blocks.read(block) for block in range(len(blocks.sizes))]
    prepared = np.stack(
        [np.concatenate([each.column(name).to_numpy() for each in read]) for name in ("age", "age_missing")], axis=1
    )
    # The quantiles of a config are ranks within 100 intervals, with ties at the middle of theirs.
    np.testing.assert_allclose(prepared, ours, rtol=2e-4, atol=0.1 if "quantile" in scaler else 2e-4)


def test_a_search_writes_a_config_that_trains(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    experiment = make_experiment(features=FEATURES, training={"batch_size": 512, "epochs": 1})
    searched = search_feature_pipelines(experiment, budget=6, folds=2)
    assert searched.left == ("tags",)
    assert set(searched.found.pipelines) == {"user", "age"}
    best = load_experiment(searched.folder / BEST_FILE)
    assert best == searched.experiment
    assert train(best).results is not None
    again = search_feature_pipelines(experiment, budget=6, folds=2)
    assert [each.scores for each in again.found.trials] == [each.scores for each in searched.found.trials]


def test_the_table_has_the_training_rows_alone(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(features=FEATURES)
    table = table_of(experiment, 10_000, 0, None, Silent())
    rows = [line.split(",") for line in Path("log.csv").read_text().splitlines()[1:]]
    dataset = prepare(experiment)
    assert len(table.labels) == dataset.split("train").rows < len(rows)
    shares = [float(table.column("age").missing.mean()), float(np.mean([row[2] == "" for row in rows]))]
    np.testing.assert_allclose(*shares, atol=0.01)
    assert table.column("user").categories[0] == "u0"
    assert Evaluator(table, LogisticRegressionTask(folds=2), 0).evaluate(
        {"user": CategoricalPipeline(encoder="target"), "age": NumericPipeline()}
    ).score == pytest.approx(0.55, abs=0.07)


def test_the_model_of_the_config_judges(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(features=FEATURES, training={"batch_size": 1024, "epochs": 1, "monitor": "auc"})
    searched = search_feature_pipelines(experiment, downstream="model", method="shared", budget=2)
    assert [len(each.scores) for each in searched.found.trials] == [1, 1]
    assert all(0.3 < each.score < 0.8 for each in searched.found.trials)
    assert not list((searched.folder / "trials").iterdir())


def test_what_cannot_be_searched_is_named(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(features=FEATURES[2:], evaluation={})
    with pytest.raises(ConfigError, match="nothing to search"):
        search_feature_pipelines(experiment)
    assert parse_config(NumericPipeline, {}, "a pipeline") == NumericPipeline()
