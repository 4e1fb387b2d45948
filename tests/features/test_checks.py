"""Rows rejected because of their labels, weights, times or identity ids."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from feature_kit import block, experiment

from ziggurat.core.hashing import hash_text
from ziggurat.core.schema import GROUP_COLUMN, TIME_COLUMN, WEIGHT_COLUMN, label_column
from ziggurat.data.readers.rejection_reasons import reason_kind
from ziggurat.features.checks import NO_GROUP, CheckedRows, check_rows
from ziggurat.features.raw_schema import columns_for
from ziggurat.features.tables import resolve_tables

NUMERIC = [{"name": "x", "kind": "numeric"}]


def checked(features: list[dict[str, Any]], data: dict[str, Any], labelled: bool = True, **cells: Any) -> CheckedRows:
    parsed = experiment(features, **data)
    targets = parsed.data.targets if labelled else None
    schema = columns_for(parsed.features, targets)
    return check_rows(block(schema, **cells), targets, resolve_tables(parsed.features))


@pytest.mark.parametrize(
    ("label", "cells", "expected"),
    [
        ({"name": "click"}, [0.0, 1.0], [0, 1]),
        ({"name": "click", "at_least": 4}, [3.9, 4.0], [0, 1]),
        ({"name": "click", "equals": 2}, [2.0, 1.0], [1, 0]),
        ({"name": "click", "equals": "50000+."}, ["50000+.", "-50000"], [1, 0]),
    ],
)
def test_labels_by_each_rule(label: dict[str, Any], cells: list[Any], expected: list[int]) -> None:
    found = checked(NUMERIC, {"labels": [label]}, x=[0.0, 0.0], click=cells)
    assert found.bad == []
    labels = found.targets[label_column("click")]
    assert labels.dtype == np.float32
    assert labels.tolist() == expected


@pytest.mark.parametrize(
    ("label", "cells", "kind"),
    [
        ({"name": "click"}, [0.0, 2.0, None, 1.0], "label is not 0 or 1"),
        ({"name": "click", "at_least": 4}, [5.0, None, None, 3.0], "label is missing"),
        ({"name": "click", "equals": "a"}, ["a", None, None, "b"], "label is missing"),
    ],
)
def test_bad_labels_are_rejected_with_line_and_reason(label: dict[str, Any], cells: list[Any], kind: str) -> None:
    found = checked(NUMERIC, {"labels": [label]}, x=[1.0, 2.0, None, 4.0], click=cells)
    assert found.rows.tolist() == [0, 3]
    assert found.table.column("x").to_pylist() == [1.0, 4.0]
    assert len(found.targets[label_column("click")]) == 2
    assert [(row.file, row.line, row.column, reason_kind(row.reason)) for row in found.bad] == [
        ("log.csv", 3, "click", kind),
        ("log.csv", 4, "click", kind),
    ]
    assert json.loads(found.bad[0].text) == {"x": 2.0, "click": cells[1]}
    assert f"received {json.dumps(cells[1])}" in found.bad[0].reason


def test_weights_must_be_finite_and_not_negative() -> None:
    found = checked(NUMERIC, {"weight": "w"}, x=[0.0] * 5, click=[0.0, 1, 0, 1, 1], w=[0.0, 2.5, -0.1, 1e39, None])
    assert found.rows.tolist() == [0, 1]
    assert found.targets[WEIGHT_COLUMN].tolist() == [0.0, 2.5]
    assert {reason_kind(row.reason) for row in found.bad} == {"not a weight"}


def test_group_keys_are_integers_or_hashes_and_may_be_missing() -> None:
    text = checked(NUMERIC, {"group": "g"}, x=[0.0] * 3, click=[0.0, 1, 0], g=["u1", None, "u2"])
    expected = hash_text(text.table.column("g").drop_null().combine_chunks()).view(np.int64)
    assert text.targets[GROUP_COLUMN].tolist() == [expected[0], NO_GROUP, expected[1]]
    ids = [{"name": "g", "kind": "categorical", "type": "integer"}]
    assert checked(ids, {"group": "g"}, click=[0.0, 1], g=[-5, None]).targets[GROUP_COLUMN].tolist() == [-5, NO_GROUP]


def test_times_keep_their_type_until_they_are_written() -> None:
    found = checked(NUMERIC, {"time": "t"}, x=[0.0] * 4, click=[0.0] * 4, t=[1.5, None, 1e19, -3.0])
    assert found.rows.tolist() == [0, 3]
    assert found.targets[TIME_COLUMN].tolist() == [1.5, -3.0]
    assert {reason_kind(row.reason) for row in found.bad} == {"not a time"}


def test_identity_ids_outside_their_table_are_rejected() -> None:
    encoder = {"name": "identity", "rows": 3}
    features = [
        {"name": "item", "kind": "categorical", "type": "integer", "encoder": encoder},
        {"name": "seen", "kind": "bag", "type": "integer", "encoder": encoder, "table": "item"},
    ]
    found = checked(
        features,
        {},
        click=[0.0] * 6,
        item=[0, 2, 3, None, 1, 1],
        seen=[[1], None, [], [0], [2, -1], [0, None]],
    )
    assert found.rows.tolist() == [0, 1]
    assert [(row.line, row.column) for row in found.bad] == [(4, "item"), (5, "item"), (6, "seen"), (7, "seen")]
    assert found.bad[0].reason == (
        "id outside its table: received 3; an id of feature 'item' must be in [0, 3), the rows of table 'item'"
        " — raise the encoder's rows, or choose a hash or vocabulary encoder"
    )
    assert "received [2, -1]" in found.bad[2].reason


def test_a_row_that_breaks_several_rules_is_rejected_once() -> None:
    found = checked(NUMERIC, {"weight": "w"}, x=[0.0], click=[7.0], w=[-1.0])
    assert [row.column for row in found.bad] == ["click"]


def test_unlabelled_rows_need_no_target_columns() -> None:
    found = checked(NUMERIC, {"weight": "w", "group": "g", "time": "t"}, labelled=False, x=[1.0, None])
    assert found.targets == {}
    assert found.rows.tolist() == [0, 1]
