"""The inputs of a model: ids and numbers of some encoded rows, without PyTorch's jagged tensors.

Shape legend: B rows, L ids, F dense features, S positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.serving.artefact.manifest import Manifest

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Ids:
    """The ids of a feature: row i has ``values[offsets[i]:offsets[i + 1]]``.

    Attributes:
        values: ids (L,).
        offsets: (B + 1,); None if each row has exactly one id.
    """

    values: Ints
    offsets: Ints | None

    def rows(self, start: int, stop: int) -> Ids:
        """Returns those of the rows from ``start`` to before ``stop``."""
        if self.offsets is None:
            return Ids(self.values[start:stop], None)
        offsets = self.offsets[start : stop + 1]
        return Ids(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def repeated(self, count: int) -> Ids:
        """Returns the ids of a single row, ``count`` times."""
        if self.offsets is None:
            return Ids(np.repeat(self.values, count), None)
        return Ids(np.tile(self.values, count), np.arange(count + 1) * len(self.values))

    @property
    def lengths(self) -> Ints:
        """How many ids each row has (B,)."""
        return np.ones(len(self.values), np.int64) if self.offsets is None else np.diff(self.offsets)

    @classmethod
    def joined(cls, parts: Sequence[Ids]) -> Ids:
        """Returns the rows of several, one after another."""
        if len(parts) == 1:
            return parts[0]
        values = np.concatenate([each.values for each in parts])
        if all(each.offsets is None for each in parts):
            return cls(values, None)
        lengths = np.concatenate([each.lengths for each in parts])
        return cls(values, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))

    def last(self, count: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Returns the last ids of each row (B, S), the most recent first, 0 where there is none; and where they are."""
        if self.offsets is None:
            values, exists = np.zeros((len(self.values), count), np.int64), np.zeros((len(self.values), count), bool)
            values[:, 0], exists[:, 0] = self.values, True
            return values, exists
        back = np.arange(count)
        exists = back < np.diff(self.offsets)[:, None]
        places = self.offsets[1:, None] - 1 - back
        values = np.zeros(exists.shape, np.int64)
        values[exists] = self.values[places[exists]]
        return values, exists


@dataclass(frozen=True, slots=True)
class Inputs:
    """Some encoded rows.

    Attributes:
        size: B.
        dense: (B, F), in the order in which the dense part takes them.
        ids: feature -> its ids.
    """

    size: int
    dense: Floats
    ids: dict[str, Ids]

    @classmethod
    def of(cls, manifest: Manifest, batch: pa.RecordBatch) -> Inputs:
        """Returns the inputs that a transform has encoded."""
        dense = np.empty((batch.num_rows, len(manifest.dense)), np.float32)
        for number, name in enumerate(manifest.dense):
            dense[:, number] = batch.column(name).to_numpy(zero_copy_only=False)
        return cls(batch.num_rows, dense, {name: ids_of(batch.column(name)) for name in manifest.features})

    def rows(self, start: int, stop: int) -> Inputs:
        """Returns the rows from ``start`` to before ``stop``."""
        stop = min(stop, self.size)
        ids = {name: each.rows(start, stop) for name, each in self.ids.items()}
        return Inputs(stop - start, self.dense[start:stop], ids)


def ids_of(column: pa.Array) -> Ids:
    """Returns the ids of an encoded column."""
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        offsets = column.offsets.to_numpy().astype(np.int64)
        values = column.values.to_numpy()[offsets[0] : offsets[-1]]
        return Ids(values.astype(np.int64), offsets - offsets[0])
    return Ids(column.to_numpy().astype(np.int64), None)
