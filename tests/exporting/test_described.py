"""What an export says about the log: sample rows, which columns are the user's, and how often rows are looked up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from tests.exporting.export_kit import EVERY_KIND, log_columns, trained, write_log
from ziggurat.core.errors import ConfigError
from ziggurat.exporting.export import export
from ziggurat.exporting.sides import item_columns
from ziggurat.features.config import CategoricalFeature, FeatureConfig, NumericFeature
from ziggurat.features.raw_schema import columns_for
from ziggurat.serving.model.scorer import Scorer
from ziggurat.training.prediction.predictor import Predictor


def test_sample_rows_sides_and_counts(tmp_path: Path) -> None:
    write_log(tmp_path / "log.parquet", log_columns())
    run = trained(tmp_path, EVERY_KIND)
    found = export(run, tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "sample.json").read_text())["rows"]
    log = pq.read_table(tmp_path / "log.parquet").to_pylist()
    assert len(rows) == 8
    assert all(any(all(row[name] == value for name, value in sample.items()) for row in log) for sample in rows)
    assert not any(value in (None, []) for sample in rows for value in sample.values())
    with Predictor(run) as predictor:
        expected = predictor.predict(pa.Table.from_pylist(rows, pq.read_schema(tmp_path / "log.parquet")))
    assert np.isfinite(expected).all()
    manifest = Scorer.open(tmp_path / "out").manifest
    columns = dict.fromkeys(column.source for column in run.transform().raw_schema(labelled=False).columns)
    assert manifest.user_columns == tuple(name for name in columns if name not in {"item", "category"})
    sides = {entry.name: entry.side for entry in manifest.tables}
    assert {name for name, side in sides.items() if side == "item"} == {"item", "category", "pair"}  # of user and item
    counts = load_file(tmp_path / "out" / "statistics.safetensors")
    statistics = run.dataset().statistics().tables
    assert all(np.array_equal(counts[name], statistics[name].accesses) for name in sides if name in statistics)
    assert not found.notes


def test_a_log_that_is_gone_leaves_no_sample(tmp_path: Path) -> None:
    run = trained(tmp_path)
    (tmp_path / "log.parquet").unlink()
    found = export(run, tmp_path / "out", item_columns=["item"])
    assert json.loads((tmp_path / "out" / "sample.json").read_text())["rows"] == []
    assert found.notes[0].startswith("it has no sample rows: ")
    assert found.manifest.user_columns == ("user", "age")


def columns_of(*features: FeatureConfig) -> Any:
    return columns_for(features, None)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (["itm"], "there is no column 'itm'; did you mean 'item'"),
        (["item", "user"], "all columns are named"),
    ],
)
def test_wrong_columns_are_named(chosen: list[str], message: str) -> None:
    features = [CategoricalFeature(name="user"), CategoricalFeature(name="item")]
    with pytest.raises(ConfigError, match=message):
        item_columns(features, columns_of(*features), None, chosen)


def test_columns_that_follow_from_the_item_are_the_items(tmp_path: Path) -> None:
    features: list[FeatureConfig] = [
        CategoricalFeature(name="visitor"),
        CategoricalFeature(name="movie_id"),
        CategoricalFeature(name="genre"),
        CategoricalFeature(name="site"),
        NumericFeature(name="price"),
    ]
    draw = np.random.default_rng(0)
    movie = draw.integers(0, 20, 400)
    table = pa.table(
        {
            "visitor": [f"v{each}" for each in draw.integers(0, 50, 400)],
            "movie_id": [f"m{each}" for each in movie],
            "genre": [f"g{each % 4}" for each in movie],
            "site": ["one"] * 400,
            "price": draw.normal(size=400),
        }
    )
    schema = columns_of(*features)
    assert item_columns(features, schema, table, None) == ("movie_id", "genre")
    assert item_columns(features, schema, table.slice(0, 30), None) == ("movie_id",)  # too few to tell
    assert item_columns(features, schema, None, None) == ("movie_id",)
    assert item_columns(features[2:], columns_of(*features[2:]), None, None) == ()
