"""Hash encoder: maps any value to one of a fixed number of rows, without a vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy.typing as npt
import pyarrow as pa
import pydantic

from ziggurat.core.hashing import HASH_VERSION, hash_array, to_buckets
from ziggurat.features.encoders.encoder import EncoderSettings, Ids, State, ValueCounts
from ziggurat.features.versions import check_version, saved_integer


class HashConfig(EncoderSettings):
    """Maps values to rows by a hash. It needs no fitting and has a fixed size, but values may collide."""

    version: ClassVar[int] = HASH_VERSION
    counts_values: ClassVar[bool] = False

    name: Literal["hash"] = "hash"
    rows: int = pydantic.Field(ge=2)
    """Number of rows of the table; row 0 is reserved for missing values."""
    seed: int = 0
    """Seed of the hash; it determines which values collide."""

    def fit(self, counts: ValueCounts | None) -> HashEncoder:
        del counts
        return HashEncoder(self.rows, self.seed)

    @classmethod
    def encoder_class(cls) -> type[HashEncoder]:
        return HashEncoder


@dataclass(frozen=True, slots=True)
class HashEncoder:
    """``id = 1 + hash(value, seed) mod (rows - 1)``; row 0 is reserved for missing values."""

    rows: int
    seed: int

    @property
    def unknown_rows(self) -> range:
        return range(0)

    def transform(self, values: pa.Array) -> Ids:
        return 1 + to_buckets(hash_array(values, self.seed), self.rows - 1)

    def to_state(self) -> State:
        return {"name": "hash", "version": HASH_VERSION, "rows": self.rows, "seed": self.seed}, {}

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        del arrays
        check_version("hash encoder", figures.get("version"), HASH_VERSION)
        rows, seed = saved_integer(figures, "rows", 2), saved_integer(figures, "seed", None)
        return cls(rows, seed)
