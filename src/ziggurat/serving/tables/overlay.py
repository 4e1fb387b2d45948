"""The rows of a table that changed since its file was written: an index over a log of rows.

Rows are appended to the log as they change; the last one of an id counts. The index has a bit for each row of the
table, and before each 64 bits how many rows before them are set: so the n-th row of the overlay is found in one step,
and a row that is not in it costs one bit. ``places`` then says where in the log it is. Shape legend: R rows of the
table, L ids or rows of the log, U rows that are in the overlay, W bytes of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.core.untrusted import Damage
from ziggurat.serving.artefact.manifest import TableEntry
from ziggurat.serving.artefact.row_codec import Bytes, Floats, Precision, decode
from ziggurat.serving.tables.inputs import Ints
from ziggurat.serving.tables.kernels import Place
from ziggurat.serving.tables.mapped_rows import MappedRows
from ziggurat.serving.tables.stores import DiskTable, LoadedTable, MemoryTable, Wanted

Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.uint32]
_BITS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Overlay:
    """Rows that stand in the place of those of a table's file.

    Attributes:
        index: (⌈R / 64⌉, 2): 64 bits, one for each row, and the number of rows before them that are in the overlay.
        places: (U,) for each row of the overlay, by ascending id, its place in the log.
        log: (L, W) rows.
    """

    index: Words
    places: Places
    log: Bytes

    def find(self, ids_L: Ints) -> tuple[npt.NDArray[np.bool_], Bytes]:
        """Returns which ids are in the overlay, and the rows of those."""
        some = self.index[ids_L >> 6]
        bits = np.left_shift(np.uint64(1), (ids_L & 63).astype(np.uint64))
        there = (some[:, 0] & bits) != 0
        some, bits = some[there], bits[there]
        at = some[:, 1] + np.bitwise_count(some[:, 0] & (bits - np.uint64(1)))
        return there, self.log[self.places[at.astype(np.int64)]]

    @property
    def ids(self) -> Ints:
        """The ids that are in the overlay, ascending (U,)."""
        bits = np.unpackbits(self.index[:, 0].astype("<u8").view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
        return np.flatnonzero(bits.reshape(-1))


def index_of(ids_L: Ints, rows: int) -> tuple[Words, Places]:
    """Returns ``index`` and ``places`` of a log.

    Args:
        ids_L: the id of each row of the log; the last row of an id counts.
        rows: R.
    """
    ids_U, last_U = np.unique(ids_L[::-1], return_index=True)
    set_R = np.zeros(-(-rows // _BITS) * _BITS, np.uint8)
    set_R[ids_U] = 1
    words = np.packbits(set_R, bitorder="little").view("<u8").astype(np.uint64)
    counts = np.bitwise_count(words).astype(np.uint64)
    index = np.stack([words, np.cumsum(counts) - counts], axis=1)
    return np.ascontiguousarray(index), (len(ids_L) - 1 - last_U).astype(np.uint32)


def check_index(index: Words, places: Places, log_rows: int, rows: int, where: str, damage: Damage) -> None:
    """Refuses an index that would lead out of the log.

    Raises:
        ZigguratError: of class ``damage.error``.
    """
    counts = np.bitwise_count(index[:, 0]).astype(np.uint64)
    fits = len(index) == -(-rows // _BITS) and int(counts.sum()) == len(places)
    fits = fits and bool((index[:, 1] == np.cumsum(counts) - counts).all())
    if not fits or (len(places) and int(places.max()) >= log_rows):
        raise damage.of(where, "is damaged: it does not fit the rows that it leads to")


class OverlaidMemoryTable(MemoryTable):
    """A table in memory, with an overlay.

    Args:
        base: the table; it is not changed. Its rows are stored as those of the overlay.
        overlay: the rows that changed.
    """

    def __init__(self, base: MemoryTable | LoadedTable, overlay: Overlay) -> None:
        self._base, self._overlay = base, overlay
        addresses = (each.ctypes.data for each in (overlay.index, overlay.places, overlay.log))
        self.place = base.place.overlaid(*addresses)


class VersionedDiskTable(DiskTable):
    """A version of a table on disk: with an overlay, whose rows are mapped into memory, or without.

    The cache of rows holds those of the table's file alone, so all versions of this file share it. Pooled rows are
    those of one version.

    Args:
        base: the table; it is not changed, and stays open.
        overlay: the rows that changed; None: there are none.
        generation: the generation of the pooled rows.
    """

    def __init__(self, base: DiskTable, overlay: Overlay | None, generation: int) -> None:
        self._base, self._overlay = base, overlay
        self.layout, self.entry, self.path, self._precision = base.layout, base.entry, base.path, base.precision
        self.cache, self.pooled, self.generation = base.cache, base.pooled, generation
        self.direct, self.file = base.direct, base.file

    def close(self) -> None:
        """Does nothing: the file is closed with its last version."""

    def want(self, ids_L: Ints) -> Wanted:
        """Copies rows from the overlay and the cache, and finds out which are to be read."""
        if self._overlay is None:
            return self._base.want(ids_L)
        there, changed = self._overlay.find(ids_L)
        rest = np.flatnonzero(~there)
        found = self._base.want(np.ascontiguousarray(ids_L[rest]))
        rows_LW = np.empty((len(ids_L), self.layout.width), np.uint8)
        rows_LW[there], rows_LW[rest] = changed, found.rows
        return Wanted(ids_L, rows_LW, rest[found.missing])

    def keep(self, wanted: Wanted) -> Place:
        """As of a table on disk; rows that were read are kept for all versions of the file."""
        return self._base.keep(wanted)


class OverlaidRows:
    """Rows of a table that is mapped into memory, with an overlay, without compiled kernels.

    Args:
        base: the table.
        overlay: the rows that changed.
        entry: the table.
        precision: how its rows are stored.
    """

    def __init__(self, base: MappedRows, overlay: Overlay, entry: TableEntry, precision: Precision) -> None:
        self._base, self._overlay, self._dim = base, overlay, entry.dim
        self._precision: Precision = precision

    def read(self, ids_L: Ints) -> Floats:
        """Returns rows (L, dim) for ids in any order."""
        rows = np.array(self._base.read(ids_L))
        there, changed = self._overlay.find(ids_L)
        rows[there] = decode(changed, self._dim, self._precision)
        return rows
