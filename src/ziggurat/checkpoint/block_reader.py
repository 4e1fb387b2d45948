"""Reads checkpoints of format 2: blocks of rows, of a full checkpoint and of the deltas that build on it.

Shape legend: U rows of a block, L those of them that a slice holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from ziggurat.checkpoint.format.blocks import DAMAGED, TableRows, rows_in, tensors_in, with_prefix
from ziggurat.checkpoint.format.manifest import WEIGHT, ManifestFile, RowBlock
from ziggurat.checkpoint.reader import TABLE_STATES, TABLES, CheckpointReader, OnProgress, folder_of
from ziggurat.checkpoint.store.store import Store
from ziggurat.checkpoint.verified_files import read_file, read_manifest, read_needed, read_non_table_tensors
from ziggurat.core.errors import RunFolderError
from ziggurat.parallel.tensor_slices import TensorSlice, fill

KEPT_BYTES = 256 * 2**20
"""Capacity for files that were verified and stay in memory until their rows are copied; the others are read twice."""


class BlockCheckpointReader(CheckpointReader):
    """Reads a checkpoint of format 2; if it is a delta, also the checkpoints that it needs.

    Args:
        store: the run's checkpoints.
        step: of the checkpoint.

    Attributes:
        manifest: of this checkpoint.
        chain: the manifests that a restore reads: the full checkpoint first, this one last.
    """

    def __init__(self, store: Store, step: int) -> None:
        self._store = store
        self.manifest = read_manifest(store, step)
        self.state = self.manifest.state
        self.chain = (*read_needed(store, self.manifest, self.manifest.needs), self.manifest)

    @property
    def bits(self) -> int:
        return min(manifest.bits for manifest in self.chain)

    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((TABLES, TABLE_STATES, *(name.partition("/")[0] for name in self._others))))

    def shapes(self, group: str) -> Mapping[str, tuple[int, ...]] | None:
        others = with_prefix(self._others, f"{group}/")
        found = {name: tuple(tensor.shape) for name, tensor in others.items()}
        if group == TABLES:
            found |= {name: table.shape(WEIGHT) for name, table in self.manifest.tables.items()}
        elif group == TABLE_STATES:
            for name, table in self.manifest.tables.items():
                found |= {f"{name}/{state}": table.shape(state) for state in table.states}
        return found if found or group in self.names() else None

    def dtype(self, group: str, name: str) -> torch.dtype:
        tensor = self._others.get(f"{group}/{name}")
        return torch.float32 if tensor is None else tensor.dtype

    def verify(self, on_progress: OnProgress = lambda _: None) -> None:
        for manifest in self.chain:
            for file in manifest.files:
                read_file(self._store, manifest, file)
                on_progress(file.bytes)

    def fill(self, groups: Mapping[str, Sequence[TensorSlice]], on_progress: OnProgress = lambda _: None) -> None:
        targets: dict[str, list[_Target]] = defaultdict(list)
        for group, tensor_slices in groups.items():
            others = with_prefix(self._others, f"{group}/")
            for tensor_slice in tensor_slices:
                if tensor_slice.name not in others and tensor_slice.tensor.numel():
                    table, tensor = _table_and_tensor(group, tensor_slice.name)
                    targets[table].append(_Target(tensor_slice, tensor))
        for from_full, rows in self._rows(targets):
            for target in targets[rows.table]:
                on_progress(target.copy_from(rows, from_full))
        for target in chain.from_iterable(targets.values()):
            if target.tensor_slice.sink is not None:
                target.tensor_slice.sink.flush()
        for group, tensor_slices in groups.items():  # after the rows: by now all of their files have been verified
            others = with_prefix(self._others, f"{group}/")
            fill([tensor_slice for tensor_slice in tensor_slices if tensor_slice.name in others], others)
        for table, each in targets.items():
            for target in each:
                if target.missing:
                    raise RunFolderError(
                        f"{self._store.where(folder_of(self.manifest.step))}: {target.missing:,} numbers of table "
                        f"{table!r} are in none of its files",
                        DAMAGED,
                    )

    @cached_property
    def _others(self) -> dict[str, Tensor]:
        return read_non_table_tensors(self._store, self.manifest)

    def _rows(self, targets: Mapping[str, Sequence[_Target]]) -> Iterator[tuple[bool, TableRows]]:
        """Yields the blocks of rows that any target needs, oldest checkpoint first.

        Every file is verified before the first block is yielded. Files stay in memory for that long while they fit
        into ``KEPT_BYTES``.

        Args:
            targets: table name -> the slices to fill.

        Yields:
            Whether the block is from the full checkpoint, and its rows.
        """
        needed = [
            (manifest, file) for manifest in self.chain for file in manifest.files if _blocks_needed(file, targets)
        ]
        kept: dict[tuple[int, str], bytes] = {}
        free_bytes = KEPT_BYTES
        for manifest, file in needed:
            data = read_file(self._store, manifest, file)
            if file.bytes <= free_bytes:
                kept[manifest.step, file.name] = data
                free_bytes -= file.bytes
        for manifest, file in needed:
            data = kept.pop((manifest.step, file.name), None) or read_file(self._store, manifest, file)
            place = self._store.where(folder_of(manifest.step), file.name)
            tensors = tensors_in(data, place)
            for block in _blocks_needed(file, targets):
                wanted = {target.tensor for target in targets[block.table]}
                yield manifest is self.chain[0], rows_in(block, manifest.tables[block.table], tensors, wanted, place)


def _blocks_needed(file: ManifestFile, targets: Mapping[str, Sequence[_Target]]) -> list[RowBlock]:
    """Returns the file's blocks that may contain rows of any target."""
    return [block for block in file.blocks if any(target.may_need(block) for target in targets.get(block.table, ()))]


