"""Opens the changed rows of a table in a version: its log mapped into memory, and the index over it.

The index is shared in memory if the updater has put it there; if not, it is made of the ids of the log.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.core.digests import digest_of_parts
from ziggurat.core.errors import ZigguratError
from ziggurat.core.untrusted import opened
from ziggurat.serving.artefact.manifest import TableEntry
from ziggurat.serving.artefact.row_codec import Bytes, Precision
from ziggurat.serving.tables.overlay import Overlay, Places, Words, check_index, index_of
from ziggurat.serving.versions.folder import DAMAGED, VersionFolder, index_name
from ziggurat.serving.versions.record import TableRecord

Ids = npt.NDArray[np.unsignedinteger]
_WORD_BYTES = 16
"""Bytes of the index for 64 rows."""


def id_type(rows: int) -> np.dtype[np.unsignedinteger]:
    """Returns how the ids of a log are stored."""
    return np.dtype("<u4" if rows <= 1 << 32 else "<u8")


def map_log(folder: VersionFolder, entry: TableEntry, precision: Precision, table: TableRecord) -> tuple[Bytes, Ids]:
    """Returns the rows of a log (L, W) and their ids (L,), mapped into memory; the last ones are compared with their
    checksum.

    Raises:
        DataError: a file is missing or damaged.
    """
    width, kind = entry.layout(precision).width, id_type(entry.rows)
    log, ids = folder.root / f"{table.log}.log", folder.root / f"{table.log}.ids"
    rows_LW = mapped(log, table.log_rows * width).reshape(table.log_rows, width)
    ids_L = mapped(ids, table.log_rows * kind.itemsize).view(kind)
    last = slice(table.log_rows - table.tail_rows, None)
    if digest_of_parts([ids_L[last], np.ascontiguousarray(rows_LW[last])]) != table.tail:
        raise DAMAGED.of(log, "is damaged: its last rows differ from their checksum")
    if len(ids_L) and int(ids_L.max()) >= entry.rows:
        raise DAMAGED.of(ids, f"names row {int(ids_L.max()):,} of a table of {entry.rows:,}")
    return rows_LW, ids_L


def open_overlay(folder: VersionFolder, entry: TableEntry, precision: Precision, table: TableRecord) -> Overlay:
    """Returns the changed rows of a table in a version.

    Raises:
        DataError: a file is missing or damaged.
    """
    rows_LW, ids_L = map_log(folder, entry, precision, table)
    if folder.indexes is not None:
        with contextlib.suppress(ZigguratError, OSError):  # an index that cannot be used is made anew
            index, places = _shared(folder.indexes / index_name(table), entry.rows, table)
            found = Overlay(index, places, rows_LW)
            if (ids_L[places] == found.ids).all():
                return found
    return Overlay(*index_of(ids_L.astype(np.int64), entry.rows), rows_LW)


def share_index(folder: VersionFolder, table: TableRecord, index: Words, places: Places) -> None:
    """Puts an index where all workers of the host find it, as far as there is memory."""
    if folder.indexes is None:
        return
    path = folder.indexes / index_name(table)
    temporary = path.with_suffix(".new")
    try:
        with temporary.open("wb") as file:
            file.write(index.astype("<u8").tobytes())
            file.write(places.astype("<u4").tobytes())
        temporary.replace(path)
    except OSError:
        for each in (temporary, path):
            each.unlink(missing_ok=True)


def mapped(path: Path, size: int) -> Bytes:
    """Returns the first bytes of a file, mapped into memory.

    Raises:
        DataError: it is missing, no plain file, or shorter.
    """
    try:
        with opened(path, DAMAGED) as file:
            found = os.fstat(file.fileno()).st_size
            if found < size:
                raise DAMAGED.of(path, f"is damaged: it has {found:,} bytes, {size:,} were written")
            if not size:
                return np.empty(0, np.uint8)
            return np.frombuffer(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ), np.uint8)
    except FileNotFoundError:
        raise DAMAGED.of(path, "is missing") from None


def _shared(path: Path, rows: int, table: TableRecord) -> tuple[Words, Places]:
    words = -(-rows // 64) * _WORD_BYTES
    data = mapped(path, words + 4 * table.changed)
    index, places = data[:words].view("<u8").reshape(-1, 2), data[words:].view("<u4")
    check_index(index, places, table.log_rows, rows, str(path), DAMAGED)
    return index, places
