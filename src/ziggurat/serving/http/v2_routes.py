"""``/v2``: the Open Inference Protocol, so that its clients work with every model.

https://github.com/kserve/open-inference-protocol, with the extension for binary tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec
import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ziggurat._version import __version__
from ziggurat.core.errors import shorten
from ziggurat.serving.http.batching.batcher import Answer
from ziggurat.serving.http.call import Service, call_of, deadline_of, json_response
from ziggurat.serving.http.json_body import check_rows, parse, wrong_field
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.schema_docs import example_row, infer_docs, plain_docs
from ziggurat.serving.http.served_model import ServedModel, missing_columns
from ziggurat.serving.http.v2_tensors import datatype, read_tensor, shape

_HEADER_LENGTH = "inference-header-content-length"


def v2_routes(service: Service) -> APIRouter:
    """Returns the routes of ``/v2``."""
    router = APIRouter(tags=["Open Inference Protocol"])

    def named(name: str, version: str | None = None, model: ServedModel | None = None) -> ServedModel:
        model = service.model if model is None else model
        if name != model.version.name or version not in {None, model.version.short}:
            shown = shorten(name if version is None else f"{name}, version {version}")
            hint = f"it serves {model.version.name}, version {model.version.short}"
            raise HttpRefused(404, "unknown_model", f"this server has no model {shown}", hint)
        return model

    async def live(request: Request) -> Response:
        call_of(request, "/v2/health/live")
        return json_response({"live": True})

    async def ready(request: Request) -> Response:
        call_of(request, "/v2/health/ready")
        return json_response({"ready": not service.stopping}, 503 if service.stopping else 200)

    async def server(request: Request) -> Response:
        call_of(request, "/v2")
        return json_response({"name": "ziggurat", "version": __version__, "extensions": ["binary_tensor_data"]})

    async def model_metadata(request: Request, name: str, version: str | None = None) -> Response:
        call_of(request, "/v2/models/NAME")
        return json_response(_metadata(named(name, version)))

    async def model_ready(request: Request, name: str, version: str | None = None) -> Response:
        call_of(request, "/v2/models/NAME/ready")
        found = named(name, version).version
        return json_response({"name": found.name, "ready": not service.stopping}, 503 if service.stopping else 200)

    async def infer(request: Request, name: str, version: str | None = None) -> Response:
        call = call_of(request, "/v2/models/NAME/infer")
        model = named(name, version)
        header_length = request.headers.get(_HEADER_LENGTH)

        def read() -> tuple[dict[str, Any], dict[str, Any], int]:
            text, binary = _divided(call.body, header_length)
            body = parse(text, service.limits)
            return body, *_columns(body, model, binary, service.limits)

        body, columns, rows = await service.large_bodies.read(call.body, read)
        wanted = _wanted(body, model)
        answer = await service.predict(
            call,
            lambda served: named(name, version, served).predict_parts(columns),
            rows,
            deadline_of(request, _timeout(body)),
        )
        return _inferred(body, answer, wanted)

    router.add_api_route("/v2/health/live", live, methods=["GET"], **plain_docs("Whether the server runs"))
    router.add_api_route("/v2/health/ready", ready, methods=["GET"], **plain_docs("Whether it takes requests"))
    router.add_api_route("/v2", server, methods=["GET"], **plain_docs("The server"))
    for path in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        shown = path != "/v2/models/{name}"
        router.add_api_route(path, model_metadata, methods=["GET"], name=f"metadata{shown}", **plain_docs("The model"))
        router.add_api_route(
            f"{path}/ready", model_ready, methods=["GET"], name=f"ready{shown}", **plain_docs("Whether it is ready")
        )
        router.add_api_route(
            f"{path}/infer", infer, methods=["POST"], name=f"infer{shown}", **infer_docs(_example(service.model))
        )
    return router


def _metadata(model: ServedModel) -> dict[str, Any]:
    return {
        "name": model.version.name,
        "versions": [model.version.short],
        "platform": "ziggurat",
        "inputs": [
            {"name": name, "datatype": datatype(column), "shape": shape(column)}
            for name, column in model.columns.items()
        ],
        "outputs": [{"name": name, "datatype": "FP32", "shape": [-1]} for name in model.outputs],
        "parameters": model.version.to_json(),
    }


def _example(model: ServedModel) -> dict[str, Any]:
    row = example_row(model)
    inputs: list[dict[str, Any]] = []
    for name, column in model.columns.items():
        value: Any = row
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        kind, dims = datatype(column), [1, *shape(column)[1:]]
        data = value if column.vector is not None else [value]
        if kind == "BYTES":
            data = [value if isinstance(value, str) else msgspec.json.encode(value).decode()]
        inputs.append({"name": name, "datatype": kind, "shape": dims, "data": data})
    return {"inputs": inputs}


def _divided(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    """Returns the JSON and the binary data after it."""
    if header_length is None:
        return body, memoryview(b"")
    if not header_length.isdecimal() or not header_length.isascii() or int(header_length[:12]) > len(body):
        allowed = f"a number of bytes up to {len(body):,}, those of the body"
        raise wrong_field(_HEADER_LENGTH, header_length, allowed)
    size = int(header_length[:12])
    return body[:size], memoryview(body)[size:]


def _columns(
    body: Mapping[str, Any], model: ServedModel, binary: memoryview, limits: ServingLimits
) -> tuple[dict[str, Any], int]:
    """Returns the columns that the model needs, and the number of rows."""
    inputs = body.get("inputs")
    if not isinstance(inputs, list):
        raise wrong_field("inputs", inputs, "an array of tensors")
    columns: dict[str, Any] = {}
    rows: int | None = None
    for number, entry in enumerate(cast("list[Any]", inputs)):
        if not isinstance(entry, dict) or not isinstance(cast("dict[str, Any]", entry).get("name"), str):
            raise wrong_field(f"inputs[{number}]", entry, "an object with name, datatype, shape and data")
        found = cast("dict[str, Any]", entry)
        name = found["name"]
        column = model.columns.get(name)
        if name in columns or column is None:
            fault = "is given twice" if name in columns else "is no column of this model"
            raise HttpRefused(422, "unknown_input", f"input {shorten(name)} {fault}", _listed(list(model.columns)))
        columns[name], binary = read_tensor(found, column, f"input {name!r}", binary, limits)
        size = len(columns[name])
        if rows is not None and size != rows:
            problem = f"input {name!r} has {size:,} rows, those before it have {rows:,}"
            raise HttpRefused(400, "invalid_tensor", problem, "give every tensor a row for each row of the request")
        rows = size
    missing = [name for name in model.columns if name not in columns]
    if missing:
        raise missing_columns(missing, "the inputs lack")
    if len(binary):
        problem = f"{len(binary):,} bytes are left after the last tensor"
        raise HttpRefused(400, "invalid_tensor", problem, "state each size in parameters.binary_data_size")
    check_rows(rows or 0, "inputs", limits)
    return columns, rows or 0


def _wanted(body: Mapping[str, Any], model: ServedModel) -> list[tuple[str, bool]]:
    """Returns the outputs that are asked for, and whether in binary."""
    parameters = _parameters(body, "parameters")
    default = parameters.get("binary_data_output") is True
    outputs = body.get("outputs")
    if outputs is None:
        return [(name, default) for name in model.outputs]
    if not isinstance(outputs, list):
        raise wrong_field("outputs", outputs, "an array of objects with a name")
    found: list[tuple[str, bool]] = []
    for number, entry in enumerate(cast("list[Any]", outputs)):
        name = cast("dict[str, Any]", entry).get("name") if isinstance(entry, dict) else None
        if name not in model.outputs:
            raise HttpRefused(404, "unknown_output", f"outputs[{number}] is {shorten(name)}", _listed(model.outputs))
        binary = _parameters(cast("dict[str, Any]", entry), f"outputs[{number}].parameters").get("binary_data", default)
        found.append((cast("str", name), binary is True))
    return found


def _parameters(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    found = values.get("parameters") or {}
    if not isinstance(found, dict):
        raise wrong_field(where, found, "an object")
    return cast("dict[str, Any]", found)


def _timeout(body: Mapping[str, Any]) -> float | None:
    """Returns the milliseconds of the parameter ``timeout``, which is in microseconds."""
    value = _parameters(body, "parameters").get("timeout")
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise wrong_field("parameters.timeout", value, "a whole number of microseconds above 0")
    return value / 1e3


def _inferred(body: Mapping[str, Any], answer: Answer, wanted: list[tuple[str, bool]]) -> Response:
    parts: list[bytes] = []
    outputs: list[dict[str, Any]] = []
    for name, binary in wanted:
        values = answer.outputs[name]
        entry: dict[str, Any] = {"name": name, "datatype": "FP32", "shape": [len(values)]}
        if binary:
            parts.append(values.astype(np.dtype("<f4")).tobytes())
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = values.tolist()
        outputs.append(entry)
    found: dict[str, Any] = {"model_name": answer.version.name, "model_version": answer.version.short}
    if isinstance(body.get("id"), str):
        found["id"] = body["id"]
    found |= {"parameters": answer.version.to_json(), "outputs": outputs}
    if not parts:
        return json_response(found)
    head = msgspec.json.encode(found)
    headers = {_HEADER_LENGTH: str(len(head))}
    return Response(b"".join([head, *parts]), 200, headers, "application/octet-stream")


def _listed(names: list[str]) -> str:
    return f"there are: {', '.join(names[:50])}"
