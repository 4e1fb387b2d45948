"""Views encoded Arrow columns as numpy arrays and gathers rows from them into a Batch, without per-row Python.

Shape legend: B rows of a batch, F dense features, K pooled features, T labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.batch import Batch
from ziggurat.core.schema import GROUP_COLUMN, WEIGHT_COLUMN, Schema, count_column, label_column

Rows = npt.NDArray[np.int64]
IdArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Jagged:
    """A list column: row i holds ``values[offsets[i]:offsets[i + 1]]``."""

    offsets: npt.NDArray[np.int64]
    values: IdArray

    def take(self, rows: Rows) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
        """Returns the concatenated values of ``rows``, and the length of each row."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        ends = np.cumsum(lengths)
        total = int(ends[-1]) if len(ends) else 0
        position = np.arange(total) + np.repeat(starts - (ends - lengths), lengths)
        return self.values[position].astype(np.int64), lengths.astype(np.int32)


class _ColumnTable:
    """Columns with one value per row, each contiguous."""

    def __init__(self, columns: Sequence[npt.NDArray[Any]]) -> None:
        self._columns, self.columns = columns, len(columns)

    def gather(self, rows: Rows, out_KB: npt.NDArray[Any]) -> None:
        """Writes the values of ``rows`` into ``out_KB``, a row of it per column."""
        for out_B, column in zip(out_KB, self._columns, strict=True):
            out_B[:] = np.take(column, rows, mode="clip")


class _RowTable:
    """Columns with one value per row, copied so that each row is contiguous.

    Args:
        blocks: block -> its columns.
    """

    _COPIED_ROWS = 4096
    """Rows copied at a time: this many rows of all columns fit into a cache."""

    def __init__(self, blocks: Sequence[Sequence[npt.NDArray[Any]]]) -> None:
        self.columns = len(blocks[0])
        dtype = np.result_type(*(column.dtype for column in blocks[0]))
        self._values_RK = np.empty((sum(len(columns[0]) for columns in blocks), self.columns), dtype)
        start = 0
        for columns in blocks:
            for first in range(0, len(columns[0]), self._COPIED_ROWS):
                for number, column in enumerate(columns):
                    part = column[first : first + self._COPIED_ROWS]
                    self._values_RK[start + first : start + first + len(part), number] = part
            start += len(columns[0])

    def gather(self, rows: Rows, out_KB: npt.NDArray[Any]) -> None:
        """Writes the values of ``rows`` into ``out_KB``, a row of it per column."""
        out_KB.T[:] = np.take(self._values_RK, rows, axis=0, mode="clip")


