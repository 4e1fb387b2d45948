"""Configs of data and features, the raw columns that they need, and errors for contradictions."""

from __future__ import annotations

from typing import Any

import pytest

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.features.config import DataConfig, FeatureConfig
from ziggurat.features.encoders.identity import IdentityConfig
from ziggurat.features.encoders.vocabulary import VocabularyConfig
from ziggurat.features.raw_schema import columns_for, raw_schema
from ziggurat.features.tables import resolve_tables


class _Experiment(Config):
    data: DataConfig
    features: tuple[FeatureConfig, ...]


def experiment(features: list[dict[str, Any]], **data: Any) -> _Experiment:
    settings = {
        "source": {"name": "csv", "files": ["ratings.csv"]},
        "labels": [{"name": "like", "column": "rating", "at_least": 4}],
        **data,
    }
    return parse_config(_Experiment, {"data": settings, "features": features})


MOVIELENS = [
    {"name": "user_id", "kind": "categorical", "type": "integer", "encoder": {"name": "vocabulary", "oov_rows": 1}},
    {"name": "age", "kind": "numeric", "transforms": [{"name": "fill"}, {"name": "standardise"}]},
    {"name": "age_bucket", "kind": "numeric", "column": "age", "transforms": [{"name": "bucketise", "bins": 10}]},
    {"name": "genres", "kind": "bag", "type": "text", "delimiter": " ", "pooling": "mean", "table": "genres"},
    {"name": "history", "kind": "sequence", "type": "integer", "delimiter": " ", "last": 20, "table": "item_id"},
    {"name": "item_id", "kind": "categorical", "type": "integer", "encoder": {"name": "hash", "rows": 10000}},
]


def test_raw_columns_of_an_experiment() -> None:
    parsed = experiment(
        MOVIELENS,
        split={"name": "time_within_key", "key": "user_id", "validation": 0.1, "test": 0.1},
        group="user_id",
        time="timestamp",
        weight="weight",
    )
    assert raw_schema(parsed.data, parsed.features).columns == (
        RawColumn("user_id", ValueType.INTEGER, required=True),
        RawColumn("age", ValueType.FLOAT),
        RawColumn("genres", ValueType.TEXT, many=True, delimiter=" "),
        RawColumn("history", ValueType.INTEGER, many=True, delimiter=" "),
        RawColumn("item_id", ValueType.INTEGER),
        RawColumn("rating", ValueType.FLOAT, required=True),
        RawColumn("weight", ValueType.FLOAT, required=True),
        RawColumn("timestamp", ValueType.FLOAT, required=True),
    )
    unlabelled = columns_for(parsed.features, None)
    assert unlabelled.names == ("user_id", "age", "genres", "history", "item_id")
    assert not unlabelled["user_id"].required


def test_features_share_the_encoder_that_one_of_them_sets() -> None:
    tables = resolve_tables(experiment(MOVIELENS).features)
    assert list(tables) == ["user_id", "genres", "item_id"]
    assert tables["item_id"].encoder == tables["item_id"].features[1].encoder
    assert [feature.name for feature in tables["item_id"].features] == ["history", "item_id"]
    assert tables["genres"].encoder == VocabularyConfig()


