"""A cache of the rows that long bags become, so that a bag that comes again reads none of its rows.

Its key does not depend on the order of the ids: two sums of 64 bits over mixed values of the ids, with a secret that is
drawn when the server starts. By default a third hash, over the ids in their order, must match as well: a sum of float32
in another order may differ in its last bits, and answers are to have the bits of the tables in memory. A pair of
different bags is taken for one with probability 2⁻¹²⁸, with the third hash 2⁻¹⁹². Shape legend: B bags, D dim.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from ziggurat.serving.artefact.row_codec import Bytes
from ziggurat.serving.tables.row_cache import RowBytesCache, bag_keys

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
Keys = npt.NDArray[np.uint64]
_KEY_BYTES = 24
_TAGS = 2**31
"""Numbers of bags in the cache; the whole key is compared beside."""


class PooledCache:
    """Keeps the pooled rows of a table's long bags. Threads and processes may share it.

    Args:
        bytes_: memory.
        dim: D.
        longer_than: bags of more ids than this are kept.
        any_order: whether a bag whose ids came in another order is the same bag.
        what: the table, for messages.

    Attributes:
        longer_than: see the argument.

    Raises:
        EnvironmentMismatch: there is not so much memory.
    """

    def __init__(self, bytes_: int, dim: int, longer_than: int, any_order: bool, what: str = "pooled rows") -> None:
        self.longer_than, self._dim, self._any_order = longer_than, dim, any_order
        self._secret = np.array([secrets.randbits(64), secrets.randbits(64)], np.uint64)
        self._cache = RowBytesCache(bytes_, _KEY_BYTES + 4 * dim, _TAGS, what)

    @property
    def bytes(self) -> int:
        """The memory that it takes."""
        return self._cache.bytes

    def keys(self, ids_L: Ints, offsets_B1: Ints) -> Keys:
        """Returns the keys of bags (B, 3)."""
        return bag_keys(ids_L, offsets_B1, self._secret)

    def find(self, keys_B3: Keys, generation: int) -> tuple[npt.NDArray[np.bool_], Floats]:
        """Returns which bags are known (B,), and the pooled rows of these (known, D)."""
        kept = np.empty((len(keys_B3), _KEY_BYTES + 4 * self._dim), np.uint8)
        missing = self._cache.read(_tags(keys_B3), kept, generation)
        known = np.ones(len(keys_B3), bool)
        known[missing] = False
        compared = 2 if self._any_order else 3
        known &= (kept[:, :_KEY_BYTES].copy().view(np.uint64)[:, :compared] == keys_B3[:, :compared]).all(axis=1)
        return known, kept[known, _KEY_BYTES:].copy().view(np.float32)

    def put(self, keys_B3: Keys, rows_BD: Floats, generation: int) -> None:
        """Keeps pooled rows."""
        kept: Bytes = np.concatenate([keys_B3.view(np.uint8), rows_BD.view(np.uint8)], axis=1)
        self._cache.put(_tags(keys_B3), kept, generation)

    def advance(self, generation: int) -> None:
        """Begins a generation, in which any bag may be another."""
        self._cache.advance(generation)


def _tags(keys_B3: Keys) -> Ints:
    return (keys_B3[:, 0] % np.uint64(_TAGS)).astype(np.int64)