class Columns:
    """The columns of some blocks, from which batches are gathered.

    A single block remains a view of the memory map; several blocks are concatenated once.

    Args:
        blocks: the encoded blocks.
        schema: the schema of the dataset.
        labelled: whether the blocks have labels, weights and groups.
        shuffled: whether rows will be gathered in random order. Dense features and single ids are then copied into
            tables that store each row contiguously: a row costs one or two cache misses instead of one per feature.
    """

    def __init__(
        self, blocks: Sequence[pa.RecordBatch], schema: Schema, labelled: bool = True, shuffled: bool = False
    ) -> None:
        self._blocks = blocks
        self._schema = schema
        self.rows = sum(block.num_rows for block in blocks)
        self._dense = self._flat_table(schema.dense, shuffled)
        self._ids = self._flat_table(schema.categorical, shuffled)
        self._bags = [self.jagged(name) for name in schema.bags]
        self._sequences = [self.jagged(name) for name in schema.sequences]
        self._labels = [self.flat(label_column(name)) for name in schema.labels] if labelled else []
        self._weights = self.flat(WEIGHT_COLUMN) if schema.has_weight and labelled else None
        counted = schema.counted if labelled else ()
        self._counts = {schema.labels.index(name): self.flat(count_column(name)) for name in counted}
        self._groups = self.flat(GROUP_COLUMN) if schema.has_group and labelled else None

    def flat(self, name: str) -> npt.NDArray[Any]:
        """Returns a column with one value per row."""
        return _concatenate([_numpy(block.column(name)) for block in self._blocks])

    def _flat_table(self, names: Sequence[str], shuffled: bool) -> _ColumnTable | _RowTable:
        if shuffled and len(names) > 1:
            return _RowTable([[_numpy(block.column(name)) for name in names] for block in self._blocks])
        return _ColumnTable([self.flat(name) for name in names])

    def jagged(self, name: str) -> Jagged:
        """Returns a list column."""
        return _jagged([block.column(name) for block in self._blocks])

    def batch(self, rows: Rows) -> Batch:
        """Gathers the given rows, in the given order, into a validated Batch."""
        size = len(rows)
        dense_FB = np.empty((self._dense.columns, size), np.float32)
        self._dense.gather(rows, dense_FB)
        labels_TB = np.empty((len(self._labels), size), np.float32)
        for out, column in zip(labels_TB, self._labels, strict=True):
            np.take(column, rows, out=out, mode="clip")
        return Batch(
            dense_BF=torch.from_numpy(np.ascontiguousarray(dense_FB.T)),
            bags=self._pooled(rows),
            sequences=_keyed(self._schema.sequences, [column.take(rows) for column in self._sequences], size),
            labels_BT=torch.from_numpy(np.ascontiguousarray(labels_TB.T)),
            weights_B=None if self._weights is None else torch.from_numpy(self._weights[rows]),
            groups_B=None if self._groups is None else torch.from_numpy(self._groups[rows]),
            counts_BT=self._counts_of(rows),
        ).validate(self._schema)

    def _counts_of(self, rows: Rows) -> Tensor | None:
        if not self._counts:
            return None
        counts_BT = np.ones((len(rows), len(self._labels)), np.float32)
        for position, column in self._counts.items():
            counts_BT[:, position] = column[rows]
        return torch.from_numpy(counts_BT)

    def _pooled(self, rows: Rows) -> KeyedJaggedTensor | None:
        size, single = len(rows), self._ids.columns
        ids_KB = np.empty((single, size), np.int64)
        self._ids.gather(rows, ids_KB)
        if not self._bags:
            if not single:
                return None
            ones = torch.ones(single * size, dtype=torch.int32)
            return KeyedJaggedTensor(
                keys=list(self._schema.pooled), values=torch.from_numpy(ids_KB.reshape(-1)), lengths=ones, stride=size
            )
        singles = [(ids, np.ones(size, np.int32)) for ids in ids_KB]
        return _keyed(self._schema.pooled, singles + [column.take(rows) for column in self._bags], size)


def concatenate(batches: Sequence[Batch], schema: Schema) -> Batch:
    """Concatenates batches in order."""
    return Batch(
        dense_BF=torch.cat([batch.dense_BF for batch in batches]),
        bags=_join([batch.bags for batch in batches]),
        sequences=_join([batch.sequences for batch in batches]),
        labels_BT=torch.cat([batch.labels_BT for batch in batches]),
        weights_B=_cat([batch.weights_B for batch in batches]),
        groups_B=_cat([batch.groups_B for batch in batches]),
        counts_BT=_cat([batch.counts_BT for batch in batches]),
    ).validate(schema)


def _cat(tensors: Sequence[Tensor | None]) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.cat(present) if present else None


def _join(jagged: Sequence[KeyedJaggedTensor | None]) -> KeyedJaggedTensor | None:
    present = [item for item in jagged if item is not None]
    if not present:
        return None
    keys = present[0].keys()
    bounds = [item.offset_per_key() for item in present]
    values = [
        item.values()[bound[k] : bound[k + 1]]
        for k in range(len(keys))
        for item, bound in zip(present, bounds, strict=True)
    ]
    lengths_KB = torch.cat([item.lengths().view(len(keys), -1) for item in present], dim=1)
    return KeyedJaggedTensor(
        keys=keys, values=torch.cat(values), lengths=lengths_KB.reshape(-1), stride=lengths_KB.shape[1]
    )


def _keyed(
    keys: tuple[str, ...], parts: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]], size: int
) -> KeyedJaggedTensor | None:
    if not keys:
        return None
    return KeyedJaggedTensor(
        keys=list(keys),
        values=torch.from_numpy(np.concatenate([values for values, _ in parts])),
        lengths=torch.from_numpy(np.concatenate([lengths for _, lengths in parts])),
        stride=size,
    )


def _numpy(column: pa.Array) -> npt.NDArray[Any]:
    return column.to_numpy(zero_copy_only=True)


def _concatenate(parts: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _jagged(columns: list[pa.ListArray]) -> Jagged:
    offsets: list[npt.NDArray[np.int64]] = []
    values: list[npt.NDArray[Any]] = []
    end = 0
    for position, column in enumerate(columns):
        raw = _numpy(column.offsets).astype(np.int64)
        values.append(_numpy(column.values)[raw[0] : raw[-1]])
        shifted = raw - raw[0] + end
        end = int(shifted[-1])
        offsets.append(shifted if position == 0 else shifted[1:])
    return Jagged(_concatenate(offsets), _concatenate(values))
