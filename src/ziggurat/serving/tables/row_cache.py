"""A cache of a table's rows, as bytes, which threads and processes share.

Sets of eight rows, chosen by a hash of the id. Short rows stand one behind the other; long ones begin at a cache line
of the processor, so that they are copied faster. A row takes the place of another only if it is asked for as often
lately, which counters of up to eight bytes a kept row tell; so rows that are read once push nothing out. Shape legend:
L ids, W bytes of a row.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import ConfigError
from ziggurat.serving.artefact.row_codec import Bytes
from ziggurat.serving.tables.kernels import FLAGS
from ziggurat.serving.tables.shared_memory import SharedMemory
from ziggurat.storage.native import compiled

Ints = npt.NDArray[np.int64]
WAYS = 8
ALIGNED_WIDTH = 256
"""Bytes of a row from which on rows begin at a cache line."""
FIXED_BYTES = 8192
"""Bytes of a cache beside its rows and what belongs to them."""
COUNTERS = 8
"""Counters for each kept row, unless the table has fewer rows."""
_SET_BYTES, _LINE = 40, 64
_WINDOW = 40
"""Look-ups for each kept row in which a counter is halved once."""
ENTRY_BYTES = _SET_BYTES // WAYS + COUNTERS
"""Bytes that a row costs beside itself, at most."""
_MOST_ROWS = 2**32 - 2


def stride_of(width: int) -> int:
    """Returns from where to where rows of a width stand in a cache, bytes."""
    return width if width < ALIGNED_WIDTH else -(-width // _LINE) * _LINE


class RowBytesCache:
    """Keeps rows of a table.

    A row belongs to a generation, a number that begins with 1 and grows when rows are replaced. Whoever reads or puts
    says of which generation its rows are; if that is not the current one, nothing is found and nothing is kept.

    Args:
        bytes_: memory for rows, sets and counters.
        width: bytes of a row.
        rows: rows of the table.
        what: the table, for messages.

    Attributes:
        width: bytes of a row.
        capacity: how many rows it keeps.
        bytes: the memory that it takes.

    Raises:
        EnvironmentMismatch: there is not so much memory.
        ConfigError: the table has more rows than a cache can number.
    """

    def __init__(self, bytes_: int, width: int, rows: int, what: str = "a cache") -> None:
        if rows > _MOST_ROWS:
            raise ConfigError(f"{what}: {rows:,} rows; a cache can number {_MOST_ROWS:,}", "split the table")
        self.width, stride = width, stride_of(width)
        space = max(0, bytes_ - FIXED_BYTES)
        sets = space // (_SET_BYTES + WAYS * (stride + COUNTERS))
        if COUNTERS * WAYS * sets > rows:
            sets = max(rows // (COUNTERS * WAYS), (space - rows) // (_SET_BYTES + WAYS * stride))
        sets = max(1, min(sets, -(-2 * rows // WAYS)))
        counters = min(rows, COUNTERS * WAYS * sets)
        self.capacity = WAYS * sets
        self.bytes = 4096 + sets * _SET_BYTES + counters + _LINE + self.capacity * stride
        self._memory = SharedMemory(self.bytes, what)
        _library().zs_cache_begin(self._memory.address, sets, width, stride, counters, rows)

    @property
    def generation(self) -> int:
        """The current generation."""
        return _library().zs_cache_generation(self._memory.address)

    def read(self, ids_L: Ints, out_LW: Bytes, generation: int = 1) -> Ints:
        """Copies the rows that are there; returns the places of the others in ``ids_L``, ascending."""
        missing = np.empty(len(ids_L), np.int64)
        count: int = _library().zs_cache_read(
            self._memory.address, generation, len(ids_L), ids_L.ctypes.data, out_LW.ctypes.data, missing.ctypes.data
        )
        return missing[:count]

    def put(self, ids_L: Ints, rows_LW: Bytes, generation: int = 1) -> None:
        """Keeps rows; both arrays are contiguous."""
        _library().zs_cache_put(self._memory.address, generation, len(ids_L), ids_L.ctypes.data, rows_LW.ctypes.data)

    def advance(self, generation: int, changed_L: Ints | None = None) -> None:
        """Begins a generation in which some rows are others, all by default.

        Each process calls it before it uses the generation, with the same rows: one that has begun, or a later one,
        forgets them again.
        """
        if changed_L is None:
            _library().zs_cache_advance(self._memory.address, generation, -1, None)
            return
        changed_L = np.ascontiguousarray(changed_L, np.int64)
        _library().zs_cache_advance(self._memory.address, generation, len(changed_L), changed_L.ctypes.data)

    def expect(self, counts_R: Ints) -> None:
        """Notes how often each row of the table was asked for before, so that the first rows that come are weighed."""
        counts_R = np.ascontiguousarray(counts_R, np.int64)
        total = int(counts_R.sum())
        if total:
            scale = _WINDOW * self.capacity / total
            _library().zs_cache_expect(self._memory.address, len(counts_R), counts_R.ctypes.data, scale)


def bag_keys(ids_L: Ints, offsets_B1: Ints, secret: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns for each bag two hashes that do not depend on the order of its ids, and one that does, (B, 3)."""
    keys = np.empty((len(offsets_B1) - 1, 3), np.uint64)
    _library().zs_bag_keys(len(keys), ids_L.ctypes.data, offsets_B1.ctypes.data, secret.ctypes.data, keys.ctypes.data)
    return keys


@cache
def _library() -> ctypes.CDLL:
    """Returns the library.

    Raises:
        NativeUnavailable: it cannot be compiled or loaded; the message says why.
    """
    found = compiled(Path(__file__).with_name("row_cache.c"), FLAGS)
    number, generation, pointer = ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p
    found.zs_cache_begin.restype, found.zs_cache_begin.argtypes = None, (pointer, *[number] * 5)
    found.zs_cache_generation.restype, found.zs_cache_generation.argtypes = generation, (pointer,)
    found.zs_cache_read.restype = number
    found.zs_cache_read.argtypes = (pointer, generation, number, pointer, pointer, pointer)
    found.zs_cache_put.restype, found.zs_cache_put.argtypes = None, (pointer, generation, number, pointer, pointer)
    found.zs_cache_advance.restype, found.zs_cache_advance.argtypes = None, (pointer, generation, number, pointer)
    found.zs_cache_expect.restype = None
    found.zs_cache_expect.argtypes = (pointer, number, pointer, ctypes.c_double)
    found.zs_bag_keys.restype, found.zs_bag_keys.argtypes = None, (number, pointer, pointer, pointer, pointer)
    return found