class _Target:
    """A slice of a table's weights or of one of its optimizer states, into which rows are copied.

    Args:
        tensor_slice: the slice to fill.
        tensor: name of the tensor in a block: ``weight``, or an optimizer state.

    Attributes:
        missing: how many of the slice's numbers the full checkpoint has not provided yet.
    """

    def __init__(self, tensor_slice: TensorSlice, tensor: str) -> None:
        self.tensor_slice, self.tensor = tensor_slice, tensor
        self.missing = tensor_slice.tensor.numel()
        size = tensor_slice.tensor.shape
        self._first, self._end = tensor_slice.first[0], tensor_slice.first[0] + size[0]
        self._columns = (tensor_slice.first[1], tensor_slice.first[1] + size[1]) if len(size) > 1 else None
        self._positions: Tensor | None = None
        self._seen = torch.zeros(0, dtype=torch.bool)
        if tensor_slice.rows is not None:
            kind = torch.int32 if size[0] < 2**31 else torch.int64
            self._positions = torch.full((tensor_slice.shape[0],), -1, dtype=kind)
            self._positions[tensor_slice.rows.long()] = torch.arange(size[0], dtype=kind)

    def may_need(self, block: RowBlock) -> bool:
        """Returns whether the block may contain rows of this slice."""
        if self.tensor not in block.bits or not self._overlap(block.columns):
            return False
        return self._positions is not None or (block.low < self._end and block.high >= self._first)

    def copy_from(self, rows: TableRows, from_full: bool) -> int:
        """Copies those of the rows and columns that this slice holds.

        Args:
            rows: the rows of a block.
            from_full: whether they are from the full checkpoint, which has every row; they then reduce ``missing``.

        Returns:
            The number of bytes copied.
        """
        if self.tensor not in rows.tensors:
            return 0
        overlap = self._overlap(rows.columns)
        if overlap is None:
            return 0
        if self._positions is None:
            held_U = (rows.ids_U >= self._first) & (rows.ids_U < self._end)
            positions_L = rows.ids_U[held_U] - self._first
        else:
            positions_U = self._positions[rows.ids_U]
            held_U = positions_U >= 0
            positions_L = positions_U[held_U].long()
        values = rows.tensors[self.tensor][held_U]
        begin, end = overlap
        first = 0
        if self._columns is not None:
            first = begin - self._columns[0]
            values = values[:, begin - rows.columns[0] : end - rows.columns[0]]
        if from_full:
            self._count(positions_L, 1 if self._columns is None else end - begin)
        sink, tensor = self.tensor_slice.sink, self.tensor_slice.tensor
        if sink is not None:
            sink.put(positions_L, first, values)
        elif self._columns is None:
            tensor[positions_L.to(tensor.device)] = values.to(tensor.device)
        else:
            tensor[positions_L.to(tensor.device), first : first + end - begin] = values.to(tensor.device)
        return values.numel() * values.element_size()

    def _overlap(self, columns: tuple[int, int]) -> tuple[int, int] | None:
        """Returns (begin, end) of the columns that the block and this slice share; None if they share none.

        A state with one number per row belongs to all columns: then ``columns`` is returned unchanged.
        """
        if self._columns is None:
            return columns
        begin, end = max(self._columns[0], columns[0]), min(self._columns[1], columns[0] + columns[1])
        return (begin, end) if begin < end else None

    def _count(self, positions_L: Tensor, width: int) -> None:
        """Updates ``missing``.

        A state with one number per row may be stored with each of several column ranges, so its rows are counted once.
        """
        if self._columns is not None:
            self.missing -= len(positions_L) * width
            return
        if not len(self._seen):
            self._seen = torch.zeros(self.tensor_slice.tensor.shape[0], dtype=torch.bool)
        self._seen[positions_L] = True
        self.missing = int(self._seen.numel() - self._seen.sum())


def _table_and_tensor(group: str, name: str) -> tuple[str, str]:
    """Returns the table, and the name of the tensor in its blocks, for a tensor of a group."""
    if group == TABLES:
        return name, WEIGHT
    assert group == TABLE_STATES, (group, name)
    table, _, state = name.rpartition("/")
    return table, state
