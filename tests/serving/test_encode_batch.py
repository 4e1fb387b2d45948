"""The rows of requests that are encoded together are those of each alone, and each refusal is that of its request."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.serving.http_kit import Exported, exported
from ziggurat.serving.http.batching.encode_batch import EncodedBatch, encode_batch
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.model.given_rows import GivenRows
from ziggurat.serving.model.requests import predict_requests

LIMITS = ServingLimits(ids_per_row=20)


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


Request = list[GivenRows]


def size(request: Request) -> int:
    rows = request[-1].rows
    return len(rows) if isinstance(rows, list) else pa.table(rows).num_rows


def encoded(export: Exported, requests: list[Request]) -> EncodedBatch:
    sizes = {number: size(request) for number, request in enumerate(requests)}
    return encode_batch(export.model, dict(enumerate(requests)), sizes, LIMITS)


def columns(export: Exported, batch: EncodedBatch, requests: list[Request]) -> dict[int, np.ndarray[Any, Any]]:
    """Returns request -> the columns (B, C) of its rows."""
    found = predict_requests(export.model.scorer, batch.encoded)
    ends = np.cumsum([size(requests[number]) for number in batch.order])
    return dict(zip(batch.order, np.split(found, ends[:-1]), strict=True))


def check(export: Exported, requests: list[Request], groups: int | None = None) -> None:
    """Compares a batch with its requests alone."""
    batch = encoded(export, requests)
    assert sorted([*batch.order, *batch.refused]) == list(range(len(requests)))
    if groups is not None:
        assert len(batch.encoded) == groups
    together = columns(export, batch, requests) if batch.encoded else {}
    for number, request in enumerate(requests):
        alone = encoded(export, [request])
        if alone.refused:
            refused, expected = batch.refused[number], alone.refused[0]
            assert isinstance(refused, HttpRefused)
            assert isinstance(expected, HttpRefused)
            assert refused.body() == expected.body()
        else:
            np.testing.assert_allclose(together[number], columns(export, alone, [request])[0], atol=1e-5)


def test_plain_rows_are_one_group(export: Exported) -> None:
    rows = export.rows
    check(export, [export.model.predict_parts(rows[start : start + 3]) for start in range(0, 30, 3)], groups=1)


def test_contexts_are_joined_like_candidates(export: Exported) -> None:
    names = ("user", "age")
    requests = []
    for start in range(0, 40, 10):
        context = {name: export.rows[start][name] for name in names}
        candidates = [
            {name: value for name, value in row.items() if name not in names}
            for row in export.rows[start : start + 1 + start // 10]
        ]
        requests.append(export.model.rank_parts(context, candidates))
    check(export, requests, groups=1)
    check(export, [*requests, export.model.predict_parts(export.rows[50:52])], groups=2)


def test_arrow_tables_of_one_schema_are_joined(export: Exported) -> None:
    tables = [pa.Table.from_pylist(export.rows[start : start + 5]) for start in (0, 5, 10)]
    check(export, [export.model.predict_parts(table) for table in tables], groups=1)


def test_columns_of_other_types_are_read_alone(export: Exported) -> None:
    first, second = dict(export.rows[0]), dict(export.rows[1])
    second["item"] = str(second["item"])
    third = {**first, "item": float(first["item"])}
    missing = dict.fromkeys(first)
    requests = [export.model.predict_parts([row]) for row in (first, second, third, missing, first)]
    check(export, requests, groups=3)
    plain = [export.model.predict_parts([row], plain=True) for row in (first, second, third, missing, first)]
    check(export, [*requests, *plain], groups=4)  # those of usual types are encoded without a table
    large = export.model.predict_parts([{**first, "item": 2**64}])
    check(export, [requests[0], large, requests[4]])


def test_rows_at_fault_refuse_their_request_alone(export: Exported) -> None:
    good = export.rows[0]
    requests = [
        export.model.predict_parts(rows)
        for rows in (
            [good],
            [good, {**good, "item": "x"}],
            [{**good, "tags": [1] * 30}],
            [good, good],
            [{**good, "age": {"a": 1}}],
            [{**good, "item": 2**70}],
            [good],
        )
    ]
    assert sorted(encoded(export, requests).refused) == [1, 2, 4, 5]
    check(export, requests)


@pytest.mark.parametrize("zone", ["Nowhere/Zone", "+99:99"])
def test_arrow_values_that_cannot_be_converted_refuse_their_request_alone(export: Exported, zone: str) -> None:
    good = pa.Table.from_pylist(export.rows[:3])
    bad = good.set_column(0, "user", pa.array([1, 2, None], pa.timestamp("us", zone)))
    requests = [export.model.predict_parts(each) for each in (good, bad, good, bad)]
    batch = encoded(export, requests)
    assert batch.order == [0, 2]
    for number in (1, 3):
        refused = batch.refused[number]
        assert isinstance(refused, HttpRefused)
        assert refused.status == 422
        assert refused.problem.startswith(f"rows, column 'user': values of the Arrow type timestamp[us, tz={zone}]")
        assert refused.hint == "send a text as the training files have it"
    check(export, requests)


def test_any_mixture_gives_what_each_request_gives_alone(export: Exported) -> None:
    draw = random.Random(5)
    others: list[Any] = [
        None, "", "7", "x", 7, 7.5, True, [], [3], ["3"], [None, 4], [[1]], {"a": 1}, 2**63, -1, "3|4", 10**400,
    ]  # fmt: skip
    for _ in range(25):
        requests = []
        for _ in range(draw.randint(2, 9)):
            rows = [dict(row) for row in draw.sample(export.rows, draw.randint(1, 3))]
            if draw.random() < 0.6:
                draw.choice(rows)[draw.choice(list(rows[0]))] = draw.choice(others)
            plain = not any(isinstance(value, dict) or value == [[1]] for row in rows for value in row.values())
            requests.append(export.model.predict_parts(rows, plain=plain))
        check(export, requests)
