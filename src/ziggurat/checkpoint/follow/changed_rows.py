"""Reads the rows that single checkpoints contain, and compares them with tables in memory.

Shape legend: R rows of a table, D its columns, U rows that are returned together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from ziggurat.checkpoint.format.blocks import TableRows, rows_in, tensors_in
from ziggurat.checkpoint.format.manifest import WEIGHT, Manifest
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.store.store import Store
from ziggurat.checkpoint.verified_files import read_file

COMPARED_BYTES = 4 * 2**20
"""Size of a table's rows that are compared at once."""


def read_rows(store: Store, manifest: Manifest, tables: Collection[str]) -> Iterator[TableRows]:
    """Yields the weights that a checkpoint itself has of these tables, without those of the checkpoints that it needs.

    A file is verified before its first rows are yielded. Files without rows of these tables are not read.

    Raises:
        RunFolderError: a file is missing, changed, or of another size.
    """
    for file in manifest.files:
        blocks = [block for block in file.blocks if block.table in tables]
        if blocks:
            place = store.where(folder_of(manifest.step), file.name)
            tensors = tensors_in(read_file(store, manifest, file), place)
            for block in blocks:
                yield rows_in(block, manifest.tables[block.table], tensors, {WEIGHT}, place)


def bytes_to_read(manifest: Manifest, tables: Collection[str]) -> int:
    """Returns the size of the files that :func:`read_rows` reads."""
    return sum(file.bytes for file in manifest.files if any(block.table in tables for block in file.blocks))


@torch.no_grad()
def put(rows: TableRows, table_RD: Tensor) -> None:
    """Copies rows into a table on any device and of any floating dtype."""
    begin, width = rows.columns
    values_UD = rows.tensors[WEIGHT].to(table_RD.device, table_RD.dtype)
    table_RD[rows.ids_U.to(table_RD.device), begin : begin + width] = values_UD


class ChangedRows:
    """The set of rows that deltas have written, one byte per row, separately for each range of columns.

    Args:
        rows: the rows that the deltas have written.
        manifest: manifest of the last delta, for the size of the tables.
    """

    def __init__(self, rows: Iterable[TableRows] = (), manifest: Manifest | None = None) -> None:
        self._changed: dict[tuple[str, tuple[int, int]], Tensor] = {}
        for each in rows:
            assert manifest is not None
            self.add(each, manifest)

    def add(self, rows: TableRows, manifest: Manifest) -> None:
        """Adds rows to the set."""
        key = (rows.table, rows.columns)
        if key not in self._changed:
            self._changed[key] = torch.zeros(manifest.tables[rows.table].rows, dtype=torch.bool)
        self._changed[key][rows.ids_U] = True

    def union(self, other: ChangedRows) -> ChangedRows:
        """Returns the union of both sets, which stay unchanged."""
        result = ChangedRows()
        result._changed = dict(self._changed)
        for key, changed_R in other._changed.items():
            result._changed[key] = changed_R | result._changed[key] if key in result._changed else changed_R
        return result

    def covers(self, other: ChangedRows) -> bool:
        """Returns whether this set contains all of ``other``."""
        for key, changed_R in other._changed.items():
            missing_R = changed_R & ~self._changed[key] if key in self._changed else changed_R
            if bool(missing_R.any()):
                return False
        return True


def ids_by_table(rows: Iterable[TableRows]) -> dict[str, Tensor]:
    """Returns table name -> distinct ids of its rows, ascending."""
    found: dict[str, list[Tensor]] = {}
    for each in rows:
        found.setdefault(each.table, []).append(each.ids_U)
    return {table: torch.cat(ids).unique() for table, ids in found.items()}


def differing(name: str, live_RD: Tensor, rows_RD: Tensor) -> Iterator[TableRows]:
    """Yields the rows of ``rows_RD`` that differ from ``live_RD`` in any bit, converted to the dtype of ``live_RD``.

    Args:
        name: name of the table.
        live_RD: the table in memory.
        rows_RD: all rows of the table, as read from a checkpoint.
    """
    count, dim = rows_RD.shape
    chunk = max(1, COMPARED_BYTES // max(1, rows_RD[:1].nbytes))
    for first in range(0, count, chunk):
        values_UD = rows_RD[first : first + chunk].to(live_RD.device, live_RD.dtype)
        differs_U = (_bytes_of(values_UD) != _bytes_of(live_RD[first : first + chunk])).any(1)
        if bool(differs_U.any()):
            ids_U = first + differs_U.nonzero().squeeze(1).cpu()
            yield TableRows(name, ids_U, (0, dim), {WEIGHT: values_UD[differs_U]})


def same_bits(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Returns whether both have the same names, dtypes, shapes and bits."""
    return left.keys() == right.keys() and all(_same_bits(left[name], right[name]) for name in left)


def _same_bits(left: Tensor, right: Tensor) -> bool:
    comparable = left.shape == right.shape and left.dtype == right.dtype
    return comparable and torch.equal(_bytes_of(left.reshape(1, -1)), _bytes_of(right.reshape(1, -1)))


def _bytes_of(rows_UD: Tensor) -> Tensor:
    return rows_UD.detach().contiguous().view(torch.uint8)
