"""The fitted transform: every kind of feature, missing and unknown values, saving, unlabelled rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from feature_kit import block, experiment

from ziggurat.core.errors import DataError
from ziggurat.core.files import write_json
from ziggurat.core.schema import label_column
from ziggurat.features.encoders.encoder import ValueCounts
from ziggurat.features.encoders.hashed import HashEncoder
from ziggurat.features.encoders.identity import IdentityEncoder
from ziggurat.features.encoders.vocabulary import VocabularyConfig, VocabularyEncoder
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.numeric.steps import Bucketise, Fill, Standardise
from ziggurat.features.transform import Transform

FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "categorical", "type": "integer"},
    {"name": "age", "kind": "numeric", "transforms": [{"name": "standardise"}]},
    {
        "name": "age_bucket",
        "kind": "numeric",
        "column": "age",
        "transforms": [{"name": "bucketise", "boundaries": [18]}],
    },
    {"name": "tags", "kind": "bag", "max_length": 2},
    {"name": "history", "kind": "sequence", "type": "integer", "last": 2, "encoder": {"name": "hash", "rows": 100}},
    {"name": "slot", "kind": "categorical", "type": "integer", "encoder": {"name": "identity", "rows": 4}},
]
ROWS: dict[str, list[Any]] = {
    "user": [-7, 5, None, 99],
    "age": [10.0, None, 20.0, 30.0],
    "tags": [["a", "b", "c"], [], None, ["zzz", None, "a"]],
    "history": [[1, 2, 3], None, [], [4]],
    "slot": [0, 3, 1, 2],
    "click": [1.0, 0.0, 0.0, 1.0],
}


@pytest.fixture
def transform() -> Transform:
    parsed = experiment(FEATURES)
    return Transform(
        parsed.features,
        parsed.data.targets,
        {
            "age": NumericChain((Fill(20.0), Standardise(20.0, 10.0)), implicit_fill=True),
            "age_bucket": NumericChain((Bucketise((18.0,)),), implicit_fill=False),
        },
        {
            "user": VocabularyEncoder.fit(VocabularyConfig(), ValueCounts(pa.array([-7, 5]), np.array([3, 1]))),
            "tags": VocabularyEncoder.fit(
                VocabularyConfig(), ValueCounts(pa.array(["a", "b", "c"]), np.array([3, 2, 1]))
            ),
            "history": HashEncoder(100, 0),
            "slot": IdentityEncoder(4),
        },
    )


def test_every_kind_of_feature_is_encoded(transform: Transform) -> None:
    encoded = transform.apply(block(transform.raw_schema(), **ROWS))
    hashed = HashEncoder(100, 0).transform(pa.array([2, 3, 4])).tolist()
    assert encoded.bad == []
    assert encoded.kept_rows.tolist() == [0, 1, 2, 3]
    assert encoded.batch.to_pydict() == {
        "user": [2, 3, 0, 1],
        "age": [-1.0, 0.0, 0.0, 1.0],
        "age_bucket": [1, 0, 2, 2],
        "tags": [[2, 3], [], [], [1, 0]],
        "history": [hashed[:2], [], [], hashed[2:]],
        "slot": [0, 3, 1, 2],
        label_column("click"): [1.0, 0.0, 0.0, 1.0],
    }
    types = {field.name: field.type for field in encoded.batch.schema}
    assert types["age"] == pa.float32()
    assert types["user"] == pa.int32()
    assert types["tags"] == pa.list_(pa.int32())
    assert all(column.null_count == 0 for column in encoded.batch.columns)


def test_the_schema_contains_tables_and_their_rows(transform: Transform) -> None:
    schema = transform.schema
    assert schema.dense == ("age",)
    assert schema.categorical == ("user", "age_bucket", "slot")
    assert (schema.bags, schema.sequences, schema.labels) == (("tags",), ("history",), ("click",))
    assert schema.rows == {"user": 4, "age_bucket": 3, "tags": 5, "history": 100, "slot": 4}


def test_rejected_rows_are_left_out_and_returned(transform: Transform) -> None:
    rows = {**ROWS, "click": [1.0, 0.5, 0.0, 1.0], "slot": [0, 3, 4, 2]}
    encoded = transform.apply(block(transform.raw_schema(), **rows))
    assert encoded.kept_rows.tolist() == [0, 3]
    assert encoded.batch.column("user").to_pylist() == [2, 1]
    assert [(row.line, row.column) for row in encoded.bad] == [(3, "click"), (4, "slot")]


def test_unlabelled_rows_need_no_label_column(transform: Transform) -> None:
    features = {name: cells for name, cells in ROWS.items() if name != "click"}
    unlabelled = transform.apply(block(transform.raw_schema(labelled=False), **features), labelled=False)
    labelled = transform.apply(block(transform.raw_schema(), **ROWS))
    assert unlabelled.batch.equals(labelled.batch.select(unlabelled.batch.schema.names))
    assert label_column("click") not in unlabelled.batch.schema.names


def test_rows_are_encoded_independently_of_each_other(transform: Transform) -> None:
    together = transform.apply(block(transform.raw_schema(), **ROWS)).batch
    for row in range(4):
        alone = transform.apply(block(transform.raw_schema(), **{n: [c[row]] for n, c in ROWS.items()})).batch
        assert alone.to_pydict() == together.slice(row, 1).to_pydict()


def test_an_empty_block_gives_no_rows(transform: Transform) -> None:
    encoded = transform.apply(block(transform.raw_schema(), **{name: [] for name in ROWS}))
    assert encoded.batch.num_rows == 0
    assert set(encoded.batch.schema.names) == {*transform.schema.dense, *transform.schema.sparse, label_column("click")}


def test_a_saved_and_loaded_transform_is_equal(transform: Transform, tmp_path: Path) -> None:
    transform.save(tmp_path)
    loaded = Transform.load(tmp_path)
    assert loaded.schema == transform.schema
    assert loaded.features == transform.features
    assert loaded.targets == transform.targets
    assert loaded.chains == transform.chains
    raw = block(transform.raw_schema(), **ROWS)
    assert loaded.apply(raw).batch.equals(transform.apply(raw).batch)


def test_a_missing_or_incompatible_transform_is_rejected(transform: Transform, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"transform\.json: not found"):
        Transform.load(tmp_path)
    write_json(tmp_path / "transform.json", {"version": 3})
    with pytest.raises(DataError, match="version 3, but this ziggurat reads versions 1 and 2"):
        Transform.load(tmp_path)
    (tmp_path / "transform.json").write_text("{")
    with pytest.raises(DataError, match=r"transform\.json: is not valid JSON"):
        Transform.load(tmp_path)
