"""The OpenAPI documents of the routes, with schemas and examples that are made from the model's columns."""

from __future__ import annotations

from typing import Any

from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.features.encoders.encoder import Encoder
from ziggurat.features.encoders.identity import IdentityEncoder
from ziggurat.features.encoders.vocabulary import VocabularyEncoder
from ziggurat.serving.http.arrow_body import ARROW_STREAM
from ziggurat.serving.http.served_model import ServedModel, value_words

Json = dict[str, Any]
_REFUSAL: Json = {
    "type": "object",
    "required": ["error", "code"],
    "properties": {
        "error": {"type": "string", "description": "What was received and what is allowed."},
        "code": {"type": "string", "description": "The reason, for programs."},
        "hint": {"type": "string", "description": "What to do."},
        "rows": {"type": "array", "description": "The rows at fault, 20 at most.", "items": {"type": "object"}},
        "rows_at_fault": {"type": "integer"},
    },
}
REFUSALS: dict[int | str, Json] = {
    status: {"description": text, "content": {"application/json": {"schema": _REFUSAL}}}
    for status, text in {
        400: "The body is no valid JSON, Arrow or tensors.",
        401: "The token is missing or wrong.",
        403: "The token may not do this, or the request names another host.",
        404: "There is no such path, model or output.",
        405: "The path has another method.",
        409: "There is no version to do this with.",
        408: "The request did not arrive in time.",
        413: "The body or its number of rows is too large.",
        415: "The body is of another type, or compressed.",
        422: "A row, a column or a field cannot be used.",
        429: "This token sent too many requests.",
        503: "There is no place, or no time: try again after Retry-After seconds.",
    }.items()
}


def row_schema(model: ServedModel) -> Json:
    """Returns the JSON schema of a row."""
    properties: Json = {}
    for name, column in model.columns.items():
        first, *rest = name.split(".")
        place = properties
        for inner in rest:
            place = place.setdefault(first, {"type": "object", "properties": {}}).setdefault("properties", {})
            first = inner
        place[first] = _value_schema(column, _encoder(model, name))
    return {"type": "object", "required": list(properties), "properties": properties}


def example_row(model: ServedModel) -> Json:
    """Returns a row that can be predicted, with values that the model knows where it has a vocabulary."""
    row: Json = {}
    for name, column in model.columns.items():
        *path, last = name.split(".")
        place = row
        for each in path:
            place = place.setdefault(each, {})
        place[last] = _example(model, name, column)
    return row


def predict_docs(model: ServedModel) -> Json:
    """Returns the documents of ``/v1/predict``."""
    row = row_schema(model)
    body = {
        "type": "object",
        "required": ["rows"],
        "additionalProperties": False,
        "properties": {"rows": {"type": "array", "minItems": 1, "items": row}, "deadline_ms": _DEADLINE},
    }
    content = {
        "application/json": {"schema": body, "example": {"rows": [example_row(model)]}},
        ARROW_STREAM: {"schema": {"type": "string", "format": "binary"}},
    }
    return _docs("Predict rows", _answer(model, {}), content)


