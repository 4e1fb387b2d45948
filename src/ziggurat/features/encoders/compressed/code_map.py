"""The codes that were learned for known values, in one of two forms.

``plain`` has four bytes a code. Values are known by eight bytes more, or by their place if they are integers that fill
at least half of their range; a place without a value takes four bytes too. ``compact`` is a static function: some 1.23
times the bits of codes and check bits, in bytes a value, and no keys. Its codes are those within a group of values, as
few bits tell few codes apart; the group follows from the hash of the value.

Shape legend: N values, W codes of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.hashing import UInt64Array, hash_integers
from ziggurat.core.untrusted import array
from ziggurat.features.encoders.compressed.hashed_keys import ABSENT, HashedKeys, hash_keys
from ziggurat.features.encoders.compressed.static_function import MOST_BITS, StaticFunction
from ziggurat.features.versions import DAMAGED, saved_integer

Codes = npt.NDArray[np.int32]
_FILLED = 2
"""Integers are found by their place if their range is at most this many times their number."""
_CHECK_SEED, _GROUP_SEED = 0x636865636B, 0x67726F7570


class CodeMap(Protocol):
    """Known values -> their codes."""

    @property
    def nbytes(self) -> int:
        """Bytes that the map takes."""
        ...

    def find(self, values: pa.Array, hashes: UInt64Array) -> Codes:
        """Returns the codes of values, (n, W): those of a value that is not known are -1.

        Args:
            values: the values.
            hashes: their hashes, from :func:`~ziggurat.features.encoders.compressed.hashed_keys.hash_keys`.
        """
        ...

    def to_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Returns what :func:`restored_map` reads."""
        ...


@dataclass(frozen=True, slots=True)
class PlainMap:
    """Codes with keys.

    Attributes:
        codes: int32 (N, W), by position of the key; in the order of the range if there are no keys.
        keys: the keys; None if the values are integers known by their place.
        low: the first integer of the range.
    """

    codes: Codes
    keys: HashedKeys | None
    low: int = 0

    @classmethod
    def of(cls, values: pa.Array | None, hashes: UInt64Array, codes: Codes) -> Self:
        """Returns the map of these values, whose hashes are distinct; where values are None, the hashes are keys."""
        if values is not None and pa.types.is_integer(values.type) and len(values):
            numbers: npt.NDArray[np.int64] = values.to_numpy(zero_copy_only=False)
            low, high = int(numbers.min()), int(numbers.max())
            if high - low + 1 <= _FILLED * len(numbers):
                table = np.full((high - low + 1, codes.shape[1]), ABSENT, np.int32)
                table[numbers - low] = codes
                return cls(table, None, low)
        order = np.argsort(hashes, kind="stable")
        return cls(codes[order], HashedKeys(hashes[order], None))

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + (0 if self.keys is None else self.keys.nbytes)

    def find(self, values: pa.Array, hashes: UInt64Array) -> Codes:
        if self.keys is not None:
            position = self.keys.find(hashes)
        else:
            numbers: npt.NDArray[np.int64] = values.to_numpy(zero_copy_only=False)
            inside = (numbers >= self.low) & (numbers <= self.low + len(self.codes) - 1)
            position = np.where(inside, np.where(inside, numbers, self.low) - self.low, ABSENT)
        if not len(self.codes):
            return np.full((len(position), self.codes.shape[1]), ABSENT, np.int32)
        return np.where(position[:, None] == ABSENT, ABSENT, self.codes[position])

    def entries(self) -> tuple[pa.Array | None, UInt64Array, Codes]:
        """Returns the known values, their hashes, and their codes; None for the values where keys stand for them."""
        has = np.flatnonzero(self.codes[:, 0] != ABSENT)
        if self.keys is not None:
            return None, self.keys.in_order()[has], self.codes[has]
        values = pa.array(self.low + has, pa.int64())
        return values, hash_keys(values), self.codes[has]

    def to_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        keys = {} if self.keys is None else self.keys.to_arrays("keys")
        return {"form": "plain", "low": self.low}, {"codes": np.ascontiguousarray(self.codes), **keys}


