"""Encoded features from files to columns: what training rows are given, what others are, and that nothing leaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from feature_kit import block, experiment, write_csv
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import TargetEncoder

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.schema import label_column
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.features.encoders.category_numbers import folds_of
from ziggurat.features.preparation.prepare import ENCODERS, prepare
from ziggurat.features.saved_transform import copy_transform
from ziggurat.features.transform import Transform

ROWS = 4_000
TARGET: dict[str, Any] = {"name": "target"}


def columns(seed: int = 0) -> dict[str, list[Any]]:
    """Returns a log in which ``visit`` is unique and ``city`` says something of ``click``."""
    draw = np.random.default_rng(seed)
    city = draw.integers(0, 12, ROWS)
    return {
        "visit": [f"v{each}" for each in draw.permutation(ROWS)],
        "city": [None if each == 11 else f"c{each}" for each in city],
        "price": [None if draw.random() < 0.1 else float(each) for each in draw.lognormal(size=ROWS).round(3)],
        "age": [None if draw.random() < 0.2 else int(each) for each in draw.integers(18, 90, ROWS)],
        "click": draw.binomial(1, 0.1 + 0.07 * city).tolist(),
        "amount": (100 + 5 * city + draw.normal(size=ROWS)).round(3).tolist(),
        "w": draw.integers(0, 3, ROWS).tolist(),
        "t": list(range(ROWS)),
    }


def prepared(folder: Path, features: list[dict[str, Any]], log: dict[str, list[Any]], **data: Any) -> Path:
    write_csv(folder / "log.csv", log)
    split = {"name": "random", "validation": 0.25, "test": 0.0, "seed": 3}
    parsed = experiment(features, folder=str(folder), split=split, block_rows=512, **data)
    return prepare(parsed.data, parsed.features, folder / "prepared")


def rows_of(folder: Path, split: Any) -> pa.Table:
    blocks = Dataset(folder).split(split)
    return pa.Table.from_batches([blocks.read(number) for number in range(len(blocks.blocks))])


def test_an_id_that_each_row_has_alone_tells_a_training_row_nothing(tmp_path: Path) -> None:
    """The naive mean of such an id is its row's own label: an AUC of 1 on the training rows, and of .5 on others."""
    features = [
        {"name": "visit", "kind": "encoded", "encoding": {"name": "target", "smooth": 0.0}},
        {"name": "auto", "column": "visit", "kind": "encoded", "encoding": TARGET},
        {"name": "city", "kind": "encoded", "encoding": TARGET},
    ]
    folder = prepared(tmp_path, features, columns(), time="t")
    train = rows_of(folder, "train")
    click = train.column(label_column("click")).to_numpy()
    areas = {name: roc_auc_score(click, train.column(name).to_numpy()) for name in ("visit", "auto", "city")}
    assert abs(areas["visit"] - 0.5) < 0.03
    assert abs(areas["auto"] - 0.5) < 0.03
    assert areas["city"] > 0.65
    transform = Transform.load(folder / ENCODERS)
    log = columns()
    of_rows = {name: [log[name][place] for place in train.column("@time").to_pylist()] for name in log}
    again = transform.apply(
        block(transform.raw_schema(labelled=False), **{k: of_rows[k] for k in ("visit", "city")}), False
    )
    naive = again.batch.column("visit").to_numpy()
    assert roc_auc_score(click, naive) == 1.0, "what training rows would be given without folds"
    validation = rows_of(folder, "validation")
    held_out = validation.column(label_column("click")).to_numpy()
    assert abs(roc_auc_score(held_out, validation.column("visit").to_numpy()) - 0.5) < 0.01
    assert roc_auc_score(held_out, validation.column("city").to_numpy()) > 0.65
    tells = {name: each.tells for name, each in DatasetStatistics.load(folder).features.items()}
    assert not any(tells.values())


