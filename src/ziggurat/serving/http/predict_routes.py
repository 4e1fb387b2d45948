"""``/v1``: predictions for rows in JSON or Arrow, and candidates ranked for a context."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ziggurat.core.errors import nearest, shorten
from ziggurat.serving.http.arrow_body import ARROW_STREAM, read_stream, write_stream
from ziggurat.serving.http.batching.batcher import Answer
from ziggurat.serving.http.call import Service, call_of, deadline_of, header, json_response
from ziggurat.serving.http.gate import Direct
from ziggurat.serving.http.json_body import predict_body, rank_body
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.http.schema_docs import predict_docs, rank_docs


def predict_routes(service: Service) -> tuple[APIRouter, Direct]:
    """Returns the routes of ``/v1``, and those that the gate calls without a router."""
    router = APIRouter(tags=["predictions"])

    async def predict(request: Request) -> Response:
        call = call_of(request, "/v1/predict")
        kind = (header(request, "content-type") or "application/json").partition(";")[0].strip().lower()
        rows: Any
        if kind == ARROW_STREAM:
            rows = await service.large_bodies.read(call.body, lambda: read_stream(call.body, service.limits))
            deadline_ms, plain = None, False
            count = rows.num_rows
        elif kind in {"application/json", ""}:
            body = await service.large_bodies.read(call.body, lambda: predict_body(call.body, service.limits))
            rows, deadline_ms, count, plain = body.rows, body.deadline_ms, len(body.rows), body.plain
        else:
            raise HttpRefused(
                415,
                "content_type",
                f"the Content-Type is {shorten(kind)}",
                f"send application/json or {ARROW_STREAM}",
            )
        deadline = deadline_of(request, deadline_ms)
        answer = await service.predict(call, lambda model: model.predict_parts(rows, plain=plain), count, deadline)
        if ARROW_STREAM in (header(request, "accept") or ""):
            metadata = {name: str(value) for name, value in answer.version.to_json().items()}
            return Response(write_stream(answer.outputs, metadata), media_type=ARROW_STREAM)
        return json_response(_predicted(answer))

    async def rank(request: Request) -> Response:
        call = call_of(request, "/v1/rank")
        kind = (header(request, "content-type") or "application/json").partition(";")[0].strip().lower()
        if kind not in {"application/json", ""}:
            raise HttpRefused(415, "content_type", f"the Content-Type is {shorten(kind)}", "send application/json")
        body = await service.large_bodies.read(call.body, lambda: rank_body(call.body, service.limits))
        labels = [task.name for task in service.model.scorer.manifest.tasks]
        label = labels[0] if body.label is None else body.label
        if label not in labels:
            close = nearest(label, labels)
            hint = f"did you mean {close!r}? " if close else ""
            raise HttpRefused(
                422, "unknown_label", f"there is no label {shorten(label)}", f"{hint}labels: {', '.join(labels)}"
            )
        answer = await service.predict(
            call,
            lambda model: model.rank_parts(body.context, body.candidates, plain=body.plain),
            len(body.candidates),
            deadline_of(request, body.deadline_ms),
            is_rank=True,
        )
        order = np.argsort(-answer.outputs[label], kind="stable")[: body.top]
        ranked = Answer(
            {name: values[order] for name, values in answer.outputs.items()}, answer.version, 0, 0.0, 0.0, 0.0
        )
        found = _predicted(ranked)
        return json_response(
            {
                "model": found.pop("model"),
                "label": label,
                "candidates": order.tolist(),
                "scores": answer.outputs[label][order].tolist(),
                **found,
            }
        )

    router.add_api_route("/v1/predict", predict, methods=["POST"], **predict_docs(service.model))
    router.add_api_route("/v1/rank", rank, methods=["POST"], **rank_docs(service.model))
    return router, {("POST", "/v1/predict"): predict, ("POST", "/v1/rank"): rank}


def _predicted(answer: Answer) -> dict[str, Any]:
    """Returns what an answer says: predictions by label, and further ones, such as those of quantiles, by name."""
    found: dict[str, Any] = {"model": answer.version.to_json(), "predictions": {}}
    for output, values in answer.outputs.items():
        label, _, name = output.partition("/")
        if name and label in found["predictions"]:
            found.setdefault("further", {}).setdefault(label, {})[name] = values.tolist()
        else:
            found["predictions"][output] = values.tolist()
    return found
