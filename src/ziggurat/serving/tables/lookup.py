"""The look-ups of a request in all tables at once, by compiled kernels.

Rows in memory are decoded and added where they are. Of tables on disk, rows are first copied from the caches; the
blocks of all others are read together, of all tables at once, with a bound on the reads of a table that are in flight.
Shape legend: B rows, L ids, W bytes of a stored row, S positions.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ziggurat.core.errors import DataError
from ziggurat.serving.artefact.manifest import Manifest, TableEntry
from ziggurat.serving.tables.inputs import Ids, Inputs
from ziggurat.serving.tables.kernels import Feature, Place, kernels
from ziggurat.serving.tables.stores import DiskTable, MemoryTable, Wanted
from ziggurat.storage.async_io import TransferError, TransferThread, open_transfers

Ints = npt.NDArray[np.int64]
READS_OF_A_TABLE = 128
"""Reads of a table that a look-up has in flight at a time."""


@dataclass(frozen=True, slots=True)
class _Bags:
    """The look-ups of a feature.

    Attributes:
        ids: ids, -1 for a row of zeros.
        offsets: where those of each row of the output begin; None: one id a row.
        rows: rows of the output.
        mask: of a sequence with positions, which of them exist (B, S).
    """

    ids: Ints
    offsets: Ints | None
    rows: int
    mask: npt.NDArray[np.bool_] | None = None


class Lookup:
    """Looks up the rows of some inputs. Threads may share it.

    Args:
        manifest: the export.
        tables: name of a table -> its rows.
    """

    def __init__(self, manifest: Manifest, tables: Mapping[str, MemoryTable | DiskTable]) -> None:
        self._manifest, self.tables, self._kernels = manifest, dict(tables), kernels()
        self._disk = {name: table for name, table in tables.items() if isinstance(table, DiskTable)}
        self._free: list[TransferThread] = []
        self._turn = threading.Lock()
        self.reads = self.read_bytes = 0

    def __call__(self, inputs: Inputs) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns feature -> rows (B, W), or (B, S, W) for a sequence with positions; and the masks of these.

        Raises:
            DataError: rows cannot be read from the disk; the message names the table's file.
        """
        names, table_of = self._manifest.inputs, self._manifest.table_of
        bags = {name: _bags(table_of[name], name, inputs.ids[name]) for name in names}
        places, held = self._places(bags)
        rows: dict[str, Tensor] = {}
        masks: dict[str, Tensor] = {}
        features = (Feature * len(names))()
        for number, name in enumerate(names):
            entry, bag = table_of[name], bags[name]
            place, ids = places[name]
            out = torch.empty(bag.rows, entry.dim)
            mean = 0 if entry.pooling == "sum" else 2 if entry.divides else 1
            features[number] = Feature(place, _address(ids), _address(bag.offsets), bag.rows, mean, 0, out.data_ptr())
            rows[name] = out
            if bag.mask is not None:
                rows[name] = out.view(len(bag.mask), entry.positions[name], entry.dim)
                masks[name] = torch.from_numpy(bag.mask)
        if self._kernels.zs_look_up(ctypes.addressof(features), len(names)):
            raise MemoryError
        del held
        return rows, masks

    def close(self) -> None:
        """Closes files, and frees caches. No look-up may be running."""
        for transfers in self._free:
            transfers.close()
        for table in self.tables.values():
            table.close()

    def _places(self, bags: Mapping[str, _Bags]) -> tuple[dict[str, tuple[Place, Ints | None]], Mapping[str, Wanted]]:
        """Returns where the rows of each feature are, with the ids there, and what holds those that were on disk."""
        places: dict[str, tuple[Place, Ints | None]] = {}
        asked: dict[str, list[str]] = {}
        for name, bag in bags.items():
            table = self.tables[self._manifest.table_of[name].name]
            if isinstance(table, MemoryTable):
                places[name] = table.place, bag.ids
            else:
                asked.setdefault(table.entry.name, []).append(name)
        if not asked:
            return places, {}
        wanted = {
            table: self._disk[table].want(np.concatenate([bags[name].ids[bags[name].ids >= 0] for name in names]))
            for table, names in asked.items()
        }
        for (table, place), names in zip(self._read(wanted).items(), asked.values(), strict=True):
            first = 0
            for name in names:
                ids = bags[name].ids
                exists = ids >= 0
                count = int(exists.sum())
                places[name] = place, np.where(exists, first + np.cumsum(exists) - 1, -1)
                first += count
            assert first == len(wanted[table].ids)
        return places, wanted

    def _read(self, wanted: Mapping[str, Wanted]) -> dict[str, Place]:
        """Reads the missing rows of all tables together; returns where the rows of each table are."""
        memory = {name: _aligned(len(each.blocks), self._disk[name].layout.stride) for name, each in wanted.items()}
        most = max(len(each.blocks) for each in wanted.values())
        if most:
            transfers = self._take()
            try:
                for start in range(0, most, READS_OF_A_TABLE):
                    part = slice(start, start + READS_OF_A_TABLE)
                    jobs = [
                        self._disk[name].job(each.blocks[part], memory[name][part])
                        for name, each in wanted.items()
                        if start < len(each.blocks)
                    ]
                    self._count(transfers.read(jobs), memory, part)
            except TransferError as error:
                raise self._unreadable(error) from error
            finally:
                with self._turn:
                    self._free.append(transfers)
        return {name: self._disk[name].fill(each, memory[name]) for name, each in wanted.items()}

    def _count(self, reads: Sequence[int], memory: Mapping[str, npt.NDArray[np.uint8]], part: slice) -> None:
        with self._turn:
            self.reads += sum(reads)
            self.read_bytes += sum(each[part].nbytes for each in memory.values())

    def _take(self) -> TransferThread:
        with self._turn:
            if self._free:
                return self._free.pop()
        return open_transfers()[0]

    def _unreadable(self, error: TransferError) -> DataError:
        table = next((each for each in self._disk.values() if each.file == error.file), None)
        where = "a table" if table is None else str(table.path)
        return DataError(
            f"{where}: cannot be read at byte {error.offset:,}: {error.strerror}",
            "check the disk; export the model again if the file is damaged",
        )


def _bags(entry: TableEntry, name: str, ids: Ids) -> _Bags:
    if name in entry.positions:
        ids_BS, exists_BS = ids.last(entry.positions[name])
        flat = np.where(exists_BS, ids_BS, -1).reshape(-1)
        return _Bags(np.ascontiguousarray(flat), None, len(flat), exists_BS)
    if ids.offsets is None:
        return _Bags(np.ascontiguousarray(ids.values), None, len(ids.values))
    return _Bags(np.ascontiguousarray(ids.values), np.ascontiguousarray(ids.offsets), len(ids.offsets) - 1)


def _address(values: Ints | None) -> int | None:
    return None if values is None else values.ctypes.data


def _aligned(count: int, size: int) -> npt.NDArray[np.uint8]:
    """Returns memory for blocks that begins at a page, as O_DIRECT requires."""
    page = 4096
    memory = np.empty(count * size + page, np.uint8)
    first = -memory.ctypes.data % page
    return memory[first : first + count * size].reshape(count, size)
