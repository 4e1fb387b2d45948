"""Quotient–remainder encoder: two rows a value, from dividing its number, so that no two values share both.

The source is Shi et al. 2020 ("Compositional embeddings using complementary partitions for memory-efficient
recommendation systems", section 3). Both tables are parts of one here, and their rows are summed, not multiplied.

Rows: 0: missing values | quotients | remainders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pydantic

from ziggurat.core.hashing import hash_array, to_buckets
from ziggurat.features.encoders.encoder import EncoderSettings, Ids, State, ValueCounts
from ziggurat.features.versions import check_version, saved_integer

QUOTIENT_VERSION = 2
_READABLE_VERSIONS = (1, 2)
"""Version 1 divided the rows for hashes as for integers, so that only half of the values had a pair of rows alone."""


class QuotientRemainderConfig(EncoderSettings):
    """Divides a value's number, and sums the row of the quotient and that of the remainder.

    The number of an integer is its distance from the least one that occurs. Texts, and integers that are spread over
    more than eight times as many numbers, have none; theirs are hashes, and half of the rows are quotients, half
    remainders, which makes the most pairs of rows: values share both only by rare chance.
    """

    version: ClassVar[int] = QUOTIENT_VERSION

    name: Literal["quotient_remainder"] = "quotient_remainder"
    rows: int = pydantic.Field(ge=3)
    """Number of rows of the table; row 0 is reserved for missing values."""
    seed: int = 0
    """Seed of the hash of values without a number."""

    @property
    def codes(self) -> int:
        return 2

    def fit(self, counts: ValueCounts | None) -> QuotientRemainderEncoder:
        assert counts is not None
        low, remainders = None, max(1, (self.rows - 1) // 2)
        if pa.types.is_integer(counts.values.type) and len(counts.values):
            numbers: npt.NDArray[np.int64] = counts.values.to_numpy(zero_copy_only=False)
            least, most = int(numbers.min()), int(numbers.max())
            if most - least + 1 <= 8 * len(numbers):
                low, remainders = least, divisor(most - least + 1, self.rows - 1)
        return QuotientRemainderEncoder(self.rows, remainders, low, self.seed)

    @classmethod
    def encoder_class(cls) -> type[QuotientRemainderEncoder]:
        return QuotientRemainderEncoder


def divisor(span: int, rows: int) -> int:
    """Returns the largest divisor whose remainders, and the quotients of numbers below ``span``, have rows enough.

    If no divisor does, because ``span`` is more than the square of half the rows, it is half the rows.
    """
    low, high = rows // 2, rows - 1
    if low + -(-span // max(low, 1)) > rows:
        return max(low, 1)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if middle + -(-span // middle) <= rows else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True)
class QuotientRemainderEncoder:
    """``id = number // remainders`` and ``number % remainders``, each in a part of the table.

    Attributes:
        rows: rows of the table.
        remainders: the divisor.
        low: the least value; None: numbers are hashes.
        seed: seed of the hash.
    """

    rows: int
    remainders: int
    low: int | None
    seed: int

    @property
    def unknown_rows(self) -> range:
        return range(0)

    def transform(self, values: pa.Array) -> Ids:
        quotients = self.rows - 1 - self.remainders
        numbers = to_buckets(hash_array(values, self.seed), quotients * self.remainders)
        if self.low is not None:
            given: npt.NDArray[np.int64] = values.to_numpy(zero_copy_only=False)
            inside = (given >= self.low) & (given <= self.low + quotients * self.remainders - 1)
            numbers = np.where(inside, np.where(inside, given, self.low) - self.low, numbers)
        ids = np.empty((len(numbers), 2), np.int64)
        ids[:, 0] = 1 + numbers // self.remainders
        ids[:, 1] = 1 + quotients + numbers % self.remainders
        return ids

    def to_state(self) -> State:
        return {
            "name": "quotient_remainder",
            "version": QUOTIENT_VERSION,
            "rows": self.rows,
            "remainders": self.remainders,
            "low": self.low,
            "seed": self.seed,
        }, {}

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        del arrays
        check_version("quotient_remainder encoder", figures.get("version"), *_READABLE_VERSIONS)
        rows, remainders = saved_integer(figures, "rows", 3), saved_integer(figures, "remainders", 1)
        low = None if figures.get("low") is None else saved_integer(figures, "low", None)
        return cls(rows, min(remainders, rows - 2), low, saved_integer(figures, "seed", None))