def test_training_rows_have_the_mean_of_other_folds_and_others_that_of_all(tmp_path: Path) -> None:
    log = columns()
    features = [
        {"name": "rate", "column": "city", "kind": "encoded", "encoding": {"name": "target", "folds": 4}},
        {"name": "mean", "column": "city", "kind": "encoded", "encoding": {"name": "target", "label": "amount"}},
    ]
    labels = [{"name": "click"}, {"name": "amount", "kind": "regression"}]
    folder = prepared(tmp_path, features, log, time="t", labels=labels)
    train, validation = rows_of(folder, "train"), rows_of(folder, "validation")
    places = train.column("@time").to_numpy()
    names = np.array([str(each) for each in log["city"]])  # the missing city is one of its own
    for feature, label, kind, folds in (("rate", "click", "binary", 4), ("mean", "amount", "continuous", 5)):
        labelled = np.array(log[label], np.float32).astype(np.float64)
        encoder = TargetEncoder(target_type=kind).fit(names[places][:, None], labelled[places])
        expected = encoder.transform(names[validation.column("@time").to_numpy()][:, None])[:, 0]
        np.testing.assert_allclose(validation.column(feature).to_numpy(), expected, rtol=1e-6)
        fold = folds_of(places, folds)
        for number in range(folds):
            others = places[fold != number]
            encoder.fit(names[others][:, None], labelled[others])
            expected = encoder.transform(names[places[fold == number]][:, None])[:, 0]
            np.testing.assert_allclose(train.column(feature).to_numpy()[fold == number], expected, rtol=1e-6)


EVERY: list[dict[str, Any]] = [
    {"name": "rate", "column": "city", "kind": "encoded", "encoding": TARGET, "transforms": [{"name": "power"}]},
    {"name": "hot", "column": "city", "kind": "encoded", "encoding": {"name": "one_hot", "categories": 30}},
    {"name": "hashed", "column": "city", "kind": "encoded", "encoding": {"name": "hash", "buckets": 3}},
    {"name": "place", "column": "city", "kind": "encoded", "encoding": {"name": "ordinal"}, "missing": "most_frequent"},
    {"name": "curve", "column": "price", "kind": "numeric", "transforms": [{"name": "log"}, {"name": "spline"}]},
    {"name": "flag", "column": "price", "kind": "numeric", "transforms": [{"name": "missing_flag"}]},
    {"name": "neither", "kind": "missing_together", "columns": ["price", "age"]},
]


def test_the_dataset_equals_the_transform_but_for_target_means_of_training_rows(tmp_path: Path) -> None:
    log = columns()
    folder = prepared(tmp_path, EVERY, log, weight="w", time="t")
    (tmp_path / "copy").mkdir()
    copy_transform(folder / ENCODERS, tmp_path / "copy")
    transform = Transform.load(tmp_path / "copy")
    schema = transform.raw_schema()
    assert Dataset(folder).schema == transform.schema
    assert len(transform.schema.dense) == 1 + 32 + 4 + 1 + 7 + 1 + 1
    whole = transform.apply(block(schema, **{name: log[name] for name in schema.names})).batch
    few = transform.apply(block(schema, **{name: log[name][7:9] for name in schema.names})).batch
    assert few.equals(whole.slice(7, 2))
    for split in ("train", "validation"):
        rows = rows_of(folder, split)
        expected = pa.Table.from_batches([whole]).take(pa.array(rows.column("@time").to_numpy()))
        for name in transform.schema.dense:
            same = rows.column(name).equals(expected.column(name))
            assert same is not (split == "train" and name == "rate"), (split, name)
    both = np.array([price is None and age is None for price, age in zip(log["price"], log["age"], strict=True)])
    np.testing.assert_array_equal(whole.column("neither").to_numpy(), both)
    alone = transform.restricted(["hot"])
    assert alone.raw_schema(labelled=False).names == ("city",)
    only = alone.apply(block(alone.raw_schema(labelled=False), city=log["city"]), labelled=False).batch
    assert only.column("hot[3]").equals(whole.column("hot[3]"))


