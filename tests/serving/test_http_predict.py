"""Predictions over HTTP equal those of the export, and refusals name the row, the column and what is allowed."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Generator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest

from tests.serving.http_kit import Exported, Running, arrow_stream, exported, running
from ziggurat.serving.http.arrow_body import ARROW_STREAM
from ziggurat.serving.http.served_model import ServedModel


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


@pytest.fixture(scope="module")
def server(export: Exported) -> Generator[Running]:
    with running(export.folder, "--max-ids-per-row", "50") as found:
        yield found


def refusal(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    return response.json()


@pytest.mark.parametrize("count", [1, 2, 100])
def test_json_gives_the_bits_of_the_export(server: Running, export: Exported, count: int) -> None:
    rows = export.rows[:count]
    found = server.client.post("/v1/predict", json={"rows": rows}).json()
    expected = export.scored(rows)
    for number, label in enumerate(("click", "liking")):
        np.testing.assert_array_equal(np.float32(found["predictions"][label]), expected.predictions_BT[:, number])
    assert list(found["further"]["liking"]) == ["1", "2", "3"]
    for level, values in expected.further["liking"].items():
        np.testing.assert_array_equal(np.float32(found["further"]["liking"][level]), values)
    assert found["model"] == export.model.version.to_json()


def test_arrow_gives_the_same_bits_both_ways(server: Running, export: Exported) -> None:
    rows = export.rows[:70]
    table = pa.Table.from_pylist(rows)
    headers = {"content-type": ARROW_STREAM, "accept": ARROW_STREAM}
    response = server.client.post("/v1/predict", content=arrow_stream(table), headers=headers)
    assert response.headers["content-type"] == ARROW_STREAM
    found = pa.ipc.open_stream(response.content).read_all()
    assert found.column_names == ["click", "liking", "liking/1", "liking/2", "liking/3"]
    np.testing.assert_array_equal(found["click"].to_numpy(), export.predictions(rows)[:, 0])
    assert found.schema.metadata[b"version"].decode() == export.model.version.short
    encoded = table.set_column(0, "user", table["user"].dictionary_encode())
    response = server.client.post("/v1/predict", content=arrow_stream(encoded), headers=headers)
    assert pa.ipc.open_stream(response.content).read_all() == found


def test_columns_that_no_feature_needs_are_ignored_and_null_is_missing(server: Running, export: Exported) -> None:
    rows = [{**row, "age": None, "other": {"deep": [1]}} for row in export.rows[:3]]
    found = server.client.post("/v1/predict", json={"rows": rows}).json()
    expected = export.predictions([{**row, "age": None} for row in export.rows[:3]])
    np.testing.assert_array_equal(np.float32(found["predictions"]["click"]), expected[:, 0])


@pytest.mark.parametrize(
    "shared", [["user"], ["user", "age", "history"], ["item"], [], ["user", "item", "age", "tags", "history"]]
)
def test_ranking_gives_the_bits_of_whole_rows(server: Running, export: Exported, shared: list[str]) -> None:
    first = export.rows[0]
    rows = [{**row, **{name: first[name] for name in shared}} for row in export.rows[:60]]
    body = {
        "context": {name: first[name] for name in shared},
        "candidates": [{name: value for name, value in row.items() if name not in shared} for row in rows],
    }
    found = server.client.post("/v1/rank", json=body).json()
    expected = export.predictions(rows)
    order = np.argsort(-expected[:, 0], kind="stable")
    assert found["label"] == "click"
    assert found["candidates"] == order.tolist()
    np.testing.assert_array_equal(np.float32(found["scores"]), expected[order, 0])
    np.testing.assert_array_equal(np.float32(found["predictions"]["liking"]), expected[order, 1])
    top = server.client.post("/v1/rank", json={**body, "top": 3, "label": "liking"}).json()
    assert top["candidates"] == np.argsort(-expected[:, 1], kind="stable")[:3].tolist()


def test_the_examples_of_the_openapi_document_are_answered(server: Running) -> None:
    document = server.client.get("/openapi.json").json()
    for path in ("/v1/predict", "/v1/rank", "/v2/models/{name}/infer"):
        content = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        response = server.client.post(path.format(name="small"), json=content["example"])
        assert response.status_code == 200, (path, response.text)
    row = document["paths"]["/v1/predict"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert row["properties"]["rows"]["items"]["required"] == ["user", "item", "age", "tags", "history"]


def test_a_row_at_fault_is_named_with_its_column_and_what_is_allowed(server: Running, export: Exported) -> None:
    rows = [dict(row) for row in export.rows[:4]]
    rows[2]["item"] = "x"
    for row in rows[:2] + rows[3:]:
        row["item"] = str(row["item"])
    found = refusal(server.client.post("/v1/predict", json={"rows": rows}), 422, "invalid_rows")
    assert found["error"].startswith("rows[2], column 'item': not an integer: received 'x'")
    assert (found["rows"][0]["row"], found["rows"][0]["column"], found["rows"][0]["features"]) == (2, "item", ["item"])
    assert found["rows_at_fault"] == 1
    rows[2]["item"] = {"a": 1}
    found = refusal(server.client.post("/v1/predict", json={"rows": rows}), 422, "invalid_rows")
    assert found["error"].startswith("rows[2], column 'item': received a nested value")
    context = {name: export.rows[0][name] for name in ("user", "history", "tags")}
    candidates = [{"item": 1, "age": 3.0}, {"item": 2, "age": "old"}]
    found = refusal(
        server.client.post("/v1/rank", json={"context": context, "candidates": candidates}), 422, "invalid_rows"
    )
    assert found["error"].startswith("candidates[1], column 'age': received 'old'")
    context["history"] = ["many"]
    candidates[1]["age"] = 2.0
    response = server.client.post("/v1/rank", json={"context": context, "candidates": candidates})
    assert "context" in refusal(response, 422, "invalid_rows")["error"]


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        (b"", 400, "invalid_json", "truncated"),
        (b"[1]", 400, "invalid_json", "an array"),
        (b"[" * 5000, 400, "invalid_json", "an array"),
        (b'"rows"', 400, "invalid_json", "the body is a text; a JSON object is expected"),
        (b'{"rows": ' + b"[" * 5000, 400, "too_deep", "16"),
        (b'{"rows": ' + b"[" * 30 + b"]" * 30 + b"}", 400, "too_deep", "16"),
        (b'{"row": []}', 422, "unknown_field", "'row'"),
        (b"{}", 422, "missing_field", "'rows'"),
        (b'{"rows": {}}', 422, "invalid_field", "array"),
        (b'{"rows": [3]}', 422, "invalid_field", r"rows[0]: received 3"),
        (b'{"rows": []}', 422, "no_rows", "no rows"),
        (b'{"rows": [{"user": "a", "itme": 3}]}', 422, "missing_columns", "'item', 'age', 'tags', 'history'"),
        (b'{"rows": [{}], "deadline_ms": -1}', 422, "invalid_field", "deadline_ms"),
        (json.dumps({"rows": [{}] * 10_001}).encode(), 413, "too_many_rows", "10,000 are allowed"),
    ],
)
def test_a_body_that_cannot_be_used(server: Running, body: bytes, status: int, code: str, message: str) -> None:
    assert message in refusal(server.client.post("/v1/predict", content=body), status, code)["error"]


def test_ids_are_bounded_and_a_column_has_one_place(server: Running, export: Exported) -> None:
    row = {**export.rows[0], "tags": list(range(51))}
    found = refusal(server.client.post("/v1/predict", json={"rows": [export.rows[1], row]}), 422, "too_many_ids")
    assert "rows[1]" in found["error"]
    body = {"context": {"user": "u1", "item": 3}, "candidates": [export.rows[0]]}
    assert "'item'" in refusal(server.client.post("/v1/rank", json=body), 422, "column_in_both")["error"]
    context = {name: export.rows[0][name] for name in ("user", "age")}
    candidates = [{name: row[name] for name in ("item", "tags", "history")} for row in export.rows[:4]]
    body = {"context": context, "candidates": [*candidates[:3], {**candidates[3], "user": "u2"}]}
    twice = refusal(server.client.post("/v1/rank", json=body), 422, "column_in_both")["error"]
    assert twice == "column 'user' is in the context and in candidates[3]"
    body = {"context": {"user": "u1"}, "candidates": [{"item": 3}]}
    assert "'age'" in refusal(server.client.post("/v1/rank", json=body), 422, "missing_columns")["error"]
    body = {"context": {"user": "u1"}, "candidates": [export.rows[0]], "label": "clik"}
    assert "click" in refusal(server.client.post("/v1/rank", json=body), 422, "unknown_label")["hint"]


def test_values_beyond_all_numbers_are_refused_in_words(server: Running, export: Exported) -> None:
    """Such a value once failed all requests that were encoded with it."""
    row = export.rows[0]
    bodies: list[tuple[str, Any]] = [
        ("/v1/predict", {"rows": [row, {**row, name: 10**400}]}) for name in ("age", "item")
    ]
    candidate = {name: value for name, value in row.items() if name != "age"}
    bodies.append(("/v1/rank", {"context": {"age": 10**400}, "candidates": [candidate]}))
    for path, body in bodies:
        found = refusal(server.client.post(path, content=json.dumps(body)), 422, "invalid_rows")
        assert "column 'age'" in found["error"] or "column 'item'" in found["error"]
    times = pa.array(range(9), pa.timestamp("ns", "Nowhere/Zone"))
    table = pa.Table.from_pylist(export.rows[:9]).set_column(0, "user", times)
    found = server.client.post("/v1/predict", content=arrow_stream(table), headers={"content-type": ARROW_STREAM})
    assert refusal(found, 422, "invalid_rows")["rows"][0]["column"] == "user"


def test_arrow_that_unfolds_is_refused(server: Running, export: Exported) -> None:
    table = pa.Table.from_pylist(export.rows[:5])
    headers = {"content-type": ARROW_STREAM}

    def post(content: bytes) -> httpx.Response:
        return server.client.post("/v1/predict", content=content, headers=headers)

    for codec in ("zstd", "lz4"):
        squeezed = arrow_stream(table, options=pa.ipc.IpcWriteOptions(compression=codec))
        refusal(post(squeezed), 415, "compressed_arrow")
    views = table.set_column(0, "user", table["user"].cast(pa.string_view()))
    refusal(post(arrow_stream(views)), 415, "unusual_type")
    bits = table.set_column(0, "user", pa.array([[True]] * 5))
    refusal(post(arrow_stream(bits)), 415, "unusual_type")
    large = pa.DictionaryArray.from_arrays(pa.array([0] * 1000), pa.array(["x" * 100_000]))
    refusal(post(arrow_stream(pa.table({"user": large}))), 413, "too_large")
    refusal(post(arrow_stream(pa.table({"user": pa.nulls(10**6)}))), 413, "too_many_rows")
    refusal(post(b"not arrow"), 400, "invalid_arrow")
    refusal(post(arrow_stream(table.drop(["age"]))), 422, "missing_columns")
    assert server.client.post("/v1/predict", content="", headers={"content-type": "text/csv"}).status_code == 415


def test_other_paths_and_methods(server: Running) -> None:
    refusal(server.client.get("/v1/predict"), 405, "wrong_method")
    refusal(server.client.get("/nowhere"), 404, "unknown_path")
    refusal(server.client.get("/docs"), 404, "unknown_path")  # it would load scripts from elsewhere


def test_metrics_status_and_the_log_hold_no_value_of_a_feature(server: Running, export: Exported) -> None:
    rows = [{**export.rows[0], "user": "a-person-nobody-may-see"}]
    assert server.client.post("/v1/predict", json={"rows": rows}).status_code == 200
    server.client.post("/v1/predict", json={"rows": [{**rows[0], "item": "secret-thing"}]})
    server.client.get("/a-person-nobody-may-see")
    text = server.client.get("/metrics").text
    for line in (
        'ziggurat_requests_total{endpoint="/v1/predict",status="200"}',
        'ziggurat_stage_seconds_count{endpoint="/v1/predict",stage="predict"}',
        'ziggurat_unknown_ids_total{feature="user"}',
        'ziggurat_refused_total{code="invalid_rows"}',
        "ziggurat_model_age_seconds",
        "ziggurat_batch_rows_bucket",
        f'export="{export.model.version.export}"',
    ):
        assert line in text
    unknown = next(line for line in text.splitlines() if line.startswith('ziggurat_unknown_ids_total{feature="user"}'))
    assert float(unknown.split()[-1]) >= 1
    status = server.client.get("/admin/status").json()
    assert status["model"] == export.model.version.to_json()
    assert "nobody" not in server.lines()
    assert "secret" not in server.lines()
    entries = [json.loads(line) for line in server.lines().splitlines()]
    mine = [each for each in entries if each["endpoint"] == "/v1/predict" and each["status"] == 200]
    assert {"id", "client", "rows", "ms", "stages_ms", "bytes_in"} <= mine[-1].keys()


def test_the_log_holds_the_values_of_features_where_that_is_asked_for(export: Exported) -> None:
    rows = [{**export.rows[0], "user": "a-person"}]
    with running(export.folder, "--log-features", "--workers", "2") as found:
        assert found.client.post("/v1/predict", json={"rows": rows}).status_code == 200
        assert found.client.post("/v1/predict", content=b"\xff" + b"x" * 100_000).status_code == 400
        found.stop()
        entries = [json.loads(line) for line in found.lines().splitlines()]
    first, second = (each["body"] for each in entries if each.get("endpoint") == "/v1/predict")
    assert json.loads(first)["rows"] == rows
    assert (second[:2], len(second)) == ("\ufffdx", 65_536)


def test_a_model_that_is_exchanged_is_freed_at_once(export: Exported) -> None:
    # a collection of garbage may come much later, and each version holds open files and memory
    gc.disable()
    try:
        model = ServedModel(export.model.scorer)
        row = export.rows[0]
        model.rank_parts({"user": row["user"]}, [{key: value for key, value in row.items() if key != "user"}])
        gone = weakref.ref(model)
        del model
        assert gone() is None
    finally:
        gc.enable()
