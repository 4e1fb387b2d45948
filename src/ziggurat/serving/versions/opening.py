"""Opens versions in a worker: the tables with their changed rows, and the dense part with its weights."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakValueDictionary

from torch import nn

from ziggurat.core.digests import FileChecksum, load_tensors
from ziggurat.serving.artefact.dense_program import PROGRAM_FILE, load_program
from ziggurat.serving.artefact.manifest import TABLES, TableEntry
from ziggurat.serving.model.scorer import Scorer, aligned
from ziggurat.serving.tables.lookup import Lookup
from ziggurat.serving.tables.mapped_rows import MappedRows
from ziggurat.serving.tables.overlay import OverlaidMemoryTable, OverlaidRows, VersionedDiskTable
from ziggurat.serving.tables.pooled_cache import PooledCache
from ziggurat.serving.tables.row_cache import RowBytesCache
from ziggurat.serving.tables.stores import DiskTable, LoadedTable, MemoryTable
from ziggurat.serving.versions.folder import DAMAGED, VersionFolder
from ziggurat.serving.versions.graph_copies import with_weights
from ziggurat.serving.versions.overlays import mapped, open_overlay
from ziggurat.serving.versions.record import Pointer, VersionRecord

Table = MemoryTable | LoadedTable | DiskTable | MappedRows


class VersionOpener:
    """Opens versions of an export.

    Args:
        folder: the versions.
        exported: the export, as it is served in this process: with its tables in memory or on disk.
    """

    def __init__(self, folder: VersionFolder, exported: Scorer) -> None:
        self._folder, self._root, self._manifest = folder, exported.folder, exported.manifest
        self._transform, self._lookup, self._dense = exported.transform, exported.lookup.over({}), exported.dense
        self._code = exported.code
        self._tensors = dict(self._dense.named_parameters()) | dict(self._dense.named_buffers())
        self._opened: WeakValueDictionary[tuple[str, str, int], Table] = WeakValueDictionary()
        self._caches: dict[str, tuple[RowBytesCache, PooledCache | None]] = {}
        self._generations: dict[str, int] = {}
        """Table on disk -> the generation of the pooled rows that this process has begun."""
        for entry in self._manifest.tables:
            table = exported.lookup.tables[entry.name]
            assert isinstance(table, Table)
            self._opened[entry.name, "", 1] = table
            if isinstance(table, DiskTable):
                self._caches[entry.name] = table.cache, table.pooled

    def open(self, record: VersionRecord, pointer: Pointer) -> Scorer:
        """Returns a version to predict with.

        Args:
            record: the version.
            pointer: the pointer to it, which says since when caches hold its rows.

        Raises:
            DataError: a file of it is missing or damaged.
        """
        tables = {entry.name: self._table(entry, record, pointer) for entry in self._manifest.tables}
        manifest = replace(self._manifest, source=replace(self._manifest.source, step=record.step))
        lookup = self._lookup.over(tables)  # pyright: ignore[reportArgumentType] - all are of one kind
        return Scorer(self._root, manifest, self._transform, lookup, self._weights(record), self._code)

    def _table(self, entry: TableEntry, record: VersionRecord, pointer: Pointer) -> Table | OverlaidRows:
        table, precision = record.tables[entry.name], self._manifest.precision
        base = self._base(entry, table.base, pointer.files.get(entry.name, 1))
        overlay = open_overlay(self._folder, entry, precision, table) if table.log else None
        if isinstance(base, DiskTable):
            generation = pointer.rows.get(entry.name, 1)
            if base.pooled is not None and generation > self._generations.get(entry.name, 1):
                base.pooled.advance(generation)
                self._generations[entry.name] = generation
            return VersionedDiskTable(base, overlay, generation)
        if overlay is None:
            return base
        if isinstance(base, MappedRows):
            return OverlaidRows(base, overlay, entry, precision)
        return OverlaidMemoryTable(base, overlay)

    def _base(self, entry: TableEntry, name: str, generation: int) -> Table:
        """Returns a table with a file of all its rows.

        Args:
            entry: the table.
            name: the file; empty: the export's.
            generation: of the rows in its cache. Each process begins it, and forgets the rows of others.
        """
        caches = self._caches.get(entry.name)
        key = entry.name, name, 1 if caches is None else generation
        found = self._opened.get(key)
        if found is None:
            path = self._folder.root / name if name else self._root / TABLES / entry.file
            precision = self._manifest.precision
            mapped(path, entry.layout(precision).bytes)  # refuses a file that is missing or too short
            if caches is not None:
                caches[0].advance(generation)
                found = DiskTable(path, entry, precision, *caches, generation)
            else:
                kind = MemoryTable if isinstance(self._lookup, Lookup) else MappedRows
                found = kind(path, entry, precision)
            self._opened[key] = found
        return found

    def _weights(self, record: VersionRecord) -> nn.Module:
        """Returns the dense part with the weights of a version."""
        if not record.dense:
            return self._dense
        path = self._folder.root / record.dense
        arrays = load_tensors(path, FileChecksum(record.dense_bytes, record.dense_digest), DAMAGED)
        tensors = {name: aligned(each) for name, each in arrays.items()}
        by_name = {name.partition("/")[2]: each for name, each in tensors.items() if name in self._manifest.trained}
        fits = all(name in self._tensors and self._tensors[name].shape == by_name[name].shape for name in by_name)
        if not fits or set(by_name) != {name.partition("/")[2] for name in self._manifest.trained}:
            program = self._manifest.files[PROGRAM_FILE].checksum.read(self._root / PROGRAM_FILE, DAMAGED)
            return load_program(program, tensors, str(path), DAMAGED)
        return with_weights(self._dense, by_name)
