"""Rows that a well-formed file may hold and training must not: bad labels, weights and identity ids.

Refused here, before anything is fitted, so that a refused row leaves no trace in vocabularies or statistics.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from ziggurat.core.hashing import hash_array
from ziggurat.core.schema import GROUP_COLUMN, TIME_COLUMN, WEIGHT_COLUMN, label_column
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.data.readers.rejection_reasons import TEXT_LIMIT, rejection_reason
from ziggurat.features.columns import numbers, plain
from ziggurat.features.config import CategoricalFeature, LabelConfig, Targets
from ziggurat.features.error_hints import with_hints
from ziggurat.features.tables import TableEncoding

pc: Any = pyarrow.compute  # made at import, so unknown to type checkers

NO_GROUP = -(2**63)
"""The ``@group`` of rows whose group cell is empty."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """The rows of a block that may be used.

    Attributes:
        table: their raw columns.
        rows: int64, their positions in the block.
        targets: encoded-dataset columns that need no fitting: labels and weight float32, group int64, time int64 or
            float64 as it was read. Empty when unlabelled.
        bad: the rows refused by the reader and here, by line.
    """

    table: pa.Table
    rows: npt.NDArray[np.int64]
    targets: dict[str, npt.NDArray[Any]]
    bad: list[BadRow]


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Rows that break one rule.

    ``kind``, ``rule`` and ``hint`` are those of :func:`ziggurat.data.readers.rejection_reasons.rejection_reason`.
    """

    column: str
    rows: Mask
    kind: str
    rule: str
    hint: str


def check_rows(block: RawBlock, targets: Targets | None, tables: Mapping[str, TableEncoding]) -> CheckedRows:
    """Take the targets from a block and refuse the rows that cannot be used.

    Args:
        targets: which columns hold labels, weight, group and time; None for unlabelled rows.
    """
    block = with_hints(block, targets)
    refusals: list[_Refusal] = []
    columns: dict[str, npt.NDArray[Any]] = {}
    for label in targets.labels if targets else ():
        columns[label_column(label.name)], broken = _label(block.table.column(label.source_column), label)
        refusals.append(broken)
    if targets and targets.weight is not None:
        weights = numbers(block.table.column(targets.weight))
        fine = (weights >= 0) & (weights <= np.finfo(np.float32).max)
        refusals.append(
            _Refusal(targets.weight, ~fine, "not a weight", "a weight is a finite number, 0 or more", "correct the row")
        )
        with np.errstate(over="ignore"):
            columns[WEIGHT_COLUMN] = weights.astype(np.float32)
    if targets and targets.group is not None:
        columns[GROUP_COLUMN] = keys(block.table.column(targets.group))
    if targets and targets.time is not None:
        columns[TIME_COLUMN], broken = _time(block.table.column(targets.time), targets.time)
        refusals.append(broken)
    refusals.extend(_identity(block.table, tables.values()))
    return _without(block, refusals, columns)


def keys(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """A group or key column as int64: integers as they are, text by its hash, :data:`NO_GROUP` for null."""
    present = _key_values(plain(column).drop_null().combine_chunks())
    if not column.null_count:
        return present
    out = np.full(len(column), NO_GROUP, np.int64)
    out[column.is_valid().to_numpy()] = present
    return out


def _key_values(values: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_integer(values.type):
        return values.to_numpy(zero_copy_only=False).astype(np.int64)
    return hash_array(values).view(np.int64)


def _label(column: pa.ChunkedArray, label: LabelConfig) -> tuple[npt.NDArray[np.float32], _Refusal]:
    place, needed = label.source_column, f"label {label.name!r} needs a value"
    if isinstance(label.equals, str):
        positive = pc.equal(plain(column), label.equals).fill_null(False).to_numpy()
        empty = _Refusal(place, column.is_null().to_numpy(), "label is missing", needed, "correct the row")
        return positive.astype(np.float32), empty
    values = numbers(column)
    if label.at_least is not None or label.equals is not None:
        positive = values >= label.at_least if label.at_least is not None else values == label.equals
        empty = _Refusal(place, np.isnan(values), "label is missing", needed, "correct the row")
        return positive.astype(np.float32), empty
    wrong = (values != 0) & (values != 1)
    rule = f"label {label.name!r} must be 0 or 1"
    hint = "set at_least or equals for the label if its column holds other values"
    return np.where(wrong, 0, values).astype(np.float32), _Refusal(place, wrong, "label is not 0 or 1", rule, hint)


def _time(column: pa.ChunkedArray, name: str) -> tuple[npt.NDArray[Any], _Refusal]:
    values = plain(column).fill_null(0).to_numpy()
    outside = np.abs(values) >= 2.0**63 if values.dtype == np.float64 else np.zeros(len(values), np.bool_)
    rule = "a time is a number between -2^63 and 2^63"
    return values, _Refusal(name, column.is_null().to_numpy() | outside, "not a time", rule, "correct the row")


def _identity(table: pa.Table, tables: Iterable[TableEncoding]) -> Iterator[_Refusal]:
    for encoding in tables:
        valid = encoding.encoder.valid_ids
        if valid is None:
            continue
        for feature in encoding.features:
            column = table.column(feature.source_column)
            if isinstance(feature, CategoricalFeature):
                outside = _outside(column, valid)
            else:
                lists = column.combine_chunks()
                lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
                owners = np.repeat(np.arange(len(lists)), lengths)
                outside = np.zeros(len(lists), np.bool_)
                outside[owners[_outside(lists.flatten(), valid)]] = True
            allowed = f"[{valid.start}, {valid.stop}), the rows of table {encoding.name!r}"
            rule = f"an id of feature {feature.name!r} must lie in {allowed}"
            hint = "raise the encoder's rows, or choose a hash or vocabulary encoder"
            yield _Refusal(feature.source_column, outside, "id outside its table", rule, hint)


def _outside(values: pa.Array | pa.ChunkedArray, valid: range) -> Mask:
    ids = values.cast(pa.int64())
    fine = pc.and_(pc.greater_equal(ids, valid.start), pc.less(ids, valid.stop)).fill_null(False)
    return ~np.asarray(fine)


def _without(block: RawBlock, refusals: list[_Refusal], columns: dict[str, npt.NDArray[Any]]) -> CheckedRows:
    refused = np.zeros(block.table.num_rows, np.bool_)
    for broken in refusals:
        refused |= broken.rows
    if not refused.any():
        return CheckedRows(block.table, np.arange(block.table.num_rows), columns, list(block.bad))
    kept = np.flatnonzero(~refused)
    bad = [*block.bad, *_bad_rows(block, np.flatnonzero(refused), refusals)]
    return CheckedRows(
        block.table.take(pa.array(kept)),
        kept,
        {name: values[kept] for name, values in columns.items()},
        sorted(bad, key=lambda row: row.line),
    )


def _bad_rows(block: RawBlock, rows: npt.NDArray[np.int64], refusals: list[_Refusal]) -> Iterator[BadRow]:
    for row, cells in zip(rows, block.table.take(pa.array(rows)).to_pylist(), strict=True):
        broken = next(item for item in refusals if item.rows[row])
        received = json.dumps(cells[broken.column], ensure_ascii=False)
        yield BadRow(
            file=block.file,
            line=int(block.lines[row]),
            column=broken.column,
            reason=rejection_reason(broken.kind, f"received {received[:200]}; {broken.rule}", broken.hint),
            text=json.dumps(cells, ensure_ascii=False)[:TEXT_LIMIT],
        )
