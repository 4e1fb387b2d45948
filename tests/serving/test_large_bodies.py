"""Large bodies are read in a thread of their own, so that the event loop answers others meanwhile."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

import ziggurat.serving.http.predict_routes as routes
import ziggurat.serving.http.v2_routes as v2
from tests.serving.http_kit import Exported, arrow_stream, exported, served_here
from ziggurat.core.schema import RawColumn, ValueType, VectorElement
from ziggurat.serving.http import json_body
from ziggurat.serving.http.arrow_body import ARROW_STREAM
from ziggurat.serving.http.large_bodies import LARGE_BYTES
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.v2_tensors import read_tensor

LIMITS = ServingLimits()


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


def test_large_bodies_are_read_beside_the_event_loop(export: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    readers = [(routes, "predict_body"), (routes, "rank_body"), (routes, "read_stream"), (v2, "parse")]
    threads: dict[tuple[str, bool], str] = {}
    collects: set[bool] = set()

    def watched(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def reads(data: bytes, limits: ServingLimits) -> Any:
            is_large = len(data) > LARGE_BYTES
            threads[name, is_large] = threading.current_thread().name
            if is_large:
                collects.add(gc.isenabled())
            return read(data, limits)

        return reads

    for module, name in readers:
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    rows = export.rows[:2]
    padding = {"other": "x" * LARGE_BYTES}
    items = [{name: value for name, value in row.items() if name != "user"} for row in rows]
    with served_here(export.model) as url, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        for more in ({}, padding):
            padded = [{**row, **more} for row in rows]
            found = client.post("/v1/predict", json={"rows": padded}).json()
            np.testing.assert_array_equal(np.float32(found["predictions"]["click"]), export.predictions(rows)[:, 0])
            candidates = [{**item, **more} for item in items]
            body = {"context": {"user": rows[0]["user"]}, "candidates": candidates}
            assert client.post("/v1/rank", json=body).status_code == 200
            table = pa.Table.from_pylist([{**row, **more} for row in export.rows[:20]])
            stream = {"content": arrow_stream(table), "headers": {"content-type": ARROW_STREAM}}
            assert client.post("/v1/predict", **stream).status_code == 200
            response = client.post("/v2/models/small/infer", json={"inputs": [], **more})
            assert response.json()["code"] == "missing_columns"
    assert gc.isenabled()
    assert collects == {False}, "a collection would look at all values that are being read"
    for _, name in readers:
        assert threads[name, True].startswith("large-body"), name
        assert not threads[name, False].startswith("large-body"), name


@pytest.mark.parametrize("place", ["rows", "candidates"])
def test_too_many_rows_are_not_read_twice(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_body, "parse", None)  # it would be called
    read = json_body.predict_body if place == "rows" else json_body.rank_body
    with pytest.raises(HttpRefused, match=f"{place}: holds 10,001 rows; 10,000 are allowed"):
        read(json.dumps({place: [{}] * 10_001}).encode(), LIMITS)


def test_nesting_is_bounded_while_a_body_is_read() -> None:
    deepest = b'{"a":' * 15 + b"[]" + b"}" * 15
    assert json_body.parse(deepest, LIMITS)
    for body in (b'{"a":' + deepest + b"}", b'{"a":' * 16 + b"[]" + b"}" * 16, b'{"a":' + b"[" * 100_000):
        with pytest.raises(HttpRefused, match="nested deeper than 16"):
            json_body.parse(body, LIMITS)
    assert json_body.parse(b'{"a": [1, -2.5, 18446744073709551616, "x", null, true, {"b": []}]}', LIMITS) == {
        "a": [1, -2.5, 2**64, "x", None, True, {"b": []}]
    }


def test_a_vector_may_be_longer_than_the_lists_of_a_row() -> None:
    limits = ServingLimits(ids_per_row=3)
    vector = RawColumn("emb.0", ValueType.FLOAT, vector=VectorElement("emb", 0, 5))
    ids = RawColumn("tags", ValueType.INTEGER, many=True)
    entry = {"datatype": "FP32", "shape": [1, 5], "data": [1.0, 2.0, 3.0, 4.0, 5.0]}
    values, _ = read_tensor(entry, vector, "input 'emb'", memoryview(b""), limits)
    assert values.to_pylist() == [[1.0, 2.0, 3.0, 4.0, 5.0]]  # pyright: ignore[reportAttributeAccessIssue]
    for column, width, most in ((ids, 5, 3), (vector, 6, 5)):
        wide = {**entry, "shape": [1, width]}
        with pytest.raises(HttpRefused, match=f"each row holds {width} values; {most} are allowed"):
            read_tensor(wide, column, "input 'x'", memoryview(b""), limits)
