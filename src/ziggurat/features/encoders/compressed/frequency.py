"""Encoders that know frequent values only: private rows before a hash, one or two hashed rows, and bands of frequency.

Rows: 0: missing values | private rows, the most frequent value first | rows shared by hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pydantic

from ziggurat.core.errors import shorten
from ziggurat.core.hashing import UInt64Array, hash_array, to_buckets
from ziggurat.features.encoders.compressed.hashed_keys import ABSENT, HashedKeys, hash_keys
from ziggurat.features.encoders.encoder import EncoderSettings, Ids, State, ValueCounts
from ziggurat.features.versions import DAMAGED, check_version, saved_integer

FREQUENCY_VERSION = 1
_NAMES = ("frequency_hash", "double_hash", "frequency_band")


class _FrequencySettings(EncoderSettings):
    version: ClassVar[int] = FREQUENCY_VERSION

    seed: int = 0
    """Seed of the hash; it determines which values collide."""

    @classmethod
    def encoder_class(cls) -> type[FrequencyEncoder]:
        return FrequencyEncoder


class FrequencyHashConfig(_FrequencySettings):
    """Gives the most frequent values a row of their own, and all others one by a hash."""

    name: Literal["frequency_hash"] = "frequency_hash"
    rows: int = pydantic.Field(ge=2)
    """Number of rows of the table; row 0 is reserved for missing values."""
    private_rows: int = pydantic.Field(ge=0)
    """Number of the most frequent values, each of which has a row of its own."""

    @pydantic.model_validator(mode="after")
    def _rows_to_share(self) -> Self:
        _check_rows(self.rows, self.private_rows)
        return self

    def fit(self, counts: ValueCounts | None) -> FrequencyEncoder:
        return _fitted(self, counts)


class DoubleHashConfig(_FrequencySettings):
    """Gives a value two rows by two hashes, which are summed: few values share both.

    The source is Zhang et al. 2020 ("Model size reduction using frequency based double hashing for recommender
    systems"), with private rows for the most frequent values; both hashes share one table here.
    """

    name: Literal["double_hash"] = "double_hash"
    rows: int = pydantic.Field(ge=2)
    """Number of rows of the table; row 0 is reserved for missing values."""
    private_rows: int = pydantic.Field(default=0, ge=0)
    """Number of the most frequent values, each of which has one row, of its own."""

    @property
    def codes(self) -> int:
        return 2

    @pydantic.model_validator(mode="after")
    def _rows_to_share(self) -> Self:
        _check_rows(self.rows, self.private_rows)
        return self

    def fit(self, counts: ValueCounts | None) -> FrequencyEncoder:
        return _fitted(self, counts)


class FrequencyBandConfig(_FrequencySettings):
    """Gives rows to the values of a band of frequency, and row 0, that of missing values, to all others.

    Several features of one column, with a band and a table each, make mixed dimensions (Ginart et al. 2019,
    arXiv 1909.11810): give narrow tables to rare bands, and combine the features in a group with an empty ``mlp``.
    """

    name: Literal["frequency_band"] = "frequency_band"
    first: int = pydantic.Field(default=0, ge=0)
    """How many more frequent values are left to other bands."""
    values: int | None = pydantic.Field(default=None, ge=0)
    """Number of values of the band; null: all that are left; 0 leaves hashed rows alone."""
    hashed_rows: int = pydantic.Field(default=0, ge=0)
    """Rows that values which occur in no band share by hash, for the last band; 0: they look up row 0."""

    def fit(self, counts: ValueCounts | None) -> FrequencyEncoder:
        assert counts is not None
        ranked = most_frequent(counts)
        stop = None if self.values is None else self.first + self.values
        before = ranked[: self.first] if self.hashed_rows else ranked[:0]
        keys = HashedKeys.of(np.concatenate([ranked[self.first : stop], before]))
        return FrequencyEncoder(self.name, keys, self.hashed_rows, 1, self.seed, len(before))


def most_frequent(counts: ValueCounts) -> UInt64Array:
    """Returns the hashes of the values that occur, the most frequent first, those of equal counts by hash."""
    seen = np.flatnonzero(counts.counts > 0)
    hashes = hash_keys(counts.values.take(pa.array(seen)))
    ranked = hashes[np.lexsort((hashes, -counts.counts[seen]))]
    _, first = np.unique(ranked, return_index=True)
    return ranked if len(first) == len(ranked) else ranked[np.sort(first)]


@dataclass(frozen=True, slots=True)
class FrequencyEncoder:
    """Private rows for some values, hashed ones for the others.

    Attributes:
        name: the name of its config.
        keys: the values with rows of their own, by row; then those of other bands.
        shared: rows by hash; 0: values without a row of their own look up row 0.
        codes: hashed rows of a value.
        seed: seed of the hash.
        elsewhere: how many of ``keys``, the last ones, are values of other bands, which look up row 0.
    """

    name: str
    keys: HashedKeys
    shared: int
    codes: int
    seed: int
    elsewhere: int = 0

    @property
    def rows(self) -> int:
        return 1 + self._private + self.shared

    @property
    def _private(self) -> int:
        return len(self.keys) - self.elsewhere

    @property
    def unknown_rows(self) -> range:
        return range(0)

    @property
    def map_bytes(self) -> int:
        """Bytes of the keys."""
        return self.keys.nbytes

    def transform(self, values: pa.Array) -> Ids:
        position = self.keys.find(hash_keys(values))
        ids = np.full((len(values), self.codes), ABSENT, np.int64)
        for code in range(self.codes):
            hashed = to_buckets(hash_array(values, self.seed + code), self.shared) if self.shared else -1
            ids[:, code] = (1 + self._private + hashed) if self.shared else 0
        known = position != ABSENT
        ids[known] = ABSENT
        ids[known, 0] = np.where(position[known] < self._private, 1 + position[known], 0)
        return ids[:, 0] if self.codes == 1 else ids

    def to_state(self) -> State:
        return {
            "name": self.name,
            "version": FREQUENCY_VERSION,
            "shared": self.shared,
            "codes": self.codes,
            "seed": self.seed,
            "elsewhere": self.elsewhere,
            "map_bytes": self.map_bytes,
        }, self.keys.to_arrays("keys")

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        name = figures.get("name")
        check_version(str(name), figures.get("version"), FREQUENCY_VERSION)
        what = f"{shorten(name)} encoder"
        if name not in _NAMES:
            raise DAMAGED.of(what, f"expected one of {', '.join(_NAMES)}")
        keys, codes = HashedKeys.from_arrays(arrays, "keys", what), saved_integer(figures, "codes", 1)
        shared, elsewhere = saved_integer(figures, "shared", 0), saved_integer(figures, "elsewhere", 0)
        if elsewhere > len(keys) or codes > 2 or (codes == 2 and not shared):
            raise DAMAGED.of(what, f"{codes} codes, {shared:,} shared rows and {elsewhere:,} values elsewhere")
        return cls(name, keys, shared, codes, saved_integer(figures, "seed", None), elsewhere)


def _check_rows(rows: int, private: int) -> None:
    if rows - 1 - private < 1:
        raise ValueError(
            f"private_rows: {rows:,} rows, less one for missing values and {private:,} private ones, leave none"
        )


def _fitted(config: FrequencyHashConfig | DoubleHashConfig, counts: ValueCounts | None) -> FrequencyEncoder:
    """Returns the encoder that gives the most frequent values rows of their own, and hashes the others."""
    assert counts is not None
    keys = HashedKeys.of(most_frequent(counts)[: config.private_rows])
    return FrequencyEncoder(config.name, keys, config.rows - 1 - len(keys), config.codes, config.seed)
