"""``ziggurat search pipelines`` over a log: the table is the training rows, and what it writes trains as it stands."""

from __future__ import annotations

import csv
import itertools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import MakeExperiment, make_experiment
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Silent
from ziggurat.features.config import CategoricalFeature, NumericFeature, TimeFeature
from ziggurat.search.pipelines.blocks.fitted import fitted_block, input_of
from ziggurat.search.pipelines.downstream import LogisticRegressionTask
from ziggurat.search.pipelines.evaluation import Evaluator
from ziggurat.search.pipelines.experiment_search import BEST_FILE, search_feature_pipelines
from ziggurat.search.pipelines.experiment_table import searched_features, table_of, with_pipelines
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
    table = table_of(experiment, searched_features(experiment), 10_000, 0, None, Silent())
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


TIMES: list[dict[str, Any]] = [
    {"name": "moment_hour", "kind": "time", "column": "moment", "part": "hour", "format": "iso"},
    {"name": "moment_age", "kind": "time", "column": "moment", "part": "age", "format": "iso"},
    {"name": "day", "kind": "time", "part": "weekday", "as": "categorical", "format": "%d.%m.%Y"},
]


def add_times(path: Path) -> list[tuple[datetime | None, datetime]]:
    """Adds a moment, every seventh of which is a midnight and every eleventh missing, and a day to a log."""
    random = np.random.default_rng(7)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    times: list[tuple[datetime | None, datetime]] = []
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, [*rows[0], "moment", "day"])
        out.writeheader()
        for number, row in enumerate(rows):
            day = datetime(2023, 1, 1, tzinfo=UTC) + timedelta(days=int(random.integers(0, 900)))
            moment = day + timedelta(seconds=0 if number % 7 == 0 else int(random.integers(0, 86_400)))
            times.append((None if number % 11 == 0 else moment, day))
            out.writerow({**row, "moment": "" if number % 11 == 0 else moment.isoformat(), "day": f"{day:%d.%m.%Y}"})
    return times


def test_the_table_has_times_to_the_second(make_experiment: MakeExperiment) -> None:
    times = add_times(Path("log.csv"))
    experiment = make_experiment(features=[*FEATURES, *TIMES])
    table = table_of(experiment, searched_features(experiment), 10_000, 0, None, Silent())
    assert [each.name for each in table.columns if each.kind == "time"] == ["moment", "day"]
    found = table.column("moment").values, table.column("day").values
    given = {(None if moment is None else moment.timestamp(), day.timestamp()) for moment, day in times}
    pairs = {(None if np.isnan(moment) else float(moment), float(day)) for moment, day in zip(*found, strict=True)}
    assert pairs <= given
    assert len(pairs) > 0.5 * len(given)


@pytest.mark.parametrize("encoder", ["cyclic", "age", "cyclic_and_age"])
@pytest.mark.parametrize("column", ["moment", "day"])
def test_the_config_computes_of_times_what_the_search_judged(
    make_experiment: MakeExperiment, encoder: Any, column: str
) -> None:
    add_times(Path("log.csv"))
    experiment = make_experiment(features=[*FEATURES, *TIMES], model={"name": "logistic_regression"})
    pipeline = TimePipeline(encoder=encoder)
    table = table_of(experiment, searched_features(experiment), 10_000, 0, None, Silent())
    values = input_of(table.column(column), pipeline)
    ours, _ = fitted_block(pipeline, values, table.labels, values)
    made = with_pipelines(experiment, {column: pipeline}, "made")
    names = [each.name for each in made.features if isinstance(each, TimeFeature) and each.source_column == column]
    of_dates = ["weekday", "month"] if column == "day" else ["hour", "weekday", "month"]
    parts = {"cyclic": of_dates, "age": ["age"], "cyclic_and_age": [*of_dates, "age"]}[encoder]
    assert names == [f"{column}_{part}" for part in parts]
    dataset = prepare(made)
    blocks = dataset.split("train")
    read = [blocks.read(block) for block in range(len(blocks.sizes))]
    waves = [f"{name}{end}" for name in names for end in ([""] if name.endswith("_age") else ["_sin", "_cos"])]
    prepared = np.stack([np.concatenate([each.column(name).to_numpy() for each in read]) for name in waves], axis=1)
    if column == "day" and encoder != "age":
        ours = ours[:, 2:]  # the hour of a day is the same in all rows
    np.testing.assert_allclose(prepared, ours, rtol=2e-4, atol=2e-4)


def test_a_search_with_times_writes_a_config_that_trains(make_experiment: MakeExperiment) -> None:
    add_times(Path("log.csv"))
    experiment = make_experiment(features=[*FEATURES, *TIMES], training={"batch_size": 512, "epochs": 1})
    searched = search_feature_pipelines(experiment, budget=8, folds=2)
    assert searched.left == {"tags": ""}
    assert set(searched.found.pipelines) == {"user", "age", "moment", "day"}
    best = load_experiment(searched.folder / BEST_FILE)
    assert best == searched.experiment
    assert train(best).results is not None


def test_a_column_of_times_named_like_another_feature_keeps_a_name_of_its_own(make_experiment: MakeExperiment) -> None:
    times = [{"name": "when_hour", "kind": "time", "column": "when", "part": "hour", "format": "seconds"}]
    experiment = make_experiment(features=[*FEATURES, {"name": "when", "kind": "numeric"}, *times])
    assert [each.name for each in searched_features(experiment)] == ["user", "age", "when", "when_hour"]
    made = with_pipelines(experiment, {"when_hour": TimePipeline(encoder="age")}, "made")
    assert [each.name for each in made.features] == ["user", "age", "tags", "when", "when_hour_age"]


def test_slices_of_an_hour_that_becomes_a_wave_are_left_out(make_experiment: MakeExperiment) -> None:
    hour = {"name": "when_hour", "kind": "time", "column": "when", "part": "hour", "format": "seconds"}
    hour |= {"as": "categorical"}
    experiment = make_experiment(features=[*FEATURES, hour], evaluation={"slices": ["user", "when_hour"]})
    made = with_pipelines(experiment, {"when": TimePipeline()}, "made")
    made.check()
    assert list(made.evaluation.slices) == ["user"]
    assert list(with_pipelines(experiment, {}, "made").evaluation.slices) == ["user", "when_hour"]


def test_a_search_writes_a_config_that_trains(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    experiment = make_experiment(features=FEATURES, training={"batch_size": 512, "epochs": 1})
    searched = search_feature_pipelines(experiment, budget=6, folds=2)
    assert searched.left == {"tags": ""}
    assert set(searched.found.pipelines) == {"user", "age"}
    best = load_experiment(searched.folder / BEST_FILE)
    assert best == searched.experiment
    assert train(best).results is not None
    again = search_feature_pipelines(experiment, budget=6, folds=2)
    assert [each.scores for each in again.found.trials] == [each.scores for each in searched.found.trials]


def test_the_table_has_the_training_rows_alone(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(features=FEATURES)
    table = table_of(experiment, searched_features(experiment), 10_000, 0, None, Silent())
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
