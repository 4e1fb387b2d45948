"""In-batch negatives: items of other rows of the batch, weight 0 for known positives, the same after a resume."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import ziggurat
from tests.training.conftest import MakeExperiment
from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.training.experiment import Experiment
from ziggurat.training.in_batch_negatives import rows_read, with_negatives

COUNT = 3
NEGATIVES = {
    "name": "in_batch", "user": "user", "item": "item", "item_columns": ["age", "tags"], "per_positive": COUNT,
    "evaluation": 5,
}  # fmt: skip


@pytest.fixture
def experiment(make_experiment: MakeExperiment, tmp_path: Path) -> Experiment:
    """An experiment with in-batch negatives, whose dataset is prepared in the folder ``prepared``."""
    made = make_experiment(data__negatives=NEGATIVES, training__epochs=2)
    numbers = {"name": "place", "column": "item", "kind": "encoded", "type": "integer", "encoding": {"name": "ordinal"}}
    values = json.loads(made.model_dump_json(by_alias=True))
    made = Experiment.model_validate({**values, "features": [*values["features"], numbers]})
    ziggurat.prepare(made, tmp_path / "prepared")
    return made


def rows_of(batch: Batch, dataset: Dataset) -> list[dict[str, Any]]:
    """Returns the rows of a batch, by the names of the features."""
    schema, rows = dataset.schema, [{} for _ in range(batch.size)]
    for number, row in enumerate(rows):
        row.update(zip(schema.dense, batch.dense_BF[number].tolist(), strict=True))
        row["label"] = batch.labels_BT[number].tolist()
        row["group"] = None if batch.groups_B is None else int(batch.groups_B[number])
        row["weight"] = 1.0 if batch.weights_B is None else float(batch.weights_B[number])
    for jagged in (batch.bags, batch.sequences):
        assert jagged is not None
        for key in jagged.keys():  # noqa: SIM118 - not a dict
            values = jagged[key].to_dense()
            for row, ids in zip(rows, values, strict=True):
                row[key] = ids.tolist()
    return rows


def test_a_negative_is_its_positive_with_the_item_of_another_row(experiment: Experiment, tmp_path: Path) -> None:
    dataset = Dataset(tmp_path / "prepared")
    plain = Loader(dataset.split("train"), dataset.schema, 32, shuffle=True, prefetch=0)
    ours = with_negatives(plain, experiment, dataset)
    known = {
        (tuple(row["user"]), tuple(row["item"]))
        for split in ("train", "validation", "test")
        for batch, _ in Loader(dataset.split(split), dataset.schema, 64, shuffle=False, prefetch=0).epoch(Cursor())
        for row in rows_of(batch, dataset)
        if row["label"] == [1.0]
    }
    of_items, silent, told = ("item", "age", "tags", "place"), 0, 0
    for (small, at), (large, cursor) in zip(plain.epoch(Cursor()), ours.epoch(Cursor()), strict=True):
        assert cursor == at
        large.validate(dataset.schema)
        read, rows = rows_of(small, dataset), rows_of(large, dataset)
        assert large.size == small.size * (1 + min(COUNT, small.size - 1)) == large.largest
        assert rows[: small.size] == read
        for copy in range(1, len(rows) // small.size):
            copies = rows[copy * small.size : (copy + 1) * small.size]
            sources = []
            for own, row in zip(read, copies, strict=True):
                assert row["label"] == [0.0]
                for name in ("user", "history", "group"):
                    assert row[name] == own[name]
                sources.append([row[name] for name in of_items])
                unknown = (tuple(row["user"]), tuple(row["item"])) not in known
                assert row["weight"] == float(unknown and own["label"] == [1.0])
                silent, told = silent + (row["weight"] == 0), told + (row["weight"] == 1)
            expected = [[row[name] for name in of_items] for row in read]
            assert sources != expected
            assert any(sources == expected[shift:] + expected[:shift] for shift in range(1, small.size))
    assert silent > 100
    assert told > 100


def test_it_trains_evaluates_on_sampled_negatives_and_resumes_exactly(experiment: Experiment, tmp_path: Path) -> None:
    whole = ziggurat.train(experiment, tmp_path / "whole", prepared=tmp_path / "prepared")
    assert whole.results is not None
    assert whole.results["figures"]["test"]["auc"] > 0.55
    dataset = Dataset(tmp_path / "prepared")
    assert dataset.manifest["negatives"]["sampled"]["train"] == 0
    assert dataset.manifest["negatives"]["sampled"]["test"] > 0
    parts = tmp_path / "parts"
    ziggurat.train(experiment, parts, prepared=tmp_path / "prepared", stop_after=7)
    resumed = ziggurat.train(experiment, parts, prepared=tmp_path / "prepared")
    assert resumed.results is not None
    assert json.dumps(resumed.results["figures"]) == json.dumps(whole.results["figures"])


@pytest.mark.parametrize("rank_size", [1, 2])
def test_a_batch_too_small_is_refused_with_the_size_that_does(experiment: Experiment, rank_size: int) -> None:
    negatives = experiment.data.negatives
    least = 2 * rank_size * (1 + COUNT)
    assert rows_read(least, negatives, rank_size) == 2 * rank_size
    with pytest.raises(ConfigError, match=f"training.batch_size={least} or larger"):
        rows_read(least - 1, negatives, rank_size)


def test_user_and_item_must_be_features(experiment: Experiment, tmp_path: Path) -> None:
    features = [feature for feature in experiment.features if feature.name != "user"]
    without = experiment.model_copy(update={"features": tuple(features)})
    dataset = Dataset(tmp_path / "prepared")
    loader = Loader(dataset.split("train"), dataset.schema, 32, shuffle=True)
    with pytest.raises(ConfigError, match="the user column 'user' as a categorical feature"):
        with_negatives(loader, without, dataset)


def test_one_row_alone_has_no_negatives(experiment: Experiment, tmp_path: Path) -> None:
    dataset = Dataset(tmp_path / "prepared")
    rows = dataset.split("train").rows
    ours = with_negatives(Loader(dataset.split("train"), dataset.schema, rows - 1, shuffle=True), experiment, dataset)
    sizes = [batch.size for batch, _ in ours.epoch(Cursor())]
    assert sizes == [(rows - 1) * (1 + COUNT), 1]
