"""Vocabulary encoder: each known value has a row of its own, and unknown values share a few rows.

Rows: 0: missing values | 1..oov_rows: out-of-vocabulary values, assigned by a hash of the value | then the known
values, those most frequent in training first; ties are ordered by value (integers by size, text by its UTF-8 bytes).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pydantic

from ziggurat.core.errors import shorten
from ziggurat.core.hashing import hash_array, to_buckets
from ziggurat.core.untrusted import array, arrow_errors
from ziggurat.features.encoders.encoder import MISSING_ROW, EncoderSettings, Ids, State, ValueCounts
from ziggurat.features.encoders.key_lookup import IntegerIndex, TextIndex, blob_to_text, text_to_blob
from ziggurat.features.versions import DAMAGED, check_version, saved_integer

VOCABULARY_VERSION = 1


class VocabularyConfig(EncoderSettings):
    """Gives a row to every value that occurs often enough in training."""

    version: ClassVar[int] = VOCABULARY_VERSION

    name: Literal["vocabulary"] = "vocabulary"
    min_count: int = pydantic.Field(default=1, ge=1)
    """Values that occur less often than this in the training rows are unknown values."""
    max_size: int | None = pydantic.Field(default=None, ge=1)
    """Maximum number of known values; the most frequent ones are kept. null: no maximum."""
    oov_rows: int = pydantic.Field(default=1, ge=0)
    """Number of rows that unknown values share; with 0, they use the row of missing values."""

    def fit(self, counts: ValueCounts | None) -> VocabularyEncoder:
        assert counts is not None
        return VocabularyEncoder.fit(self, counts)

    def fit_with_ids(self, counts: ValueCounts) -> tuple[VocabularyEncoder, Ids]:
        return VocabularyEncoder.fit_with_ids(self, counts)

    @classmethod
    def encoder_class(cls) -> type[VocabularyEncoder]:
        return VocabularyEncoder


class VocabularyEncoder:
    """The encoder of a table with a vocabulary.

    Attributes:
        keys: the known values, in the order of their rows.
        oov_rows: number of rows of unknown values.
    """

    def __init__(self, keys: pa.Array, oov_rows: int) -> None:
        """``keys``: distinct int64 or string values, most frequent first."""
        self.keys = keys
        self.oov_rows = oov_rows
        self._index = IntegerIndex(keys.to_numpy()) if pa.types.is_integer(keys.type) else TextIndex(keys)

    @classmethod
    def fit(cls, config: VocabularyConfig, counts: ValueCounts) -> Self:
        """Returns the encoder of the values that occur at least ``min_count`` times."""
        return cls.fit_with_ids(config, counts)[0]

    @classmethod
    def fit_with_ids(cls, config: VocabularyConfig, counts: ValueCounts) -> tuple[Self, Ids]:
        """Returns the fitted encoder with the ids of ``counts.values``, which need not be looked up here."""
        frequent = np.flatnonzero(counts.counts >= config.min_count)
        frame = pl.DataFrame(
            {"value": pl.from_arrow(counts.values.take(pa.array(frequent))), "count": counts.counts[frequent]}
        )
        order = frame.select(pl.arg_sort_by("count", "value", descending=[True, False])).to_series().to_numpy()
        known = frequent[order[: config.max_size]]
        vocabulary = cls(counts.values.take(pa.array(known)), config.oov_rows)
        ids = np.full(len(counts.values), config.oov_rows, np.int64)
        ids[known] = 1 + config.oov_rows + np.arange(len(known))
        return vocabulary, vocabulary._assign_unknown(ids, counts.values)

    @property
    def rows(self) -> int:
        return 1 + self.oov_rows + len(self.keys)

    @property
    def unknown_rows(self) -> range:
        return range(1, 1 + self.oov_rows) if self.oov_rows else range(MISSING_ROW, MISSING_ROW + 1)

    def transform(self, values: pa.Array) -> Ids:
        ids = self._index.find(values) + (1 + self.oov_rows)  # the index gives -1 for unknown values
        return self._assign_unknown(ids, values)

    def _assign_unknown(self, ids: Ids, values: pa.Array) -> Ids:
        """Replaces the id ``oov_rows``, which marks unknown values, by the row of each unknown value."""
        if self.oov_rows > 1:
            unknown = np.flatnonzero(ids == self.oov_rows)
            ids[unknown] = 1 + to_buckets(hash_array(values.take(pa.array(unknown))), self.oov_rows)
        return ids  # a single row of unknown values is row 1 = oov_rows; without one, they have the missing row 0

    def to_state(self) -> State:
        figures = {"name": "vocabulary", "version": VOCABULARY_VERSION, "oov_rows": self.oov_rows}
        if pa.types.is_integer(self.keys.type):
            return {**figures, "type": "integer"}, {"keys": self.keys.to_numpy()}
        blob, offsets = text_to_blob(self.keys)
        return {**figures, "type": "text"}, {"text": blob, "offsets": offsets}

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        check_version("vocabulary", figures.get("version"), VOCABULARY_VERSION)
        oov_rows, what = saved_integer(figures, "oov_rows", 0), "vocabulary"
        if figures.get("type") == "integer":
            return cls(pa.array(array(arrays, "keys", np.int64, 1, what, DAMAGED), pa.int64()), oov_rows)
        if figures.get("type") != "text":
            raise DAMAGED.of(what, f"type is {shorten(figures.get('type'))}; allowed: integer, text")
        text = array(arrays, "text", np.uint8, 1, what, DAMAGED)
        offsets = array(arrays, "offsets", np.int64, 1, what, DAMAGED)
        if not len(offsets) or offsets[0] != 0 or offsets[-1] != len(text) or np.any(offsets[1:] < offsets[:-1]):
            raise DAMAGED.of(what, "the offsets of its texts do not ascend from 0 to the end of the last one")
        with arrow_errors(what, DAMAGED):
            keys = blob_to_text(text, offsets)
            keys.validate(full=True)
        return cls(keys, oov_rows)
