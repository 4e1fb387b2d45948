"""Makes labels of raw cells, and says which rows have none that can be used."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from ziggurat.core.schema import count_column, label_column
from ziggurat.features.columns import numbers, plain
from ziggurat.features.labels import LabelConfig

pc: Any = pyarrow.compute  # its functions are generated at import, so type checkers do not know them

Mask = npt.NDArray[np.bool_]

LARGEST = float(np.finfo(np.float32).max)
"""Labels are stored as float32."""


@dataclass(frozen=True, slots=True)
class Rejection:
    """The rows of a block that break one rule.

    Attributes:
        column: the raw column that the rule is about.
        rows: mask of the rejected rows.
        kind, rule, hint: see :func:`ziggurat.data.readers.rejection_reasons.rejection_reason`.
    """

    column: str
    rows: Mask
    kind: str
    rule: str
    hint: str


@dataclass(frozen=True, slots=True)
class LabelColumns:
    """The encoded columns of a label, float32 by name, and the rows that it rejects."""

    columns: dict[str, npt.NDArray[np.float32]]
    rejections: list[Rejection]


def label_columns(table: pa.Table, label: LabelConfig) -> LabelColumns:
    """Returns a label's columns; rejected rows hold any number."""
    name = label_column(label.name)
    if label.observed:
        return LabelColumns({name: np.ones(table.num_rows, np.float32)}, [])
    if label.kind == "binary":
        values, rejection = _binary(table.column(label.source_column), label)
        return LabelColumns({name: values}, [rejection])
    if label.trials is not None:
        return _shares(table, label, label.trials)
    values_B = numbers(table.column(label.source_column))
    rejections = list(_broken_rules(values_B, label))
    with np.errstate(over="ignore", invalid="ignore"):
        return LabelColumns({name: values_B.astype(np.float32)}, rejections)


def _binary(column: pa.ChunkedArray, label: LabelConfig) -> tuple[npt.NDArray[np.float32], Rejection]:
    name, needed = label.source_column, f"label {label.name!r} needs a value"
    if isinstance(label.equals, str):
        positive = pc.equal(plain(column), label.equals).fill_null(False).to_numpy()
        empty = Rejection(name, column.is_null().to_numpy(), "label is missing", needed, "correct the row")
        return positive.astype(np.float32), empty
    values = numbers(column)
    if label.at_least is not None or label.equals is not None:
        positive = values >= label.at_least if label.at_least is not None else values == label.equals
        empty = Rejection(name, np.isnan(values), "label is missing", needed, "correct the row")
        return positive.astype(np.float32), empty
    wrong = (values != 0) & (values != 1)
    rule = f"label {label.name!r} must be 0 or 1"
    hint = "set at_least or equals for the label if its column holds other values, or its kind if it is a number"
    return np.where(wrong, 0, values).astype(np.float32), Rejection(name, wrong, "label is not 0 or 1", rule, hint)


def _broken_rules(values_B: npt.NDArray[np.float64], label: LabelConfig) -> Iterator[Rejection]:
    """Yields what rows of a number may break: missing, outside its range, of no level."""
    name = label.source_column
    needed = f"label {label.name!r} needs a value"
    yield Rejection(name, np.isnan(values_B), "label is missing", needed, "correct the row")
    if label.kind == "soft":
        outside_B = (values_B < 0) | (values_B > 1)
        rule = f"label {label.name!r} of kind soft must be between 0 and 1"
        hint = "correct the row; or set its kind to regression if it is a quantity"
        yield Rejection(name, outside_B, "label is not between 0 and 1", rule, hint)
        return
    rule = f"label {label.name!r} must be a finite number within ±{LARGEST:.3g}"
    yield Rejection(name, np.abs(values_B) > LARGEST, "label is not a finite number", rule, "correct the row")
    if label.not_negative:
        assert label.loss is not None
        rule = f"label {label.name!r} must be 0 or more for the loss {label.loss.name}"
        hint = "correct the row, or choose the loss squared or huber"
        yield Rejection(name, values_B < 0, "label is negative", rule, hint)
    if label.kind == "ordinal" and label.levels is not None:
        other_B = ~np.isin(values_B, label.levels)
        rule = f"label {label.name!r} must be one of its levels, {', '.join(map(str, label.levels))}"
        yield Rejection(name, other_B, "label is no level", rule, "correct the row, or add the level to `levels`")
    elif label.kind == "ordinal":
        with np.errstate(invalid="ignore"):
            other_B = (values_B != np.rint(values_B)) | (np.abs(values_B) >= 2.0**24)
        rule = f"label {label.name!r} of kind ordinal must be a whole number"
        hint = "correct the row; or set its kind to regression"
        yield Rejection(name, other_B, "label is not a whole number", rule, hint)


def _shares(table: pa.Table, label: LabelConfig, trials: str) -> LabelColumns:
    """Returns the share of events among trials, 0 without trials, and the number of trials."""
    events_B, trials_B = numbers(table.column(label.source_column)), numbers(table.column(trials))
    rejections: list[Rejection] = []
    for column, counts_B in ((label.source_column, events_B), (trials, trials_B)):
        wrong_B = ~((counts_B >= 0) & (counts_B <= LARGEST))
        rule = f"{column!r} of label {label.name!r} must be a finite number, 0 or more"
        rejections.append(Rejection(column, wrong_B, "count is not 0 or more", rule, "correct the row"))
    rule = f"label {label.name!r} has more {label.source_column!r} than {trials!r}"
    hint = "correct the row; or exchange positives and trials"
    rejections.append(Rejection(label.source_column, events_B > trials_B, "more positives than trials", rule, hint))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        shares_B = np.where(trials_B > 0, events_B / trials_B, 0.0).astype(np.float32)
        counts_B = trials_B.astype(np.float32)
    return LabelColumns({label_column(label.name): shares_B, count_column(label.name): counts_B}, rejections)