def test_numbers_are_read_in_the_type_that_another_use_needs() -> None:
    features = [{"name": "age", "kind": "numeric"}, {"name": "age_id", "kind": "categorical", "column": "age"}]
    pinned = experiment([features[0], {**features[1], "type": "integer"}], time="age").features
    assert columns_for(pinned, None)["age"].type is ValueType.INTEGER
    with pytest.raises(ConfigError, match=r"column 'age': feature 'age_id' needs it as text.*float or integer"):
        columns_for(experiment(features).features, None)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "features: none are given"),
        ([{"name": "a", "kind": "numeric"}] * 2, "the name 'a' is used twice"),
        (
            [{"name": "a", "kind": "bag", "column": "x"}, {"name": "b", "kind": "categorical", "column": "x"}],
            "feature 'a' reads several values from a cell, feature 'b' reads one",
        ),
        (
            [
                {"name": "a", "kind": "bag", "column": "x"},
                {"name": "b", "kind": "bag", "column": "x", "delimiter": ","},
            ],
            "feature 'a' splits it by '|', feature 'b' by ','",
        ),
        (
            [{"name": "a", "kind": "categorical", "type": "text", "column": "rating"}],
            "column 'rating': label 'like' needs it as float or integer, feature 'a' as text",
        ),
        (
            [
                {"name": "a", "kind": "categorical", "table": "t"},
                {"name": "b", "kind": "categorical", "table": "t", "type": "integer"},
            ],
            "'a' reads ids of table 't' as text, 'b' as integer",
        ),
        (
            [
                {"name": "a", "kind": "categorical", "table": "t", "encoder": {"name": "hash", "rows": 5}},
                {"name": "b", "kind": "categorical", "table": "t", "encoder": {"name": "hash", "rows": 6}},
            ],
            "'a' and 'b' share table 't' but set different encoders",
        ),
        (
            [
                {"name": "a", "kind": "numeric", "transforms": [{"name": "bucketise", "bins": 2}]},
                {"name": "b", "kind": "categorical", "table": "a"},
            ],
            "table 'a' belongs to the bucketised feature",
        ),
        (
            [{"name": "a", "kind": "categorical", "encoder": {"name": "identity", "rows": 5}}],
            "an identity encoder needs type integer",
        ),
    ],
)
def test_contradictions_are_rejected(features: list[dict[str, Any]], message: str) -> None:
    parsed = experiment(features)
    with pytest.raises(ConfigError, match=message.replace("|", r"\|")):
        raw_schema(parsed.data, parsed.features)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": {"name": "time"}}, "split 'time' needs times: set data.time"),
        ({"split": {"name": "time_within_key", "key": "u"}}, "split 'time_within_key' needs times"),
        ({"labels": []}, r"data\.labels.*at least one"),
        ({"labels": [{"name": "a"}, {"name": "a"}]}, "label 'a' is defined twice"),
        ({"labels": [{"name": "a", "at_least": 1, "equals": 2}]}, "give at_least or equals, not both"),
        ({"on_bad_row": "skip"}, "'fail' or 'quarantine'"),
        ({"split": {"name": "tme"}}, "did you mean 'time'"),
    ],
)
def test_bad_data_sections_are_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment([{"name": "a", "kind": "numeric"}], **change)


@pytest.mark.parametrize("name", ["a.b", "@a", "a/b", "", " a", "label:x"])
def test_names_that_are_invalid_for_files_and_modules_are_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match=r"features\.0\.name"):
        experiment([{"name": name, "kind": "numeric"}])


def test_bucketise_must_come_last() -> None:
    with pytest.raises(ConfigError, match="bucketise must be the last transform"):
        experiment(
            [{"name": "a", "kind": "numeric", "transforms": [{"name": "bucketise", "bins": 2}, {"name": "log"}]}]
        )


def test_label_rules_determine_the_type_of_their_column() -> None:
    parsed = experiment(
        [{"name": "a", "kind": "numeric"}],
        labels=[
            {"name": "rich", "column": "income", "equals": "50000+."},
            {"name": "one", "equals": 1},
            {"name": "plain"},
        ],
    )
    schema = raw_schema(parsed.data, parsed.features)
    assert [schema[name].type for name in ("income", "one", "plain")] == [
        ValueType.TEXT,
        ValueType.FLOAT,
        ValueType.FLOAT,
    ]


def test_an_identity_config_is_chosen_by_its_name() -> None:
    parsed = experiment(
        [{"name": "a", "kind": "categorical", "type": "integer", "encoder": {"name": "identity", "rows": 5}}]
    )
    assert resolve_tables(parsed.features)["a"].encoder == IdentityConfig(rows=5)
