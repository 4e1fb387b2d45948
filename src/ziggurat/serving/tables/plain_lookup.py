"""Look-ups without compiled kernels, for machines without a C compiler.

The rows of a bag are added in the order of its ids, in float32, and a mean is that sum times one over their number, or
divided by it, as the training's kernels do; a single row is taken as it is. Shape legend: B rows, L ids, U distinct
ids, W numbers of a table's row, S positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ziggurat.serving.artefact.manifest import Manifest, TableEntry
from ziggurat.serving.tables.inputs import Ids, Inputs
from ziggurat.serving.tables.lookup import Reading

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]


class TableRows(Protocol):
    """The rows of a table, wherever they are."""

    def read(self, ids_L: Ints) -> Floats:
        """Returns rows (L, W) for ids in any order, each in the range of the table."""
        ...


class PlainLookup:
    """Looks up the rows of some inputs.

    Args:
        manifest: the export.
        tables: name of a table -> its rows.

    Attributes:
        reads_disk: whether it says when it waits for a disk.
    """

    reads_disk = False

    def __init__(self, manifest: Manifest, tables: Mapping[str, TableRows]) -> None:
        self._manifest, self.tables = manifest, dict(tables)

    def over(self, tables: Mapping[str, TableRows]) -> PlainLookup:
        """Returns the look-ups in other versions of the same tables."""
        return PlainLookup(self._manifest, tables)

    def __call__(self, inputs: Inputs, reading: Reading = nullcontext) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns input -> rows (B, W), or (B, S, W) for a sequence with positions; and the masks of these.

        Args:
            inputs: the ids.
            reading: is not entered, as the kernel reads rows of mapped files when they are touched.
        """
        rows: dict[str, Tensor] = {}
        masks: dict[str, Tensor] = {}
        for name in self._manifest.inputs:
            entry = self._manifest.table_of[name]
            table, ids = self.tables[entry.name], inputs.ids[self._manifest.feature_of[name]]
            if name in entry.positions:
                rows[name], masks[name] = _positions(table, entry, ids, entry.positions[name])
            else:
                rows[name] = _pooled(table, entry, ids)
        return rows, masks


def _pooled(table: TableRows, entry: TableEntry, ids: Ids) -> Tensor:
    found_LW = torch.from_numpy(table.read(ids.values))
    if ids.offsets is None:
        return found_LW
    if not len(found_LW):
        return torch.zeros(len(ids.offsets) - 1, entry.dim)
    places_L, offsets = torch.arange(len(found_LW)), torch.from_numpy(ids.offsets[:-1])
    sums_BW = F.embedding_bag(places_L, found_LW, offsets, mode="sum")
    if entry.pooling == "mean":
        counts_B = np.maximum(1, np.diff(ids.offsets)).astype(np.float32)
        if entry.divides:
            sums_BW /= torch.from_numpy(counts_B).unsqueeze(1)
        else:
            sums_BW *= torch.from_numpy(np.float32(1) / counts_B).unsqueeze(1)
    return sums_BW


def _positions(table: TableRows, entry: TableEntry, ids: Ids, count: int) -> tuple[Tensor, Tensor]:
    ids_BS, exists_BS = ids.last(count)
    rows_BSW = np.zeros((*ids_BS.shape, entry.dim), np.float32)
    rows_BSW[exists_BS] = table.read(ids_BS[exists_BS])
    return torch.from_numpy(rows_BSW), torch.from_numpy(exists_BS)
