"""What a search judges of a column is what the config that it writes prepares, for every pipeline and nasty columns."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import MakeExperiment, make_experiment
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Silent
from ziggurat.features.config import CategoricalFeature, NumericFeature
from ziggurat.search.pipelines.blocks.fitted import fitted_block, input_of
from ziggurat.search.pipelines.experiment_search import BEST_FILE, search_feature_pipelines
from ziggurat.search.pipelines.experiment_table import searched_features, table_of
from ziggurat.search.pipelines.features_section import features_of
from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline, possible, title
from ziggurat.search.pipelines.replaceable import replaceable
from ziggurat.search.pipelines.table import Floats, Table
from ziggurat.training.experiment import Experiment, load_experiment
from ziggurat.training.preparation import prepare
from ziggurat.training.train import train

__all__ = ["make_experiment"]

NUMBERS = ("zeros", "year", "small", "skewed")
USER: dict[str, Any] = {"name": "user", "kind": "categorical"}


def add_columns(path: Path) -> None:
    """Adds numbers with ties, far from 0, with holes; codes of whole numbers and texts with missing ones to a log."""
    random = np.random.default_rng(5)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [*NUMBERS, "code", "text"]
    with path.open("w", newline="") as file:
        out = csv.DictWriter(file, [*rows[0], *names])
        out.writeheader()
        for row in rows:
            skewed = f"{random.lognormal():.4f}" if random.random() < 0.9 else ""
            row["zeros"] = "0" if random.random() < 0.6 else f"{random.exponential():.4f}"
            row["year"], row["small"] = str(random.integers(2000, 2024)), str(random.integers(0, 4))
            row["skewed"], row["code"] = skewed, str(random.choice([2, 9, 10, 33, 100, 5, -7]))
            row["text"] = f"t{min(random.geometric(0.03), 120)}" if random.random() < 0.9 else ""
            out.writerow(row)


def prepared_columns(experiment: Experiment) -> dict[str, Floats]:
    blocks = prepare(experiment).split("train")
    read = [blocks.read(block) for block in range(len(blocks.sizes))]
    names = read[0].schema.names
    return {name: np.concatenate([each.column(name).to_numpy(zero_copy_only=False) for each in read]) for name in names}


def table_and_columns(
    make_experiment: MakeExperiment, features: list[dict[str, Any]], entries: list[dict[str, Any]]
) -> tuple[Table, dict[str, Floats]]:
    """Returns the table of a search over ``features``, and what a config with ``entries`` prepares."""
    experiment = make_experiment(features=features, model={"name": "logistic_regression"}, evaluation={})
    table = table_of(experiment, searched_features(experiment), 10_000, 0, None, Silent())
    values = {**experiment.model_dump(mode="json"), "features": entries, "name": "written"}
    return table, prepared_columns(parse_config(Experiment, values, "written"))


def test_every_pipeline_of_a_number(make_experiment: MakeExperiment) -> None:
    add_columns(Path("log.csv"))
    pipelines = [each for each in possible("numeric", has_missing=True) if isinstance(each, NumericPipeline)]
    chosen = [
        (name, each)
        for name, each in itertools.product(NUMBERS, pipelines)
        if name == "skewed" or (each.imputer == "median" and not each.missing_flag)
    ]
    entries = [
        entry
        for number, (name, pipeline) in enumerate(chosen)
        for entry in features_of(NumericFeature(name=f"f{number}", column=name), pipeline)
    ]
    features = [USER, *({"name": name, "kind": "numeric"} for name in NUMBERS)]
    table, prepared = table_and_columns(make_experiment, features, [USER, *entries])
    failed: list[str] = []
    for number, (name, pipeline) in enumerate(chosen):
        values = input_of(table.column(name), pipeline)
        judged, _ = fitted_block(pipeline, values, table.labels, values)
        width = judged.shape[1] - pipeline.missing_flag
        if pipeline.discretiser == "spline":
            written = np.stack([prepared[f"f{number}[{place}]"] for place in range(width)], axis=1)
        elif pipeline.discretiser == "none":
            written = prepared[f"f{number}"][:, None]
        else:
            written = np.eye(width)[prepared[f"f{number}"].astype(np.int64) - 1]
        if pipeline.missing_flag:
            written = np.concatenate([written, prepared[f"f{number}_missing"][:, None]], axis=1)
        if not np.allclose(judged, written, rtol=1e-4, atol=1e-4):
            failed.append(f"{name}: {title(pipeline)}")
    assert failed == []


@pytest.mark.parametrize("name", ["code", "text"])
def test_every_pipeline_of_a_category(make_experiment: MakeExperiment, name: str) -> None:
    add_columns(Path("log.csv"))
    kind: Any = "integer" if name == "code" else "text"
    own = {"name": name, "kind": "categorical", "type": kind}
    pipelines = [
        each
        for each in possible("categorical", has_missing=True)
        if isinstance(each, CategoricalPipeline) and (each.encoder != "hash" or each.imputer == "category")
    ]
    entries = [
        entry
        for number, pipeline in enumerate(pipelines)
        for entry in features_of(
            CategoricalFeature(name=f"f{number}", column=name, type=kind), pipeline, numbers=True
        )
    ]  # fmt: skip
    table, prepared = table_and_columns(make_experiment, [USER, own], [USER, *entries])
    for number, pipeline in enumerate(pipelines):
        values = input_of(table.column(name), pipeline)
        judged, _ = fitted_block(pipeline, values, table.labels, values)
        columns = [each for each in prepared if each == f"f{number}" or each.startswith(f"f{number}[")]
        written = np.stack([prepared[each] for each in columns], axis=1)
        if pipeline.encoder == "target":  # in parts that are divided otherwise
            assert np.corrcoef(judged[:, 0], written[:, 0])[0, 1] > 0.6, title(pipeline)
        elif pipeline.encoder == "one_hot":  # the most frequent first
            assert sorted(map(tuple, judged[:, judged.any(axis=0)].T)) == sorted(
                map(tuple, written[:, written.any(axis=0)].T)
            ), title(pipeline)
        else:
            np.testing.assert_allclose(judged, written, rtol=1e-5, atol=1e-5, err_msg=title(pipeline))


def test_features_that_cannot_get_any_pipeline_stay_as_they_are(make_experiment: MakeExperiment) -> None:
    taken = {"name": "age_missing", "column": "age", "kind": "numeric", "transforms": [{"name": "missing_flag"}]}
    history = {"name": "history", "kind": "sequence", "type": "integer", "table": "item"}
    history |= {"last": 4, "pooling": {"name": "target_attention", "target": "item"}}
    item = {"name": "item", "kind": "categorical", "type": "integer"}
    experiment = make_experiment(features=[USER, {"name": "age", "kind": "numeric"}, taken, item, history])
    found = replaceable(experiment)
    assert [each.name for each in found.searched] == ["user", "age_missing"]
    assert "age_missing" in found.left["age"]
    assert set(found.left) == {"age", "item", "history"}
    searched = search_feature_pipelines(experiment, budget=3, folds=2, method="shared")
    assert dict(searched.left) == dict(found.left)
    assert f"age ({found.left['age']})" in (searched.folder / BEST_FILE).read_text()


def test_a_table_with_settings_of_its_own_may_become_numbers(make_experiment: MakeExperiment) -> None:
    features = [USER, {"name": "age", "kind": "numeric"}, {"name": "tags", "kind": "bag", "type": "integer"}]
    tables = {"user": {"dim": 4}, "tags": {"dim": 8}}
    experiment = make_experiment(
        features=features, embeddings={"dim": 8, "tables": tables}, training={"batch_size": 512, "epochs": 1}
    )
    searched = search_feature_pipelines(experiment, budget=6, folds=2, method="shared")
    encoders = {each.pipelines["user"].encoder for each in searched.found.trials}  # pyright: ignore[reportAttributeAccessIssue]
    assert encoders & {"target", "ordinal"}
    assert train(load_experiment(searched.folder / BEST_FILE)).results is not None


def test_names_of_features_do_not_clash_with_those_that_carry_raw_values(make_experiment: MakeExperiment) -> None:
    when = {"name": "hour", "kind": "time", "column": "when", "part": "hour", "format": "seconds"}
    clashing = [{"name": name, "column": "age", "kind": "numeric"} for name in ("age", "age_is_missing", "when_age")]
    experiment = make_experiment(features=[USER, *clashing, when])
    table = table_of(experiment, searched_features(experiment), 10_000, 0, None, Silent())
    assert [each.name for each in table.columns] == ["user", "age", "age_is_missing", "when_age", "when"]
    for name in ("age_is_missing", "when_age"):
        np.testing.assert_array_equal(table.column(name).values, table.column("age").values)


def test_nothing_to_replace_is_said_before_the_search(make_experiment: MakeExperiment) -> None:
    taken = {"name": "age_missing", "kind": "bag", "column": "tags", "type": "integer"}
    experiment = make_experiment(features=[{"name": "age", "kind": "numeric"}, taken], evaluation={})
    with pytest.raises(ConfigError, match="none can get any pipeline; 'age'"):
        search_feature_pipelines(experiment)
    assert not list(Path().glob("searches/*"))
