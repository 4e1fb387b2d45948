"""Labels of every kind: what their config allows, which values are bad, and what preparation finds of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_kit import block, experiment, write_csv

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.schema import Schema, count_column, label_column
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.readers.rejection_reasons import reason_kind
from ziggurat.features.checks import CheckedRows, check_rows
from ziggurat.features.labels import LabelConfig
from ziggurat.features.preparation.prepare import dataset_fingerprint, prepare
from ziggurat.features.raw_schema import columns_for
from ziggurat.features.saved_transform import SavedTransform
from ziggurat.features.tables import resolve_tables

NUMERIC = [{"name": "x", "kind": "numeric"}]
SHARE = {"name": "ctr", "kind": "soft", "positives": "clicks", "trials": "shown"}


def checked(label: dict[str, Any], **cells: Any) -> CheckedRows:
    parsed = experiment(NUMERIC, labels=[label])
    targets, schema = parsed.data.targets, columns_for(parsed.features, parsed.data.targets)
    rows = len(next(iter(cells.values())))
    return check_rows(block(schema, x=[0.0] * rows, **cells), targets, resolve_tables(parsed.features))


@pytest.mark.parametrize(
    ("label", "cells", "kinds"),
    [
        (
            {"name": "y", "kind": "soft"},
            [0.0, 1.0, 0.25, -0.1, 1.1, None, math.inf],
            {3: "label is not between 0 and 1", 4: "label is not between 0 and 1", 5: "label is missing"}
            | {6: "label is not between 0 and 1"},
        ),
        (
            {"name": "y", "kind": "regression"},
            [-3.5, 1e38, 1e39, math.inf, None],
            {2: "label is not a finite number", 3: "label is not a finite number", 4: "label is missing"},
        ),
        (
            {"name": "y", "kind": "regression", "loss": {"name": "poisson"}},
            [0.0, 2.0, -1.0],
            {2: "label is negative"},
        ),
        (
            {"name": "y", "kind": "ordinal"},
            [1.0, 2.5, 3.0, 2.0**25],
            {1: "label is not a whole number", 3: "label is not a whole number"},
        ),
        ({"name": "y", "kind": "ordinal", "levels": [1, 3]}, [1.0, 2.0, 3.0], {1: "label is no level"}),
    ],
)
def test_values_outside_a_kind_are_bad_rows(label: dict[str, Any], cells: list[Any], kinds: dict[int, str]) -> None:
    found = checked(label, y=cells)
    assert {row.line - 2: reason_kind(row.reason) for row in found.bad} == kinds
    kept = [number for number in range(len(cells)) if number not in kinds]
    assert found.targets[label_column("y")].tolist() == pytest.approx([cells[number] for number in kept])


def test_events_out_of_trials_are_a_share_and_a_count() -> None:
    found = checked(SHARE, clicks=[1.0, 0.0, 3.0, 2.0, -1.0, 1.0], shown=[4.0, 0.0, 3.0, 1.0, 2.0, None])
    assert found.targets[label_column("ctr")].tolist() == [0.25, 0.0, 1.0]
    assert found.targets[count_column("ctr")].tolist() == [4.0, 0.0, 3.0]
    assert [(row.line, row.column, reason_kind(row.reason)) for row in found.bad] == [
        (5, "clicks", "more positives than trials"),
        (6, "clicks", "count is not 0 or more"),
        (7, "shown", "count is not 0 or more"),
    ]


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"kind": "soft", "at_least": 3}, "at_least belongs to labels of kind binary, received kind: soft"),
        ({"loss": {"name": "squared"}}, "loss belongs to labels of kind regression, received kind: binary"),
        ({"kind": "regression", "levels": [1, 2]}, "levels belongs to labels of kind ordinal"),
        ({"kind": "soft", "positives": "a"}, "give both positives and trials"),
        ({"kind": "soft", "positives": "a", "trials": "b", "column": "c"}, "give column, or positives and trials"),
        ({"kind": "ordinal", "levels": [2, 1]}, "levels must ascend, received [2, 1]"),
        ({"kind": "regression", "negative_rate": 0.5}, "negative_rate belongs to labels of kind binary"),
        ({"kind": "soft", "observed": True}, "observed belongs to labels of kind binary"),
        ({"kind": "regression", "loss": {"name": "tweedie", "power": 2}}, "power"),
        ({"kind": "regression", "loss": {"name": "quantile", "levels": [0.5, 0.1]}}, "levels must ascend"),
        ({"kind": "regresion"}, "kind"),
    ],
)
def test_a_label_says_what_it_may_not_be(label: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        experiment(NUMERIC, labels=[{"name": "y", **label}])
    assert message in str(caught.value)


def write_log(folder: Path) -> None:
    draw = np.random.default_rng(0)
    rows = 400
    shown = draw.integers(0, 6, rows)
    write_csv(
        folder / "log.csv",
        {
            "x": draw.normal(size=rows).round(3).tolist(),
            "click": draw.integers(0, 2, rows).tolist(),
            "watch": draw.gamma(2, 30, rows).round(2).tolist(),
            "rating": draw.choice([1, 2, 4, 5], rows).tolist(),
            "clicks": draw.binomial(shown, 0.3).tolist(),
            "shown": shown.tolist(),
            "weight": draw.integers(0, 4, rows).tolist(),
        },
    )


LABELS = [{"name": "click"}, {"name": "watch", "kind": "regression"}, {"name": "rating", "kind": "ordinal"}, SHARE]


def test_preparation_stores_kinds_and_figures_of_training_rows(tmp_path: Path) -> None:
    write_log(tmp_path)
    parsed = experiment(NUMERIC, folder=str(tmp_path), labels=LABELS, weight="weight")
    dataset = Dataset(prepare(parsed.data, parsed.features, tmp_path / "prepared"))
    schema = dataset.schema
    assert schema.kinds == {"watch": "regression", "rating": "ordinal", "ctr": "soft"}
    assert schema.levels == {"rating": (1.0, 2.0, 4.0, 5.0)}
    assert schema.counted == ("ctr",)
    assert Schema.from_json(json.loads(json.dumps(schema.to_json()))) == schema
    train = dataset.split("train")
    blocks = [train.read(number) for number in range(len(train.blocks))]
    names = ("label:click", "label:watch", "label:rating", "label:ctr", "count:ctr", "@weight")
    columns = {name: np.concatenate([block.column(name).to_numpy() for block in blocks]) for name in names}
    weight, watch = columns["@weight"].astype(float), columns["label:watch"].astype(float)
    figures = SavedTransform.open(tmp_path / "prepared" / "encoders").labels
    assert figures["click"].mean == pytest.approx(np.average(columns["label:click"], weights=weight))
    assert figures["watch"].mean == pytest.approx(np.average(watch, weights=weight))
    assert figures["watch"].std == pytest.approx(np.sqrt(np.cov(watch, aweights=weight, ddof=0)))
    assert figures["watch"].log_mean == pytest.approx(np.average(np.log1p(watch), weights=weight))
    share_below = np.average(watch <= figures["watch"].quantile(0.9), weights=weight)
    assert share_below == pytest.approx(0.9, abs=0.01)
    assert figures["rating"].shares == pytest.approx(
        [np.average(columns["label:rating"] == level, weights=weight) for level in (1, 2, 4, 5)]
    )
    trials = columns["count:ctr"].astype(float)
    assert figures["ctr"].mean == pytest.approx(np.average(columns["label:ctr"], weights=weight * trials))
    assert figures["ctr"].trials == pytest.approx(trials[trials > 0].mean())
    means = dataset.statistics().label_rates["watch"]
    assert means["train"] == pytest.approx(watch.mean())
    read, _ = next(Loader(train, schema, 64, shuffle=True, prefetch=0).epoch(Cursor()))
    assert read.counts_BT is not None
    assert read.counts_BT[:, :3].unique().tolist() == [1.0]
    assert (read.row_weights == read.weights_B).all()


def test_the_loss_and_its_weight_do_not_prepare_again_but_what_they_allow_does(tmp_path: Path) -> None:
    write_log(tmp_path)

    def fingerprint(**label: Any) -> str:
        parsed = experiment(NUMERIC, folder=str(tmp_path), labels=[{"name": "watch", "kind": "regression", **label}])
        return dataset_fingerprint(parsed.data, parsed.features)

    plain = fingerprint()
    assert fingerprint(loss={"name": "huber", "delta": 3}, loss_weight=2) == plain
    assert fingerprint(loss={"name": "quantile"}) == plain
    assert fingerprint(loss={"name": "poisson"}) != plain
    assert fingerprint(loss={"name": "poisson"}) == fingerprint(loss={"name": "tweedie"})


@pytest.mark.parametrize(
    ("label", "column", "message"),
    [
        ({"kind": "regression"}, [3.0] * 40, "label 'y': is 3 in all"),
        ({"kind": "ordinal"}, list(range(400)), "label 'y': more than 100 levels, from 0 to"),
        ({"kind": "soft", "positives": "y", "trials": "z"}, [0] * 40, "label 'y': has no trials in all"),
    ],
)
def test_a_label_without_anything_to_learn_is_refused(
    tmp_path: Path, label: dict[str, Any], column: list[Any], message: str
) -> None:
    write_csv(tmp_path / "log.csv", {"x": [0.5] * len(column), "y": column, "z": [0] * len(column)})
    parsed = experiment(NUMERIC, folder=str(tmp_path), labels=[{"name": "y", **label}])
    with pytest.raises(DataError) as caught:
        prepare(parsed.data, parsed.features, tmp_path / "prepared")
    assert message in str(caught.value)


def test_sampled_negatives_need_binary_labels() -> None:
    labels = [{"name": "buy", "observed": True}, {"name": "watch", "kind": "regression"}]
    negatives = {"name": "uniform", "user": "u", "item": "i", "label": "buy"}
    with pytest.raises(ConfigError, match="label 'watch' of kind regression has no value in a sampled row"):
        experiment(NUMERIC, labels=labels, negatives=negatives)


def test_every_key_of_a_label_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs/labels.md").read_text()
    rows = [line.split("|")[1] for line in documented.splitlines() if line.startswith("| `")]
    assert {key for key in LabelConfig.model_fields if not any(f"`{key}`" in row for row in rows)} == set()
