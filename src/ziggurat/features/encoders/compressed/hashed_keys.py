"""Finds known values by their 64-bit hashes, or by their place in a range of integers: bytes that a map really takes.

A vocabulary keeps the values themselves. A map that is to save memory keeps eight bytes a value, or nothing but a
place: integers that fill at least half of their range are found by counting from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.hashing import UInt64Array, hash_array
from ziggurat.core.untrusted import array
from ziggurat.features.versions import DAMAGED

Positions = npt.NDArray[np.int64]
ABSENT = -1
KEY_SEED = 0x6B657973
"""Seed of the hash by which maps know values; rows are hashed with others, so that the two are independent."""


def hash_keys(values: pa.Array) -> UInt64Array:
    """Returns the 64-bit hash by which maps know values, (n,) -> (n,)."""
    return hash_array(values, KEY_SEED)


@dataclass(frozen=True, slots=True)
class HashedKeys:
    """Known values, each with the position that it has in ``order``.

    Attributes:
        hashes: uint64 (n,): the hashes of the values, ascending.
        order: int32 (n,): the position of each; None if positions ascend with the hashes.
    """

    hashes: UInt64Array
    order: npt.NDArray[np.int32] | None

    @classmethod
    def of(cls, hashes: UInt64Array) -> Self:
        """Returns keys whose positions are those in ``hashes``, which are distinct."""
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], order.astype(np.int32))

    @property
    def nbytes(self) -> int:
        return self.hashes.nbytes + (0 if self.order is None else self.order.nbytes)

    def __len__(self) -> int:
        return len(self.hashes)

    def find(self, hashes: UInt64Array) -> Positions:
        """Returns the position of each hash, or -1."""
        if not len(self.hashes):
            return np.full(len(hashes), ABSENT, np.int64)
        slot = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        found = slot if self.order is None else self.order[slot].astype(np.int64)
        return np.where(self.hashes[slot] == hashes, found, ABSENT)

    def in_order(self) -> UInt64Array:
        """Returns the hashes by position."""
        if self.order is None:
            return self.hashes
        placed = np.empty_like(self.hashes)
        placed[self.order] = self.hashes
        return placed

    def to_arrays(self, name: str) -> dict[str, npt.NDArray[Any]]:
        """Returns what :meth:`from_arrays` reads."""
        arrays: dict[str, npt.NDArray[Any]] = {name: self.hashes}
        return arrays if self.order is None else {**arrays, f"{name}_order": self.order}

    @classmethod
    def from_arrays(cls, arrays: dict[str, npt.NDArray[Any]], name: str, what: str) -> Self:
        """Restores the keys.

        Raises:
            DataError: hashes do not ascend, or positions are not each one of theirs.
        """
        hashes = array(arrays, name, np.uint64, 1, what, DAMAGED)
        if np.any(hashes[1:] <= hashes[:-1]):
            raise DAMAGED.of(what, f"the hashes {name!r} do not ascend")
        if f"{name}_order" not in arrays:
            return cls(hashes, None)
        order = array(arrays, f"{name}_order", np.int32, 1, what, DAMAGED)
        whole = len(order) == len(hashes) and (not len(order) or (order.min() >= 0 and order.max() < len(order)))
        if not whole or np.any(np.bincount(order, minlength=len(order)) != 1):
            raise DAMAGED.of(what, f"the positions {name!r} are not those of its {len(hashes):,} values")
        return cls(hashes, order)
