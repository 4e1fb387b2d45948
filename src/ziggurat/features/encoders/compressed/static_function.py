"""A function from known 64-bit keys to small numbers that stores the numbers but not the keys.

The construction is that of Majewski, Wormald, Havas and Czech 1996 ("A family of perfect hashing methods"), as used by
Bloomier filters: a key has three slots, one in each third of an array, and its number is the exclusive or of what these
hold. With 1.23 slots a key, an order in which each key has a slot of its own can be found by peeling; slots are then
filled in the reverse order. Peeling here takes whole rounds at once, so that numpy does the work: in a round, every
slot that a single key is left with gives that key its place.

A key that was not known gets some number. Where that matters, the caller stores a few bits of the key beside the
number, and compares them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ziggurat.core.hashing import UInt64Array, hash_integers
from ziggurat.core.untrusted import array
from ziggurat.features.versions import DAMAGED, saved_integer

Numbers = npt.NDArray[np.uint32]

MOST_BITS = 32
_SLOTS_PER_KEY = 1.23
_SPARE_SLOTS = 32
_MOST_SEEDS = 64
_GUARD_BYTES = 8
"""A number is read as eight bytes from its first one on, also the last number."""


def _third(keys: int) -> int:
    return int(keys * _SLOTS_PER_KEY / 3) + _SPARE_SLOTS


@dataclass(frozen=True, slots=True)
class StaticFunction:
    """The numbers of known keys, without the keys.

    Attributes:
        bits: bits of a number, 1 to 32.
        seed: seed of the hash that spreads the keys over the slots.
        third: slots in each third of the array.
        packed: uint8: the numbers of all slots, ``bits`` bits each, the lowest ones first; then eight bytes of zeros.
    """

    bits: int
    seed: int
    third: int
    packed: npt.NDArray[np.uint8]

    @classmethod
    def build(cls, keys: UInt64Array, numbers: Numbers, bits: int) -> Self:
        """Returns the function of these keys; a seed whose slots cannot be peeled is followed by the next one.

        Args:
            keys: distinct keys (n,).
            numbers: their numbers (n,), each below ``2**bits``.
            bits: bits to store, 1 to 32.
        """
        assert 1 <= bits <= MOST_BITS
        assert not len(numbers) or int(numbers.max()) < 2**bits
        third = _third(len(keys))
        for seed in range(_MOST_SEEDS):
            slots_3N = _slots(keys, seed, third)
            rounds = _peel(slots_3N, 3 * third)
            if rounds is not None:
                return cls(bits, seed, third, _pack(_fill(slots_3N, rounds, numbers, 3 * third), bits))
        raise AssertionError("keys occur twice")

    @staticmethod
    def bytes_of(keys: int, bits: int) -> int:
        """Returns the bytes that the function of so many keys takes."""
        return _packed_bytes(3 * _third(keys), bits)

    @property
    def nbytes(self) -> int:
        """Bytes that the function takes."""
        return self.packed.nbytes

    def find(self, keys: UInt64Array) -> Numbers:
        """Returns the number of each key (n,); that of a key that was not known is arbitrary, but always the same."""
        found = np.zeros(len(keys), np.uint32)
        for slots_N in _slots(keys, self.seed, self.third):
            found ^= _unpack(self.packed, slots_N.astype(np.int64), self.bits)
        return found

    def to_state(self) -> tuple[dict[str, Any], npt.NDArray[np.uint8]]:
        """Returns what :meth:`from_state` reads."""
        return {"bits": self.bits, "seed": self.seed, "third": self.third}, self.packed

    @classmethod
    def from_state(cls, figures: dict[str, Any], packed: npt.NDArray[Any], what: str) -> Self:
        """Restores the function.

        Raises:
            DataError: the state is damaged.
        """
        bits, seed = saved_integer(figures, "bits", 1), saved_integer(figures, "seed", 0)
        third = saved_integer(figures, "third", 1)
        found = array({"packed": packed}, "packed", np.uint8, 1, what, DAMAGED)
        if bits > MOST_BITS or len(found) != _packed_bytes(3 * third, bits):
            raise DAMAGED.of(
                what, f"its map has {len(found):,} bytes, which {3 * third:,} numbers of {bits} bits do not"
            )
        return cls(bits, seed, third, found)


def _slots(keys: UInt64Array, seed: int, third: int) -> npt.NDArray[np.uint32]:
    """Returns the slots of each key, (3, n)."""
    slots_3N = np.empty((3, len(keys)), np.uint32)
    for place in range(3):
        hashes = hash_integers(keys.view(np.int64), 3 * seed + place)
        slots_3N[place] = (hashes % np.uint64(third)).astype(np.uint32) + np.uint32(place * third)
    return slots_3N


def _peel(slots_3N: npt.NDArray[np.uint32], slots: int) -> list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] | None:
    """Returns rounds of (keys, the slot that is each one's own); None if some keys cannot be peeled."""
    count = slots_3N.shape[1]
    degree = np.bincount(slots_3N.ravel(), minlength=slots).astype(np.int32)
    owners = np.zeros(slots, np.uint32)  # exclusive or of the keys that are left in a slot
    for slots_N in slots_3N:
        np.bitwise_xor.at(owners, slots_N, np.arange(count, dtype=np.uint32))
    rounds: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
    single = np.flatnonzero(degree == 1)
    left = count
    while len(single):
        keys, first = np.unique(owners[single], return_index=True)
        own = single[first]
        rounds.append((keys, own))
        left -= len(keys)
        touched = slots_3N[:, keys]
        np.subtract.at(degree, touched.ravel(), 1)
        for slots_N in touched:
            np.bitwise_xor.at(owners, slots_N, keys)
        candidates = np.unique(touched)
        single = candidates[degree[candidates] == 1]
    return rounds if left == 0 else None


def _fill(
    slots_3N: npt.NDArray[np.uint32],
    rounds: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]],
    numbers: Numbers,
    slots: int,
) -> Numbers:
    """Returns the number of each slot. Within a round, the own slot of a key is none of any other key's slots."""
    filled = np.zeros(slots, np.uint32)
    for keys, own in reversed(rounds):
        first, second, third = slots_3N[:, keys]
        filled[own] = numbers[keys] ^ filled[first] ^ filled[second] ^ filled[third]  # the own slot holds 0 still
    return filled


def _packed_bytes(slots: int, bits: int) -> int:
    return -(-slots * bits // 8) + _GUARD_BYTES


def _pack(numbers: Numbers, bits: int) -> npt.NDArray[np.uint8]:
    planes = np.empty((len(numbers), bits), np.uint8)
    for bit in range(bits):
        planes[:, bit] = (numbers >> np.uint32(bit)) & np.uint32(1)
    packed = np.packbits(planes.ravel(), bitorder="little")
    return np.concatenate([packed, np.zeros(_packed_bytes(len(numbers), bits) - len(packed), np.uint8)])


def _unpack(packed: npt.NDArray[np.uint8], slots: npt.NDArray[np.int64], bits: int) -> Numbers:
    first = slots * bits
    start, shift = first >> 3, (first & 7).astype(np.uint64)
    words = np.zeros(len(slots), np.uint64)
    for byte in range(-(-(bits + 7) // 8)):
        words |= packed[start + byte].astype(np.uint64) << np.uint64(8 * byte)
    return ((words >> shift) & np.uint64(2**bits - 1)).astype(np.uint32)
