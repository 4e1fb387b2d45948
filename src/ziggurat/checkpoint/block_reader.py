"""Reads a checkpoint of format 2: blocks of rows, and behind a delta those of the checkpoints that it needs.

Shape legend: U rows of a block, L rows of a piece.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from ziggurat.checkpoint.format.blocks import DAMAGED, TableRows, below, rows_in, tensors_in
from ziggurat.checkpoint.format.manifest import WEIGHT, ManifestFile, RowBlock
from ziggurat.checkpoint.reader import TABLE_STATES, TABLES, CheckpointReader, Heard, folder_of
from ziggurat.checkpoint.store.store import Store
from ziggurat.checkpoint.verified_files import read_file, read_manifest, read_needed, read_others
from ziggurat.core.errors import RunFolderError
from ziggurat.parallel.tensor_slices import TensorSlice, fill

KEPT_BYTES = 256 * 2**20
"""Of files that were verified, kept in memory until their rows are read."""


class BlockCheckpointReader(CheckpointReader):
    """A checkpoint of format 2: itself, and behind a delta those that it needs."""

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
        others = below(self._others, f"{group}/")
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

    def verify(self, heard: Heard = lambda _: None) -> None:
        for manifest in self.chain:
            for file in manifest.files:
                read_file(self._store, manifest, file)
                heard(file.bytes)

    def fill(self, groups: Mapping[str, Sequence[TensorSlice]], heard: Heard = lambda _: None) -> None:
        targets: dict[str, list[_Target]] = defaultdict(list)
        for group, tensor_slices in groups.items():
            others = below(self._others, f"{group}/")
            for tensor_slice in tensor_slices:
                if tensor_slice.name not in others and tensor_slice.tensor.numel():
                    table, tensor = _named(group, tensor_slice.name)
                    targets[table].append(_Target(tensor_slice, tensor))
        for base, rows in self._rows(targets):
            for target in targets[rows.table]:
                heard(target.take(rows, base))
        for target in chain.from_iterable(targets.values()):
            if target.tensor_slice.sink is not None:
                target.tensor_slice.sink.settle()
        for group, tensor_slices in groups.items():  # behind the rows, whose files have all been verified by now
            others = below(self._others, f"{group}/")
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
        return read_others(self._store, self.manifest)

    def _rows(self, targets: Mapping[str, Sequence[_Target]]) -> Iterator[tuple[bool, TableRows]]:
        """What of the chain's rows any target needs, oldest first, and whether the full checkpoint has them.

        All files are verified before the first row is handed out; as many as are small are kept for that long.
        """
        needed = [(manifest, file) for manifest in self.chain for file in manifest.files if _met(file, targets)]
        kept: dict[tuple[int, str], bytes] = {}
        room = KEPT_BYTES
        for manifest, file in needed:
            data = read_file(self._store, manifest, file)
            if file.bytes <= room:
                kept[manifest.step, file.name] = data
                room -= file.bytes
        for manifest, file in needed:
            data = kept.pop((manifest.step, file.name), None) or read_file(self._store, manifest, file)
            tensors = tensors_in(data, self._store.where(folder_of(manifest.step), file.name))
            for block in _met(file, targets):
                wanted = {target.tensor for target in targets[block.table]}
                yield manifest is self.chain[0], rows_in(block, tensors, wanted)


def _met(file: ManifestFile, targets: Mapping[str, Sequence[_Target]]) -> list[RowBlock]:
    """The file's blocks that any target may have rows of."""
    return [block for block in file.blocks if any(target.meets(block) for target in targets.get(block.table, ()))]


class _Target:
    """A piece that rows go into."""

    def __init__(self, tensor_slice: TensorSlice, tensor: str) -> None:
        self.tensor_slice, self.tensor = tensor_slice, tensor
        self.missing = tensor_slice.tensor.numel()
        size = tensor_slice.tensor.shape
        self._first, self._end = tensor_slice.first[0], tensor_slice.first[0] + size[0]
        self._columns = (tensor_slice.first[1], tensor_slice.first[1] + size[1]) if len(size) > 1 else None
        self._places: Tensor | None = None
        self._seen = torch.zeros(0, dtype=torch.bool)
        if tensor_slice.rows is not None:
            kind = torch.int32 if size[0] < 2**31 else torch.int64
            self._places = torch.full((tensor_slice.shape[0],), -1, dtype=kind)
            self._places[tensor_slice.rows.long()] = torch.arange(size[0], dtype=kind)

    def meets(self, block: RowBlock) -> bool:
        """Whether the block may have rows of this piece."""
        if self.tensor not in block.bits or not self._overlap(block.columns):
            return False
        return self._places is not None or (block.low < self._end and block.high >= self._first)

    def take(self, rows: TableRows, base: bool) -> int:
        """Copy what there is of this piece; ``base``: of a full checkpoint, which has every row.

        Returns:
            Bytes.
        """
        if self.tensor not in rows.tensors:
            return 0
        overlap = self._overlap(rows.columns)
        if overlap is None:
            return 0
        if self._places is None:
            there_U = (rows.ids_U >= self._first) & (rows.ids_U < self._end)
            places_L = rows.ids_U[there_U] - self._first
        else:
            places_U = self._places[rows.ids_U]
            there_U = places_U >= 0
            places_L = places_U[there_U].long()
        numbers = rows.tensors[self.tensor][there_U]
        begin, end = overlap
        first = 0
        if self._columns is not None:
            first = begin - self._columns[0]
            numbers = numbers[:, begin - rows.columns[0] : end - rows.columns[0]]
        if base:
            self._count(places_L, 1 if self._columns is None else end - begin)
        sink, tensor = self.tensor_slice.sink, self.tensor_slice.tensor
        if sink is not None:
            sink.put(places_L, first, numbers)
        elif self._columns is None:
            tensor[places_L.to(tensor.device)] = numbers.to(tensor.device)
        else:
            tensor[places_L.to(tensor.device), first : first + end - begin] = numbers.to(tensor.device)
        return numbers.numel() * numbers.element_size()

    def _overlap(self, columns: tuple[int, int]) -> tuple[int, int] | None:
        """The columns that both have; all, of a state of one number a row."""
        if self._columns is None:
            return columns
        begin, end = max(self._columns[0], columns[0]), min(self._columns[1], columns[0] + columns[1])
        return (begin, end) if begin < end else None

    def _count(self, places_L: Tensor, width: int) -> None:
        """What the full checkpoint has; a state of one number a row may lie there with several ranges of columns."""
        if self._columns is not None:
            self.missing -= len(places_L) * width
            return
        if not len(self._seen):
            self._seen = torch.zeros(self.tensor_slice.tensor.shape[0], dtype=torch.bool)
        self._seen[places_L] = True
        self.missing = int(self._seen.numel() - self._seen.sum())


def _named(group: str, name: str) -> tuple[str, str]:
    """(table, tensor of its blocks) of a piece."""
    if group == TABLES:
        return name, WEIGHT
    assert group == TABLE_STATES, (group, name)
    table, _, state = name.rpartition("/")
    return table, state