def test_a_weightless_row_counts_for_no_mean(tmp_path: Path) -> None:
    log = columns()
    heavy = {
        name: [cell for cell, weight in zip(cells, log["w"], strict=True) if weight] for name, cells in log.items()
    }
    shares: list[np.ndarray[Any, Any]] = []
    for number, each in enumerate((log, heavy)):
        (tmp_path / str(number)).mkdir()
        data = {"weight": "w", "split": {"name": "random", "validation": 0.0, "test": 0.0}}
        write_csv(tmp_path / str(number) / "log.csv", each)
        parsed = experiment(
            [{"name": "city", "kind": "encoded", "encoding": TARGET}], folder=str(tmp_path / str(number)), **data
        )
        transform = Transform.load(prepare(parsed.data, parsed.features, tmp_path / str(number) / "out") / ENCODERS)
        cities = block(transform.raw_schema(labelled=False), city=[*(f"c{i}" for i in range(11)), None])
        shares.append(transform.apply(cities, labelled=False).batch.column("city").to_numpy())
    np.testing.assert_allclose(*shares, rtol=1e-6)


def test_what_cannot_be_encoded_is_refused(tmp_path: Path) -> None:
    log = columns()
    write_csv(tmp_path / "log.csv", log)

    def attempt(feature: dict[str, Any], **data: Any) -> None:
        parsed = experiment([feature], folder=str(tmp_path), **data)
        prepare(parsed.data, parsed.features, tmp_path / "prepared")

    city: dict[str, Any] = {"name": "city", "kind": "encoded"}
    with pytest.raises(
        ConfigError, match=r"feature 'city': encoding.label: there is no label 'clicks'; did you mean 'click'"
    ):
        attempt({**city, "encoding": {**TARGET, "label": "clicks"}})
    with pytest.raises(ConfigError, match="a hash counts no values"):
        attempt({**city, "missing": "most_frequent", "encoding": {"name": "hash", "buckets": 4}})
    with pytest.raises(ConfigError, match="the numbers of a category are dense inputs: leave out bucketise"):
        attempt({**city, "encoding": TARGET, "transforms": [{"name": "bucketise", "bins": 3}]})
    with pytest.raises(ConfigError, match="missing_flag must be the first"):
        attempt({"name": "age", "kind": "numeric", "transforms": [{"name": "log"}, {"name": "missing_flag"}]})
    with pytest.raises(ConfigError, match="spline must be the last"):
        attempt({"name": "age", "kind": "numeric", "transforms": [{"name": "spline"}, {"name": "log"}]})
    with pytest.raises(ConfigError, match="'age' is named twice"):
        attempt({"name": "none", "kind": "missing_together", "columns": ["age", "age"]})
    with pytest.raises(ConfigError, match="is 1 in every training row"):
        attempt(
            {**city, "encoding": TARGET},
            labels=[{"name": "click", "observed": True}],
            negatives={"name": "in_batch", "user": "visit", "item": "city"},
        )
    few = {name: cells[:2] for name, cells in log.items()} | {"click": [0, 1]}
    write_csv(tmp_path / "log.csv", few)
    same = next(seed for seed in (2, 3, 5, 7, 11, 13, 17, 19) if len(set(folds_of(np.arange(2), seed))) == 1)
    with pytest.raises(DataError, match="all training rows with a weight are in one of"):
        attempt(
            {**city, "encoding": {**TARGET, "folds": same}}, split={"name": "random", "validation": 0.0, "test": 0.0}
        )


def test_negatives_are_in_the_fold_of_their_positive(tmp_path: Path) -> None:
    """Each user has one positive and four negatives: of the five, four would tell the label of the fifth."""
    draw = np.random.default_rng(4)
    log = {
        "user": [f"u{each}" for each in range(800)],
        "item": [f"i{each}" for each in draw.integers(0, 40, 800)],
        "t": list(range(800)),
    }
    write_csv(tmp_path / "log.csv", log)
    features = [{"name": "user", "kind": "encoded", "encoding": {"name": "target", "smooth": 1.0}}]
    parsed = experiment(
        features,
        folder=str(tmp_path),
        split={"name": "random", "validation": 0.1, "test": 0.0},
        labels=[{"name": "click", "observed": True}],
        negatives={"name": "uniform", "user": "user", "item": "item", "per_positive": 4},
        time="t",
    )
    train = rows_of(prepare(parsed.data, parsed.features, tmp_path / "prepared"), "train")
    click, rate = train.column(label_column("click")).to_numpy(), train.column("user").to_numpy()
    assert click.mean() == 0.2
    assert abs(roc_auc_score(click, rate) - 0.5) < 0.01
    np.testing.assert_allclose(rate, 0.2, rtol=1e-6)
