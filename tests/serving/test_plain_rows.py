"""Rows that are encoded value by value become the bits that the same rows become as a table, or the same refusal."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from typing import Any

import numpy as np
import pytest

from tests.serving.http_kit import Exported, exported
from ziggurat.features.config import CategoricalFeature
from ziggurat.serving.http.batching.encode_batch import EncodedBatch, encode_batch
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.model.given_rows import GivenRows
from ziggurat.serving.model.plain_rows import PlainFeatures
from ziggurat.serving.model.remembered_ids import LONGEST, REFUSED, RememberedIds
from ziggurat.serving.tables.inputs import Ids

LIMITS = ServingLimits(ids_per_row=20)
OTHERS: list[Any] = [
    None, "", " ", "7", "x", "x" * (LONGEST + 1), 7, 7.0, 7.5, 0, -1, True, 2**53, 2**60, 2**63, 2**70, 1e300, [], [3],
    ["3"], [None, 4], [None], ["", "3"], [3, "4"], [3.0], list(range(12)), [3] * 21, "3|4", [2**70],
    10**400, -(10**400), [10**400],
]  # fmt: skip


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


def encoded(requests: list[list[GivenRows]], export: Exported) -> EncodedBatch:
    sizes = {number: len(request[-1].rows) for number, request in enumerate(requests)}  # pyright: ignore[reportArgumentType]
    return encode_batch(export.model, dict(enumerate(requests)), sizes, LIMITS)


def bits(ids: Ids) -> tuple[bytes, bytes]:
    return ids.values.tobytes(), np.asarray(ids.lengths, np.int64).tobytes()


def same(rows: list[dict[str, Any]], export: Exported) -> bool:
    """Compares rows with and without a table; returns whether they could be encoded."""
    plain = encoded([export.model.predict_parts(rows, plain=True)], export)
    table = encoded([export.model.predict_parts(rows)], export)
    if table.refused:
        found, expected = plain.refused[0], table.refused[0]
        assert isinstance(found, HttpRefused)
        assert isinstance(expected, HttpRefused)
        assert found.body() == expected.body()
        return False
    (mine,), (theirs,) = plain.encoded, table.encoded
    assert mine.dense_BF.tobytes() == theirs.dense_BF.tobytes()
    assert {name: bits(ids) for name, ids in mine.ids.items()} == {name: bits(ids) for name, ids in theirs.ids.items()}
    return True


def test_usual_rows_need_no_table(export: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = export.rows[:50]
    assert same(rows, export)
    monkeypatch.setattr("ziggurat.serving.http.batching.encode_batch.read_table", None)  # it would be called
    monkeypatch.setattr("ziggurat.serving.model.remembered_ids.read_table", None)
    assert encoded([export.model.predict_parts(rows, plain=True)], export).order == [0]


def test_any_values_become_what_a_table_makes_of_them(export: Exported) -> None:
    draw = random.Random(3)
    encodable = 0
    for _ in range(400):
        rows = [dict(row) for row in draw.sample(export.rows, draw.randint(1, 3))]
        for _ in range(draw.randint(1, 2)):
            draw.choice(rows)[draw.choice(list(rows[0]))] = draw.choice(OTHERS)
        encodable += same(rows, export)
    assert 100 < encodable < 380  # both are met


def test_values_of_a_context_are_encoded_once(export: Exported) -> None:
    names = ("user", "age")
    context = {name: export.rows[0][name] for name in names}
    candidates = [{name: value for name, value in row.items() if name not in names} for row in export.rows[:7]]
    plain = encoded([export.model.rank_parts(context, candidates, plain=True)] * 2, export)
    table = encoded([export.model.rank_parts(context, candidates)] * 2, export)
    (mine,), (theirs,) = plain.encoded, table.encoded
    assert (mine.shared, mine.contexts, mine.size) == (theirs.shared, 2, 14)
    assert mine.dense_BF.tobytes() == theirs.dense_BF.tobytes()
    assert {name: bits(ids) for name, ids in mine.ids.items()} == {name: bits(ids) for name, ids in theirs.ids.items()}


def test_a_request_at_fault_leaves_the_others_without_a_table(export: Exported) -> None:
    good = export.rows[0]
    requests = [
        [good],
        [{**good, "item": "x"}],
        [good],
        [{**good, "tags": [1] * 30}],
        [{**good, "item": 2**70}],
        [good],
    ]
    batch = encoded([export.model.predict_parts(rows, plain=True) for rows in requests], export)
    assert sorted(batch.refused) == [1, 3, 4]
    assert sorted(batch.order) == [0, 2, 5]


def remembered(export: Exported, name: str, most: int) -> RememberedIds:
    feature = next(each for each in export.model.transform.features if each.name == name)
    assert isinstance(feature, CategoricalFeature)
    return RememberedIds(export.model.transform, feature, most)


def test_what_is_remembered_is_bounded_and_stays_right(export: Exported) -> None:
    ids = remembered(export, "user", 4)
    values = [f"u{number}" for number in range(100)] + [None]
    expected = remembered(export, "user", 1000).of(values)
    assert len(set(expected)) > 10
    for _ in range(3):
        assert [ids.of([value])[0] for value in values] == expected
        assert ids.of(values) == expected
        assert len(ids) <= 8


def test_values_that_the_transform_refuses_do_not_hide_others(export: Exported) -> None:
    ids = remembered(export, "item", 1000)
    known, refused, beyond = ids.of([3, "x", 2**70])
    assert known == remembered(export, "item", 10).of([3])[0] >= 0
    assert refused == beyond == REFUSED
    assert ids.of([4, "x", 5]) == [*remembered(export, "item", 10).of([4]), REFUSED, *ids.of([5])]


def test_versions_of_a_model_remember_together_and_a_closed_one_is_forgotten(export: Exported) -> None:
    copied = copy.copy(export.model.transform)
    first = PlainFeatures.shared(copied)
    assert PlainFeatures.shared(copied) is first
    assert PlainFeatures.shared(export.model.transform) is not first
    forgotten = weakref.ref(first)
    del first, copied
    gc.collect()
    assert forgotten() is None
