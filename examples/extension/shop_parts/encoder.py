"""An encoder of ids: each id seen often enough has a row; a rare id shares a row with those of its first characters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
from pydantic import PositiveInt

from ziggurat.extension import Encoder, EncoderSettings, Ids, State, ValueCounts


@dataclass(frozen=True, slots=True)
class PrefixEncoder(Encoder):
    """Row 0: missing. Row 1: an unknown id with an unknown prefix. Then the prefixes, then the frequent ids.

    Attributes:
        length: characters of a prefix.
        prefixes: the known prefixes, in the order of their rows.
        keys: the frequent ids, in the order of their rows.
    """

    length: int
    prefixes: tuple[str, ...]
    keys: tuple[str, ...]

    class Config(EncoderSettings):
        """A row for frequent ids, and one for each prefix of the others."""

        version: ClassVar[int] = 1

        length: PositiveInt = 2
        """Characters of a prefix."""
        min_count: PositiveInt = 5
        """Training rows in which an id must occur to have a row of its own."""

        def fit(self, counts: ValueCounts | None) -> PrefixEncoder:
            assert counts is not None
            texts = np.array([str(value) for value in counts.values.to_pylist()], dtype=object)
            trained = texts[counts.counts > 0]
            frequent = texts[counts.counts >= self.min_count]
            prefixes = sorted({text[: self.length] for text in trained})
            return PrefixEncoder(self.length, tuple(prefixes), tuple(sorted(frequent)))

        @classmethod
        def encoder_class(cls) -> type[PrefixEncoder]:
            return PrefixEncoder

    @property
    def rows(self) -> int:
        return 2 + len(self.prefixes) + len(self.keys)

    @property
    def unknown_rows(self) -> range:
        return range(1, 2 + len(self.prefixes))

    def transform(self, values: pa.Array) -> Ids:
        texts = pl.Series(values=values).cast(pl.String)
        first_key = 2 + len(self.prefixes)
        by_key = {key: first_key + row for row, key in enumerate(self.keys)}
        by_prefix = {prefix: 2 + row for row, prefix in enumerate(self.prefixes)}
        known = texts.replace_strict(by_key, default=None, return_dtype=pl.Int64)
        shared = texts.str.slice(0, self.length).replace_strict(by_prefix, default=1, return_dtype=pl.Int64)
        return known.fill_null(shared).to_numpy().astype(np.int64)

    def to_state(self) -> State:
        return {"version": 1, "length": self.length, "prefixes": list(self.prefixes), "keys": list(self.keys)}, {}

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        del arrays
        return cls(int(figures["length"]), tuple(figures["prefixes"]), tuple(figures["keys"]))
