"""The Open Inference Protocol, by its own client: predictions equal those of the export."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient import http as triton
from tritonclient.utils import InferenceServerException

from tests.serving.http_kit import Exported, Running, exported, running


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


@pytest.fixture(scope="module")
def server(export: Exported) -> Generator[Running]:
    with running(export.folder, "--no-log") as found:
        yield found


@pytest.fixture
def client(server: Running) -> Generator[Any]:
    found = triton.InferenceServerClient(server.url.removeprefix("http://"))
    yield found
    found.close()


def tensors(rows: list[dict[str, Any]], binary: bool = True) -> list[Any]:
    """Returns the inputs of some rows: text, numbers with NaN, lists as JSON and as the log has them."""
    columns: dict[str, tuple[str, np.ndarray[Any, Any]]] = {
        "user": ("BYTES", np.array([row["user"] for row in rows], object)),
        "item": ("INT64", np.array([row["item"] for row in rows], np.int64)),
        "age": ("FP64", np.array([np.nan if row["age"] is None else row["age"] for row in rows])),
        "tags": ("BYTES", np.array([json.dumps(row["tags"]) for row in rows], object)),
        "history": ("BYTES", np.array(["|".join(map(str, row["history"])) for row in rows], object)),
    }
    if not binary:  # JSON has no NaN
        columns["age"] = ("BYTES", np.array(["" if row["age"] is None else repr(row["age"]) for row in rows], object))
    found: list[Any] = []
    for name, (kind, values) in columns.items():
        found.append(triton.InferInput(name, list(values.shape), kind))
        found[-1].set_data_from_numpy(values, binary_data=binary)
    return found


def test_health_and_metadata(client: Any, export: Exported) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("small")
    assert client.is_model_ready("small", export.model.version.short)
    assert not client.is_model_ready("other")
    assert client.get_server_metadata()["name"] == "ziggurat"
    found = client.get_model_metadata("small")
    assert [(each["name"], each["datatype"]) for each in found["inputs"]] == [
        ("user", "BYTES"),
        ("item", "INT64"),
        ("age", "FP64"),
        ("tags", "BYTES"),
        ("history", "BYTES"),
    ]
    assert [each["name"] for each in found["outputs"]] == ["click", "liking", "liking/1", "liking/2", "liking/3"]


@pytest.mark.parametrize("binary", [True, False])
def test_inference_gives_the_bits_of_the_export(client: Any, export: Exported, binary: bool) -> None:
    rows = export.rows[:50]
    expected = export.predictions(rows)
    result = client.infer("small", tensors(rows, binary), request_id="7")
    np.testing.assert_array_equal(result.as_numpy("click"), expected[:, 0])
    np.testing.assert_array_equal(result.as_numpy("liking"), expected[:, 1])
    response = result.get_response()
    assert (response["id"], response["model_version"]) == ("7", export.model.version.short)
    wanted = [triton.InferRequestedOutput("liking/2", binary_data=binary)]
    result = client.infer("small", tensors(rows, binary), outputs=wanted, timeout=5_000_000)
    assert [each["name"] for each in result.get_response()["outputs"]] == ["liking/2"]
    np.testing.assert_array_equal(result.as_numpy("liking/2"), export.scored(rows).further["liking"]["2"])


def test_lists_of_one_length_are_tensors_of_two_dimensions(client: Any, export: Exported) -> None:
    rows = [{**row, "tags": [1, 5], "history": [7]} for row in export.rows[:8]]
    inputs = tensors(rows)[:3]
    for name, width in (("tags", 2), ("history", 1)):
        values = np.array([row[name] for row in rows], np.int64)
        inputs.append(triton.InferInput(name, [8, width], "INT64"))
        inputs[-1].set_data_from_numpy(values)
    found = client.infer("small", inputs).as_numpy("click")
    np.testing.assert_array_equal(found, export.predictions(rows)[:, 0])


def test_refusals_reach_the_client_in_words(client: Any, export: Exported) -> None:
    inputs = tensors(export.rows[:3])
    with pytest.raises(InferenceServerException, match="the inputs lack column 'history'"):
        client.infer("small", inputs[:-1])
    with pytest.raises(InferenceServerException, match="no model 'other'"):
        client.infer("other", inputs)
    with pytest.raises(InferenceServerException, match="outputs\\[0\\] is 'clicks'"):
        client.infer("small", inputs, outputs=[triton.InferRequestedOutput("clicks")])
    wrong = triton.InferInput("item", [3], "BYTES")
    wrong.set_data_from_numpy(np.array(["1", "2", "x"], object))
    with pytest.raises(InferenceServerException, match=r"rows\[2\], column 'item': not an integer: received 'x'"):
        client.infer("small", [inputs[0], wrong, *inputs[2:]])


INPUT: dict[str, Any] = {"name": "user", "datatype": "BYTES", "shape": [1], "data": ["a"]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "nothing"}, "is no column"),
        ({"datatype": "TEXT"}, "datatype"),
        ({"shape": [2]}, "its shape needs 2"),
        ({"shape": [-1]}, "shape"),
        ({"shape": [1, 1, 1]}, "shape"),
        ({"shape": 3}, "shape"),
        ({"shape": [150_000, 0], "data": []}, "input 'user': holds 150,000 rows; 10,000 are allowed"),
        ({"name": "tags", "shape": [1, 20_000]}, "each row holds 20,000 values; 10,000 are allowed"),
        ({"shape": [2], "data": [["a"]] * 20_000}, "has 20,000 values; its shape needs 2"),
        ({"shape": [2, 0], "data": [[], ["a"]]}, "has 1 values; its shape needs 0"),
        ({"data": [3]}, "expected text"),
        ({"data": None}, "expected an array"),
        ({"datatype": "INT64", "data": ["3"]}, "a value of the datatype INT64"),
        ({"datatype": "INT8", "data": [300]}, "INT8 cannot hold"),
        ({"name": "age", "datatype": "FP16", "shape": [2], "data": [None, 10**400]}, "FP16 cannot hold"),
        ({"name": "age", "datatype": "FP16", "shape": [2], "data": [None, 1e300]}, "FP16 cannot hold"),
        ({"name": "age", "datatype": "FP16", "data": [10**400]}, "FP16 cannot hold"),
        ({"name": "age", "datatype": "FP32", "data": [1e300]}, "FP32 cannot hold"),
        ({"datatype": "INT64", "data": [True]}, "a value of the datatype INT64"),
        ({"parameters": {"binary_data_size": 4}}, "data and binary_data_size"),
        ({"parameters": 3}, "parameters"),
    ],
)
def test_tensors_that_cannot_be_used(server: Running, changes: dict[str, Any], message: str) -> None:
    response = server.client.post("/v2/models/small/infer", content=json.dumps({"inputs": [{**INPUT, **changes}]}))
    assert 400 <= response.status_code < 500
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("data", "size", "length"),
    [
        (b"\x05\0\0\0abc", 7, None),
        (b"\x01\0\0\0a", 99, None),
        (b"\x01\0\0\0ax", 5, None),
        (b"", 0, 10_000),
        (b"", 0, "x"),
    ],
)
def test_binary_data_that_cannot_be_used(server: Running, data: bytes, size: int, length: Any) -> None:
    entry = {"name": "user", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [entry]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head) if length is None else length)}
    response = server.client.post("/v2/models/small/infer", content=head + data, headers=headers)
    assert isinstance(response, httpx.Response)
    assert 400 <= response.status_code < 500, response.text
