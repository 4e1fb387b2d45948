"""Rejects rows that are well-formed but unusable: with bad labels, weights, times or identity ids.

They are rejected before anything is fitted, so that they do not affect vocabularies or statistics.
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
from ziggurat.core.schema import GROUP_COLUMN, TIME_COLUMN, WEIGHT_COLUMN
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.data.readers.rejection_reasons import TEXT_LIMIT, rejection_reason
from ziggurat.features.columns import numbers, plain
from ziggurat.features.config import CategoricalFeature, Targets
from ziggurat.features.error_hints import with_hints
from ziggurat.features.label_values import Mask, Rejection, label_columns
from ziggurat.features.tables import TableEncoding
from ziggurat.features.time_inputs import TimeId

pc: Any = pyarrow.compute  # its functions are generated at import, so type checkers do not know them

NO_GROUP = -(2**63)
"""Value of ``@group`` for rows whose group cell is empty."""


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """The usable rows of a block.

    Attributes:
        table: their raw columns.
        rows: int64, their positions in the block.
        targets: columns of the encoded dataset that need no fitting: labels and weight float32, group int64, time int64
            or float64 as it was read. Empty if unlabelled.
        bad: rows that the reader or these checks rejected, ordered by line.
    """

    table: pa.Table
    rows: npt.NDArray[np.int64]
    targets: dict[str, npt.NDArray[Any]]
    bad: list[BadRow]


def check_rows(block: RawBlock, targets: Targets | None, tables: Mapping[str, TableEncoding]) -> CheckedRows:
    """Reads the targets of a block and rejects unusable rows.

    Args:
        block: the raw block.
        targets: the columns of labels, weight, group and time; None for unlabelled rows.
        tables: the encodings of the tables, whose valid ids are checked.
    """
    block = with_hints(block, targets)
    rejections: list[Rejection] = []
    columns: dict[str, npt.NDArray[Any]] = {}
    for label in targets.labels if targets else ():
        found = label_columns(block.table, label)
        columns |= found.columns
        rejections += found.rejections
    if targets and targets.weight is not None:
        weights = numbers(block.table.column(targets.weight))
        fine = (weights >= 0) & (weights <= np.finfo(np.float32).max)
        rejections.append(
            Rejection(
                targets.weight, ~fine, "not a weight", "a weight is a finite number, 0 or more", "correct the row"
            )
        )
        with np.errstate(over="ignore"):
            columns[WEIGHT_COLUMN] = weights.astype(np.float32)
    if targets and targets.group is not None:
        columns[GROUP_COLUMN] = keys(block.table.column(targets.group))
    if targets and targets.time is not None:
        columns[TIME_COLUMN], rejection = _time(block.table.column(targets.time), targets.time)
        rejections.append(rejection)
    rejections.extend(_invalid_ids(block.table, tables.values()))
    return _drop_rejected(block, rejections, columns)


def keys(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Returns a group or key column as int64: integers unchanged, text hashed, :data:`NO_GROUP` for null."""
    present = _key_values(plain(column).drop_null().combine_chunks())
    if not column.null_count:
        return present
    all_keys = np.full(len(column), NO_GROUP, np.int64)
    all_keys[column.is_valid().to_numpy()] = present
    return all_keys


def _key_values(values: pa.Array) -> npt.NDArray[np.int64]:
    if pa.types.is_integer(values.type):
        return values.to_numpy(zero_copy_only=False).astype(np.int64)
    return hash_array(values).view(np.int64)


def _time(column: pa.ChunkedArray, name: str) -> tuple[npt.NDArray[Any], Rejection]:
    values = plain(column).fill_null(0).to_numpy()
    outside = np.abs(values) >= 2.0**63 if values.dtype == np.float64 else np.zeros(len(values), np.bool_)
    rule = "a time is a number between -2^63 and 2^63"
    return values, Rejection(name, column.is_null().to_numpy() | outside, "not a time", rule, "correct the row")


def _invalid_ids(table: pa.Table, tables: Iterable[TableEncoding]) -> Iterator[Rejection]:
    for encoding in tables:
        valid = encoding.encoder.valid_ids
        if valid is None:
            continue
        for feature in encoding.features:
            if isinstance(feature, TimeId):
                continue  # its ids are made here, and always valid
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
            rule = f"an id of feature {feature.name!r} must be in {allowed}"
            hint = "raise the encoder's rows, or choose a hash or vocabulary encoder"
            yield Rejection(feature.source_column, outside, "id outside its table", rule, hint)


def _outside(values: pa.Array | pa.ChunkedArray, valid: range) -> Mask:
    ids = values.cast(pa.int64())
    inside = pc.and_(pc.greater_equal(ids, valid.start), pc.less(ids, valid.stop)).fill_null(False)
    return ~np.asarray(inside)


def _drop_rejected(block: RawBlock, rejections: list[Rejection], columns: dict[str, npt.NDArray[Any]]) -> CheckedRows:
    rejected = np.zeros(block.table.num_rows, np.bool_)
    for rejection in rejections:
        rejected |= rejection.rows
    if not rejected.any():
        return CheckedRows(block.table, np.arange(block.table.num_rows), columns, list(block.bad))
    kept = np.flatnonzero(~rejected)
    bad = [*block.bad, *_bad_rows(block, np.flatnonzero(rejected), rejections)]
    return CheckedRows(
        block.table.take(pa.array(kept)),
        kept,
        {name: values[kept] for name, values in columns.items()},
        sorted(bad, key=lambda row: row.line),
    )


def _bad_rows(block: RawBlock, rows: npt.NDArray[np.int64], rejections: list[Rejection]) -> Iterator[BadRow]:
    for row, cells in zip(rows, block.table.take(pa.array(rows)).to_pylist(), strict=True):
        rejection = next(item for item in rejections if item.rows[row])
        received = json.dumps(cells[rejection.column], ensure_ascii=False)
        yield BadRow(
            file=block.file,
            line=int(block.lines[row]),
            column=rejection.column,
            reason=rejection_reason(rejection.kind, f"received {received[:200]}; {rejection.rule}", rejection.hint),
            text=json.dumps(cells, ensure_ascii=False)[:TEXT_LIMIT],
        )
