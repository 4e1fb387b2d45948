"""Rows that checkpoints have written, each by itself, and where they differ from what one holds.

Shape legend: R rows of a table, D its columns, U rows that are handed out together.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor

from ziggurat.checkpoint.format.blocks import DAMAGED, TableRows, rows_in, tensors_in
from ziggurat.checkpoint.format.manifest import WEIGHT, Manifest
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.store.store import Store
from ziggurat.checkpoint.verified_files import read_file
from ziggurat.core.errors import RunFolderError

COMPARED_BYTES = 4 * 2**20
"""Of a table that are compared at once."""


def written(store: Store, manifest: Manifest, tables: Collection[str]) -> Iterator[TableRows]:
    """Weights that a checkpoint itself has of these tables, without those of the checkpoints that it needs.

    A file is verified before its first rows are handed out, and files without any are not read.

    Raises:
        RunFolderError: a file is missing, shorter or longer, or changed.
    """
    for file in manifest.files:
        blocks = [block for block in file.blocks if block.table in tables]
        if blocks:
            place = store.where(folder_of(manifest.step), file.name)
            tensors = tensors_in(read_file(store, manifest, file), place)
            for block in blocks:
                yield rows_in(block, tensors, {WEIGHT})


def written_bytes(manifest: Manifest, tables: Collection[str]) -> int:
    """Of the files that :func:`written` reads."""
    return sum(file.bytes for file in manifest.files if any(block.table in tables for block in file.blocks))


def check_complete(store: Store, manifest: Manifest, tables: Collection[str]) -> None:
    """Whether a full checkpoint has as many numbers of each table as there are.

    Raises:
        RunFolderError: names a table of which some are missing, or there more than once.
    """
    for name in tables:
        blocks = [block for file in manifest.files for block in file.blocks if block.table == name]
        there = sum(block.rows * block.columns[1] for block in blocks)
        shape = manifest.tables[name]
        if there != shape.rows * shape.dim:
            raise RunFolderError(
                f"{store.where(folder_of(manifest.step))}: its files have {there:,} numbers of table {name!r}, which "
                f"has {shape.rows * shape.dim:,}",
                DAMAGED,
            )


@torch.no_grad()
def put(rows: TableRows, table_RD: Tensor) -> None:
    """Copy rows into a table on any device and of any type."""
    begin, width = rows.columns
    values_UD = rows.tensors[WEIGHT].to(table_RD.device, table_RD.dtype)
    table_RD[rows.ids_U.to(table_RD.device), begin : begin + width] = values_UD


class ChangedRows:
    """Which rows deltas have written, a byte a row; of each range of columns by itself.

    Args:
        rows: what these deltas have written.
        manifest: of the last of them.
    """

    def __init__(self, rows: Iterable[TableRows] = (), manifest: Manifest | None = None) -> None:
        self._marks: dict[tuple[str, tuple[int, int]], Tensor] = {}
        for each in rows:
            assert manifest is not None
            self.add(each, manifest)

    def add(self, rows: TableRows, manifest: Manifest) -> None:
        """These as well."""
        key = (rows.table, rows.columns)
        if key not in self._marks:
            self._marks[key] = torch.zeros(manifest.tables[rows.table].rows, dtype=torch.bool)
        self._marks[key][rows.ids_U] = True

    def joined(self, other: ChangedRows) -> ChangedRows:
        """What is in either; both stay as they are."""
        made = ChangedRows()
        made._marks = dict(self._marks)
        for key, marks_R in other._marks.items():
            made._marks[key] = marks_R | made._marks[key] if key in made._marks else marks_R
        return made

    def covers(self, other: ChangedRows) -> bool:
        """Whether all of ``other`` is in this."""
        for key, marks_R in other._marks.items():
            missing_R = marks_R & ~self._marks[key] if key in self._marks else marks_R
            if bool(missing_R.any()):
                return False
        return True


def ids_by_table(rows: Iterable[TableRows]) -> dict[str, Tensor]:
    """The distinct ids of each table's rows, ascending."""
    found: dict[str, list[Tensor]] = {}
    for each in rows:
        found.setdefault(each.table, []).append(each.ids_U)
    return {table: torch.cat(ids).unique() for table, ids in found.items()}


def differing(name: str, live_RD: Tensor, rows_RD: Tensor) -> Iterator[TableRows]:
    """Rows of ``rows_RD`` that are not, bit for bit, what ``live_RD`` has; in the live one's type."""
    count, dim = rows_RD.shape
    most = max(1, COMPARED_BYTES // max(1, rows_RD[:1].nbytes))
    for first in range(0, count, most):
        values_UD = rows_RD[first : first + most].to(live_RD.device, live_RD.dtype)
        differs_U = (_bytes_of(values_UD) != _bytes_of(live_RD[first : first + most])).any(1)
        if bool(differs_U.any()):
            ids_U = first + differs_U.nonzero().squeeze(1).cpu()
            yield TableRows(name, ids_U, (0, dim), {WEIGHT: values_UD[differs_U]})


def same_bits(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    """Whether both have the same names, types, shapes and bits."""
    return left.keys() == right.keys() and all(_alike(left[name], right[name]) for name in left)


def _alike(left: Tensor, right: Tensor) -> bool:
    alike = left.shape == right.shape and left.dtype == right.dtype
    return alike and torch.equal(_bytes_of(left.reshape(1, -1)), _bytes_of(right.reshape(1, -1)))


def _bytes_of(rows_UD: Tensor) -> Tensor:
    return rows_UD.detach().contiguous().view(torch.uint8)