@dataclass(frozen=True, slots=True)
class Groups:
    """How rows are divided among groups of values, so that few bits tell the rows of a group apart.

    Attributes:
        rows: rows of each code's part of the table, W numbers.
        count: the number of groups.
        seed: seed of the hash that a value's group is drawn by.
    """

    rows: tuple[int, ...]
    count: int
    seed: int = 0

    @classmethod
    def of(cls, rows: tuple[int, ...], bits: int, seed: int = 0) -> Self:
        """Returns the fewest groups none of which has more than ``2**bits`` rows of a part."""
        return cls(rows, max(1, -(-max(rows) // 2**bits)), seed)

    def group(self, hashes: UInt64Array) -> npt.NDArray[np.int64]:
        """Returns the group of each value."""
        drawn = hash_integers(hashes.view(np.int64), seeded(_GROUP_SEED, self.seed))
        return (drawn % np.uint64(self.count)).astype(np.int64)

    def first(self, part: int, groups: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the first row of each group in a part."""
        return groups * self.rows[part] // self.count

    def size(self, part: int, group: int) -> int:
        """Returns the rows of a group in a part."""
        start = self.first(part, np.array([group, group + 1]))
        return int(start[1] - start[0])


@dataclass(frozen=True, slots=True)
class CompactMap:
    """Codes without keys, each of which counts from the first row of its value's group.

    Attributes:
        function: a value's codes within its group, and its check bits above them.
        groups: the groups.
        bits: bits of a code.
        check_bits: bits by which values that are not known are found out, all but one in ``2**check_bits`` of them.
    """

    function: StaticFunction
    groups: Groups
    bits: int
    check_bits: int

    @classmethod
    def of(cls, hashes: UInt64Array, within: Codes, groups: Groups, bits: int, check_bits: int) -> Self:
        """Returns the map of values with these hashes, which are distinct, and codes within their groups, (N, W)."""
        numbers = np.zeros(len(hashes), np.uint64)
        for part in range(within.shape[1]):
            numbers |= within[:, part].astype(np.uint64) << np.uint64(part * bits)
        width = within.shape[1] * bits
        numbers |= _checks(hashes, check_bits) << np.uint64(width)
        return cls(
            StaticFunction.build(hashes, numbers.astype(np.uint32), width + check_bits), groups, bits, check_bits
        )

    @property
    def nbytes(self) -> int:
        return self.function.nbytes

    def find(self, values: pa.Array, hashes: UInt64Array) -> Codes:
        del values
        numbers = self.function.find(hashes).astype(np.uint64)
        width = len(self.groups.rows) * self.bits
        known = (numbers >> np.uint64(width)) == _checks(hashes, self.check_bits)
        group = self.groups.group(hashes)
        codes = np.empty((len(hashes), len(self.groups.rows)), np.int32)
        for part, _ in enumerate(self.groups.rows):
            within = ((numbers >> np.uint64(part * self.bits)) & np.uint64(2**self.bits - 1)).astype(np.int64)
            first, after = self.groups.first(part, group), self.groups.first(part, group + 1)
            known &= within < after - first
            codes[:, part] = first + within
        return np.where(known[:, None], codes, ABSENT)

    def to_state(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        figures, packed = self.function.to_state()
        settings = {"groups": self.groups.count, "code_bits": self.bits, "check_bits": self.check_bits}
        return {"form": "compact", "function": figures, **settings}, {"packed": packed}


def restored_map(
    figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]], rows: tuple[int, ...], what: str, seed: int = 0
) -> CodeMap:
    """Restores a map from its state.

    Args:
        figures: its JSON.
        arrays: its arrays.
        rows: rows of each code's part of the table.
        what: the encoder, for messages.
        seed: seed of the groups of a compact map.

    Raises:
        DataError: the state is damaged.
    """
    if figures.get("form") == "compact":
        function = figures.get("function")
        if not isinstance(function, dict) or "packed" not in arrays:
            raise DAMAGED.of(what, "its compact map is not complete")
        restored = StaticFunction.from_state(function, arrays["packed"], what)
        bits, check_bits = saved_integer(figures, "code_bits", 1), saved_integer(figures, "check_bits", 0)
        count = saved_integer(figures, "groups", 1)
        if len(rows) * bits + check_bits != restored.bits or Groups.of(rows, bits).count != count:
            raise DAMAGED.of(what, f"its map has {restored.bits} bits and {count:,} groups, which its rows contradict")
        return CompactMap(restored, Groups(rows, count, seed), bits, check_bits)
    if figures.get("form") != "plain":
        raise DAMAGED.of(what, "its map is neither plain nor compact")
    codes = array(arrays, "codes", np.int32, 2, what, DAMAGED)
    keys = HashedKeys.from_arrays(arrays, "keys", what) if "keys" in arrays else None
    if codes.shape[1] != len(rows) or (keys is not None and len(keys) != len(codes)):
        raise DAMAGED.of(what, f"its map has {codes.shape[1]} codes of {len(codes):,} values, which do not fit")
    if len(codes) and (codes.min() < ABSENT or np.any(codes.max(axis=0) >= np.array(rows))):
        raise DAMAGED.of(what, "a code of its map is outside the table")
    return PlainMap(codes, keys, saved_integer(figures, "low", None))


def seeded(purpose: int, seed: int) -> int:
    """Returns the seed of a hash for one purpose; for ``seed`` 0 it is ``purpose`` itself, as in earlier versions."""
    return (purpose + (seed << 40)) % 2**63


def most_code_bits(parts: int, check_bits: int) -> int:
    """Returns the most bits that a code of a compact map can have."""
    return (MOST_BITS - check_bits) // parts


def _checks(hashes: UInt64Array, bits: int) -> UInt64Array:
    if not bits:
        return np.zeros(len(hashes), np.uint64)
    return hash_integers(hashes.view(np.int64), _CHECK_SEED) & np.uint64(2**bits - 1)
