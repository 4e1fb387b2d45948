"""The look-ups of a request in all tables at once, by compiled kernels.

Rows in memory are decoded and added where they are. Of tables on disk, rows are first copied from the caches; the
blocks of all others are read together, of all tables at once, with bounds on the reads that are in flight.
Shape legend: B rows, L ids, W bytes of a stored row, S positions.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ziggurat.core.errors import DataError
from ziggurat.serving.artefact.manifest import Manifest, TableEntry
from ziggurat.serving.tables.figures import FiguresKeeper, LookupFigures
from ziggurat.serving.tables.inputs import Ids, Inputs
from ziggurat.serving.tables.kernels import Feature, Place, kernels
from ziggurat.serving.tables.stores import DiskTable, LoadedTable, MemoryTable, Wanted, unreadable
from ziggurat.storage.async_io import TransferError, TransferThread, open_transfers

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Reading = Callable[[], AbstractContextManager[None]]
"""Makes what is entered while a look-up waits for the disk."""
READS_OF_A_TABLE, READS_OF_A_LOOKUP = 128, 256
"""Reads that a look-up has in flight at a time: of one table, and altogether."""


class TableUnreadable(DataError):
    """Rows of a table cannot be read from the disk.

    Args:
        problem, hint: as in :class:`~ziggurat.core.errors.ZigguratError`.
        table: the table's name.
    """

    def __init__(self, problem: str, hint: str, table: str) -> None:
        self.table = table
        super().__init__(problem, hint)

    def __reduce__(self) -> tuple[type[TableUnreadable], tuple[str, ...]]:
        return type(self), (self.problem, self.hint, self.table)


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


@dataclass(frozen=True, slots=True)
class _Pooled:
    """The long bags of a feature, if its table keeps what they become.

    Attributes:
        rows: which rows of the output they are, ascending.
        keys: their keys.
        known: which of them are known.
        found: the pooled rows of these.
    """

    rows: Ints
    keys: npt.NDArray[np.uint64]
    known: npt.NDArray[np.bool_]
    found: Floats


class Lookup:
    """Looks up the rows of some inputs. Threads may share it.

    Args:
        manifest: the export.
        tables: name of a table -> its rows.
        reads_of_a_table, reads_of_a_lookup: reads of the disk that a look-up has in flight at a time, of one table and
            altogether.

    Attributes:
        tables: see the argument.
        figures: what the look-ups in tables on disk did.
    """

    def __init__(
        self,
        manifest: Manifest,
        tables: Mapping[str, MemoryTable | LoadedTable | DiskTable],
        reads_of_a_table: int = READS_OF_A_TABLE,
        reads_of_a_lookup: int = READS_OF_A_LOOKUP,
    ) -> None:
        self._manifest, self.tables, self._kernels = manifest, dict(tables), kernels()
        self._disk = {name: table for name, table in tables.items() if isinstance(table, DiskTable)}
        self._of_a_table, self._of_a_lookup = reads_of_a_table, reads_of_a_lookup
        self._free: list[TransferThread] = []
        self._turn = threading.Lock()
        self.figures = FiguresKeeper(self._disk)

    def over(self, tables: Mapping[str, MemoryTable | LoadedTable | DiskTable]) -> Lookup:
        """Returns the look-ups in other versions of the same tables, which share what reads the disk."""
        found = Lookup(self._manifest, tables, self._of_a_table, self._of_a_lookup)
        found._free, found._turn = self._free, self._turn
        return found

    @property
    def reads_disk(self) -> bool:
        """Whether it says when it waits for a disk."""
        return bool(self._disk)

    def __call__(self, inputs: Inputs, reading: Reading = nullcontext) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Returns input -> rows (B, W), or (B, S, W) for a sequence with positions; and the masks of these.

        Args:
            inputs: the ids.
            reading: makes what is entered while the disk is read.

        Raises:
            TableUnreadable: rows cannot be read from the disk; the message names the table's file.
        """
        names, table_of, feature_of = self._manifest.inputs, self._manifest.table_of, self._manifest.feature_of
        bags = {name: _bags(table_of[name], name, inputs.ids[feature_of[name]]) for name in names}
        seen = LookupFigures.of(self._disk)
        try:
            pooled = self._take_pooled(bags, seen)
            places, held = self._places(bags, seen, reading)
        finally:
            if self._disk:
                self.figures.add(seen)
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
        for name, each in pooled.items():
            self._finish_pooled(self._disk[table_of[name].name], each, rows[name].numpy())
        return rows, masks

    def close(self) -> None:
        """Closes files. No look-up may be running."""
        for transfers in self._free:
            transfers.close()
        for table in self.tables.values():
            table.close()

    def _take_pooled(self, bags: dict[str, _Bags], seen: LookupFigures) -> dict[str, _Pooled]:
        """Empties the long bags whose pooled rows are known, and returns the long bags of each feature."""
        found: dict[str, _Pooled] = {}
        for name, bag in bags.items():
            table = self._disk.get(self._manifest.table_of[name].name)
            if table is None or table.pooled is None or bag.offsets is None:
                continue
            lengths = np.diff(bag.offsets)
            is_long = lengths > table.pooled.longer_than
            if not is_long.any():
                continue
            keys = table.pooled.keys(bag.ids, bag.offsets)[is_long]
            known, rows = table.pooled.find(keys, table.generation)
            at = np.flatnonzero(is_long)
            found[name] = _Pooled(at, keys, known, rows)
            figures = seen.tables[table.entry.name]
            figures.pooled_hits += int(known.sum())
            figures.pooled_misses += len(known) - int(known.sum())
            if known.any():
                is_known = np.zeros(bag.rows, bool)
                is_known[at[known]] = True
                ids = np.ascontiguousarray(bag.ids[~np.repeat(is_known, lengths)])
                offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(is_known, 0, lengths))])
                bags[name] = _Bags(ids, offsets, bag.rows)
        return found

    def _finish_pooled(self, table: DiskTable, pooled: _Pooled, rows: Floats) -> None:
        """Fills in the pooled rows that were known, and keeps the others."""
        assert table.pooled is not None
        rows[pooled.rows[pooled.known]] = pooled.found
        new = ~pooled.known
        if new.any():
            table.pooled.put(pooled.keys[new], rows[pooled.rows[new]], table.generation)

    def _places(
        self, bags: Mapping[str, _Bags], seen: LookupFigures, reading: Reading
    ) -> tuple[dict[str, tuple[Place, Ints | None]], Mapping[str, Wanted]]:
        """Returns where the rows of each feature are, with the ids there, and what holds those that were on disk."""
        places: dict[str, tuple[Place, Ints | None]] = {}
        asked: dict[str, list[str]] = {}
        for name, bag in bags.items():
            table = self.tables[self._manifest.table_of[name].name]
            if isinstance(table, DiskTable):
                asked.setdefault(table.entry.name, []).append(name)
            else:
                places[name] = table.place, bag.ids
        if not asked:
            return places, {}
        exists = {
            name: bags[name].ids >= 0 for names in asked.values() for name in names if bags[name].mask is not None
        }
        ids = {
            name: bags[name].ids[exists[name]] if name in exists else bags[name].ids
            for names in asked.values()
            for name in names
        }
        wanted = {
            table: self._disk[table].want(_joined([ids[name] for name in names])) for table, names in asked.items()
        }
        for (table, place), names in zip(self._read(wanted, seen, reading).items(), asked.values(), strict=True):
            first = 0
            for name in names:
                count = len(ids[name])
                if name in exists:
                    places[name] = place, np.where(exists[name], first + np.cumsum(exists[name]) - 1, -1)
                else:
                    places[name] = place, np.arange(first, first + count)
                first += count
            assert first == len(wanted[table].ids)
        return places, wanted

    def _read(self, wanted: Mapping[str, Wanted], seen: LookupFigures, reading: Reading) -> dict[str, Place]:
        """Reads the missing rows of all tables together; returns where the rows of each table are."""
        for name, each in wanted.items():
            seen.tables[name].misses += len(each.missing)
            seen.tables[name].hits += len(each.ids) - len(each.missing)
        jobs = {
            name: self._disk[name].reads(each, self._of_a_table) for name, each in wanted.items() if len(each.missing)
        }
        if jobs:
            transfers = self._take()
            began = time.perf_counter()
            try:
                with reading():
                    counts = transfers.read_rows(list(jobs.values()), self._of_a_lookup)
                for (name, job), count in zip(jobs.items(), counts, strict=True):
                    seen.tables[name].reads += count
                    seen.tables[name].read_bytes += count * job.stride
            except TransferError as error:
                raise self._unreadable(error, seen) from error
            finally:
                seen.seconds.append(time.perf_counter() - began)
                with self._turn:
                    self._free.append(transfers)
        return {name: self._disk[name].keep(each) for name, each in wanted.items()}

    def _take(self) -> TransferThread:
        with self._turn:
            if self._free:
                return self._free.pop()
        return open_transfers()[0]

    def _unreadable(self, error: TransferError, seen: LookupFigures) -> DataError:
        table = next(each for each in self._disk.values() if each.file == error.file)
        seen.tables[table.entry.name].errors += 1
        found = unreadable(table.path, error.offset, error.strerror or "")
        return TableUnreadable(found.problem, found.hint, table.entry.name)


def _joined(parts: list[Ints]) -> Ints:
    return np.ascontiguousarray(parts[0]) if len(parts) == 1 else np.concatenate(parts)


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
