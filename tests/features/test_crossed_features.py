"""Crossed features: one id for each combination of ids, in datasets, predictions and sampled negatives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from feature_kit import block, experiment, write_csv

from ziggurat.core.errors import ConfigError
from ziggurat.data.encoded.dataset import SPLITS, Dataset
from ziggurat.features.preparation.prepare import ENCODERS, prepare
from ziggurat.features.transform import Transform

CROSS: dict[str, Any] = {"name": "pair", "kind": "crossed", "columns": ["user", "city"]}
USER: dict[str, Any] = {"name": "user", "kind": "categorical", "type": "integer"}
LOG: dict[str, list[Any]] = {
    "user": [1, 1, 2, 2, 1, None, 12, 1] * 10,
    "city": ["a", "b", "a", "b", "a", "a", None, "12 × a"] * 10,
    "click": [0, 1] * 40,
}


def prepared(folder: Path, features: list[dict[str, Any]], log: dict[str, list[Any]], **data: Any) -> Path:
    write_csv(folder / "log.csv", log)
    split = {"name": "random", "validation": 0.25, "test": 0.0}
    parsed = experiment(features, folder=str(folder), split=split, **data)
    return prepare(parsed.data, parsed.features, folder / "prepared")


def test_each_combination_has_an_id_and_a_row_without_one_of_its_ids_has_none(tmp_path: Path) -> None:
    folder = prepared(tmp_path, [USER, CROSS], LOG)
    transform = Transform.load(folder / ENCODERS)
    assert transform.raw_schema(labelled=False).names == ("user", "city")
    keys = transform.encoders["pair"].keys.to_pylist()  # pyright: ignore[reportAttributeAccessIssue]
    assert sorted(keys) == ["1 × 12 × a", "1 × a", "1 × b", "2 × a", "2 × b"]
    rows = block(transform.raw_schema(labelled=False), user=LOG["user"][:8], city=LOG["city"][:8])
    ids = transform.apply(rows, labelled=False).batch.column("pair").to_pylist()
    assert ids[0] == ids[4]
    assert len({*ids[:4], ids[7]}) == 5  # the other four and the first are all different
    assert ids[5] == ids[6]
    assert ids[5] not in {*ids[:4], ids[7]}
    unseen = block(transform.raw_schema(labelled=False), user=[2], city=["c"])
    assert transform.apply(unseen, labelled=False).batch.column("pair")[0].as_py() not in ids[:5]


def test_a_drawn_item_brings_the_combination_of_its_own_columns(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    item = draw.integers(0, 40, 600)
    log: dict[str, list[Any]] = {
        "user": draw.integers(0, 30, 600).tolist(),
        "item": item.tolist(),
        "genre": (item % 7).tolist(),
    }
    features = [
        USER,
        {**USER, "name": "item", "encoder": {"name": "identity", "rows": 40}},
        {"name": "kind", "kind": "crossed", "columns": ["item", "genre"]},
    ]
    negatives = {"name": "uniform", "user": "user", "item": "item", "item_columns": ["genre"], "per_positive": 3}
    settings: dict[str, Any] = {"labels": [{"name": "played", "observed": True}], "negatives": negatives}
    folder = prepared(tmp_path, features, log, **settings)
    keys = Transform.load(folder / ENCODERS).encoders["kind"].keys.to_pylist()  # pyright: ignore[reportAttributeAccessIssue]
    of_item: dict[int, set[int]] = {}
    for split in SPLITS:
        blocks = Dataset(folder).split(split)
        for number in range(len(blocks.blocks)):
            rows = pa.Table.from_batches([blocks.read(number)])
            for own, combination in zip(rows["item"].to_pylist(), rows["kind"].to_pylist(), strict=True):
                of_item.setdefault(own, set()).add(combination)
    assert len(of_item) == 40
    assert all(len(combinations) == 1 for combinations in of_item.values())
    assert len({each for combinations in of_item.values() for each in combinations}) == len(keys)
    torn = [*features[:2], {"name": "pair", "kind": "crossed", "columns": ["user", "genre"]}]
    with pytest.raises(ConfigError, match=r"feature 'pair': it combines 'genre', which describes the item, with other"):
        prepared(tmp_path, torn, log, **settings)


@pytest.mark.parametrize(
    ("columns", "encoder", "message"),
    [
        (["user"], None, r"received \['user'\]|at least 2"),
        (["user", "user"], None, "'user' is named twice"),
        (["user", "city", "a", "b", "c"], None, "at most 4"),
        (["user", "city"], {"name": "identity", "rows": 9}, "feature 'pair'"),
    ],
)
def test_what_cannot_be_crossed_is_refused(columns: list[str], encoder: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(tmp_path, [USER, {**CROSS, "columns": columns, "encoder": encoder}], LOG)


def test_a_column_of_numbers_cannot_be_crossed(tmp_path: Path) -> None:
    price = {"name": "city", "kind": "time", "part": "hour", "format": "iso"}
    with pytest.raises(ConfigError, match="column 'city': feature 'pair' needs it as text or integer, feature 'city'"):
        prepared(tmp_path, [USER, price, CROSS], LOG)
