"""``/v1/model``: what model is served, how good it was, and what a form for its rows needs to know."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ziggurat.core.schema import RawColumn
from ziggurat.core.untrusted import as_object, parse_json, read_bytes
from ziggurat.features.encoders.vocabulary import VocabularyEncoder
from ziggurat.serving.artefact.damage import DAMAGED
from ziggurat.serving.artefact.manifest import SAMPLE_FILE
from ziggurat.serving.http.schema_docs import example_row
from ziggurat.serving.http.served_model import ServedModel, value_words

Json = dict[str, Any]
_NAMED = 50
"""Known values of a column that are proposed: those most frequent in training."""
_EXACT = 2**53
"""Browsers round whole numbers from it on."""


def description(model: ServedModel) -> Json:
    """Returns the description of a model."""
    manifest, reference = model.scorer.manifest, model.reference
    rows = _samples(model)
    return {
        "model": model.version.to_json(),
        "exported_at": model.exported_at,
        "made_by": {"ziggurat": manifest.source.version, "torch": manifest.source.torch},
        "precision": manifest.precision,
        "labels": [
            {"name": task.name, "kind": task.kind, "is_probability": task.is_probability, "levels": task.levels}
            for task in manifest.tasks
        ],
        "columns": [_column(model, name, column) for name, column in model.columns.items()],
        "user_columns": manifest.user_columns,
        "samples": [_exact(row) for row in rows or [example_row(model)]],
        "samples_are_real": bool(rows),
        "figures": manifest.figures,
        "deviation": manifest.deviation,
        "validation": None if reference is None else {"split": reference.split, "rows": reference.rows},
        "training": None if reference is None or reference.training is None else asdict(reference.training),
    }


def _column(model: ServedModel, name: str, column: RawColumn) -> Json:
    reference = model.reference
    numbers = None if reference is None else reference.numbers.get(name)
    return {
        "name": name,
        "type": str(column.type),
        "is_list": column.many or column.vector is not None,
        "length": None if column.vector is None else column.vector.length,
        "words": value_words(column) + (f", written as {column.time_format}" if column.type == "time" else ""),
        "range": None if numbers is None else asdict(numbers),
        "known": _known(model, name),
    }


def _known(model: ServedModel, name: str) -> Json | None:
    """Returns how many values of a column the model knows, and the most frequent ones."""
    for feature in model.transform.features:
        table = model.transform.schema.tables.get(feature.name)
        encoder = model.transform.encoders.get(table or "")
        if feature.log_columns == (name,) and isinstance(encoder, VocabularyEncoder):
            return {
                "count": len(encoder.keys),
                "values": [_exact(each) for each in encoder.keys.slice(0, _NAMED).to_pylist()],
            }
    return None


def _samples(model: ServedModel) -> list[Json]:
    """Returns the rows of the log that the export has; none if it has none."""
    path = model.scorer.folder / SAMPLE_FILE
    if SAMPLE_FILE not in model.scorer.manifest.files:
        return []
    rows = as_object(parse_json(read_bytes(path, DAMAGED), path, DAMAGED), path, DAMAGED).get("rows")
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _exact(value: Any) -> Any:
    """Returns a value with whole numbers that a browser would round as text, which columns of numbers take as well; the
    others of their list, too, since a list has values of one type."""
    if isinstance(value, dict):
        return {name: _exact(each) for name, each in value.items()}
    if isinstance(value, list):
        rounded = any(isinstance(each, int) and abs(each) >= _EXACT for each in value)
        return [str(each) if rounded and isinstance(each, int) else _exact(each) for each in value]
    return str(value) if isinstance(value, int) and abs(value) >= _EXACT else value