def rank_docs(model: ServedModel) -> Json:
    """Returns the documents of ``/v1/rank``."""
    example = example_row(model)
    names = list(example)
    half = max(1, len(names) // 2)
    candidate = {name: example[name] for name in names[half:]}
    part = {"type": "object", "properties": row_schema(model)["properties"]}
    body = {
        "type": "object",
        "required": ["candidates"],
        "additionalProperties": False,
        "properties": {
            "context": part,
            "candidates": {"type": "array", "minItems": 1, "items": part},
            "label": {"type": "string", "enum": [task.name for task in model.scorer.manifest.tasks]},
            "top": {"type": "integer", "minimum": 1},
            "deadline_ms": _DEADLINE,
        },
    }
    shown = {"context": {name: example[name] for name in names[:half]}, "candidates": [candidate, candidate]}
    more = {
        "label": {"type": "string"},
        "candidates": {"type": "array", "items": {"type": "integer"}, "description": "Positions, the best first."},
        "scores": {"type": "array", "items": {"type": "number"}},
    }
    return _docs("Rank candidates", _answer(model, more), {"application/json": {"schema": body, "example": shown}})


def plain_docs(summary: str, kind: str = "application/json") -> Json:
    """Returns the documents of a route without a body, which answers with ``kind``."""
    found: dict[int | str, Json] = {200: {"description": summary, "content": {kind: {}}}}
    return {"summary": summary, "responses": found | REFUSALS, "response_model": None}


def infer_docs(example: Json) -> Json:
    """Returns the documents of a route that takes tensors."""
    content = {
        "application/json": {"schema": {"type": "object", "required": ["inputs"]}, "example": example},
        "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
    }
    return _docs("Predict tensors", {"type": "object"}, content)


def pin_docs() -> Json:
    """Returns the documents of the route that pins a version."""
    body = {
        "type": "object",
        "required": ["version"],
        "additionalProperties": False,
        "properties": {"version": {"type": "string", "description": "As an answer's model.version has it."}},
    }
    content = {"application/json": {"schema": body, "example": {"version": "1200-0123456789abcdef"}}}
    return _docs("Serve a version until another one is chosen", {"type": "object"}, content)


_DEADLINE: Json = {"type": "number", "exclusiveMinimum": 0, "description": "Milliseconds to the answer."}


def _docs(summary: str, answer: Json, content: Json) -> Json:
    responses = {200: {"description": "The answer.", "content": {"application/json": {"schema": answer}}}}
    return {
        "summary": summary,
        "responses": responses | REFUSALS,
        "response_model": None,
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }


def _answer(model: ServedModel, more: Json) -> Json:
    numbers = {"type": "array", "items": {"type": "number"}}
    labels = {task.name: numbers for task in model.scorer.manifest.tasks}
    version = {name: {"type": "integer" if name == "step" else "string"} for name in model.version.to_json()}
    properties = {
        "model": {"type": "object", "properties": version},
        "predictions": {"type": "object", "properties": labels},
        "further": {"type": "object", "description": "Of each quantile, and the probability of each level."},
    }
    return {"type": "object", "required": ["model", "predictions"], "properties": properties | more}


def _value_schema(column: RawColumn, encoder: Encoder | None) -> Json:
    if column.vector is not None:
        size = column.vector.length
        return {"type": ["array", "null"], "items": {"type": "number"}, "minItems": size, "maxItems": size}
    if isinstance(encoder, IdentityEncoder):
        row = {"type": "integer", "minimum": 0, "maximum": encoder.rows - 1}
        return {"type": ["array", "null"], "items": row} if column.many else row
    kind = {ValueType.INTEGER: ["integer", "null"], ValueType.FLOAT: ["number", "null"]}.get(
        column.type, ["string", "null"]
    )
    described = {"description": f"{value_words(column)}; null where it is missing"}
    if column.many:
        return {"type": ["array", "null"], "items": {"type": kind[0]}} | described
    return {"type": kind} | described


def _example(model: ServedModel, name: str, column: RawColumn) -> Any:
    if column.vector is not None:
        return [0.0] * column.vector.length
    known = _known(model, name)
    if known is None:
        known = {ValueType.INTEGER: 1, ValueType.FLOAT: 1.0, ValueType.TEXT: "a"}.get(column.type)
    if column.type is ValueType.TIME:
        known = "2026-01-31T12:00:00" if column.time_format == "iso" else None
    return ([] if known is None else [known]) if column.many else known


def _known(model: ServedModel, name: str) -> Any:
    """Returns a value of the feature's vocabulary, if it has one."""
    encoder = _encoder(model, name)
    return encoder.keys[0].as_py() if isinstance(encoder, VocabularyEncoder) and len(encoder.keys) else None


def _encoder(model: ServedModel, name: str) -> Encoder | None:
    """Returns the encoder of the first feature of ids that is made of a column alone."""
    transform = model.transform
    tables = (transform.schema.tables.get(each.name) for each in transform.features if each.log_columns == (name,))
    return next((transform.encoders[table] for table in tables if table in transform.encoders), None)
