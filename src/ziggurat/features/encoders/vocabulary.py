"""Vocabulary encoder: each known value has its own row, the rest share a few.

Rows: 0 missing | 1..oov_rows out of vocabulary, one picked by a hash of the value | then the known values, the most
frequent in training first, ties by value (integers by size, text by its UTF-8 bytes).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pydantic

from ziggurat.core.hashing import hash_array, to_buckets
from ziggurat.features.encoders.encoder import MISSING_ROW, EncoderSettings, Ids, State, ValueCounts
from ziggurat.features.encoders.key_lookup import IntegerIndex, TextIndex, blob_to_text, text_to_blob
from ziggurat.features.versions import check_version

VOCABULARY_VERSION = 1


class VocabularyConfig(EncoderSettings):
    """A row for every value seen often enough in training."""

    version: ClassVar[int] = VOCABULARY_VERSION

    name: Literal["vocabulary"] = "vocabulary"
    min_count: int = pydantic.Field(default=1, ge=1)
    """Values that occur less often in the training rows count as unknown."""
    max_size: int | None = pydantic.Field(default=None, ge=1)
    """At most this many known values, the most frequent; null: all."""
    oov_rows: int = pydantic.Field(default=1, ge=0)
    """Rows shared by unknown values; 0 gives them the row of missing values."""

    def fit(self, counts: ValueCounts | None) -> VocabularyEncoder:
        assert counts is not None
        return VocabularyEncoder.fit(self, counts)

    def fit_with_ids(self, counts: ValueCounts) -> tuple[VocabularyEncoder, Ids]:
        return VocabularyEncoder.fit_with_ids(self, counts)

    @classmethod
    def encoder_class(cls) -> type[VocabularyEncoder]:
        return VocabularyEncoder


class VocabularyEncoder:
    """The known values of a table, in the order of their rows."""

    def __init__(self, keys: pa.Array, oov_rows: int) -> None:
        """``keys``: distinct int64 or string values, most frequent first."""
        self.keys = keys
        self.oov_rows = oov_rows
        self._index = IntegerIndex(keys.to_numpy()) if pa.types.is_integer(keys.type) else TextIndex(keys)

    @classmethod
    def fit(cls, config: VocabularyConfig, statistics: ValueCounts) -> Self:
        """The vocabulary of the values that occur at least ``min_count`` times."""
        return cls.fit_with_ids(config, statistics)[0]

    @classmethod
    def fit_with_ids(cls, config: VocabularyConfig, statistics: ValueCounts) -> tuple[Self, Ids]:
        """The same, with what its :meth:`transform` makes of ``statistics.values``: known without looking them up."""
        frequent = np.flatnonzero(statistics.counts >= config.min_count)
        frame = pl.DataFrame(
            {"value": pl.from_arrow(statistics.values.take(pa.array(frequent))), "count": statistics.counts[frequent]}
        )
        order = frame.select(pl.arg_sort_by("count", "value", descending=[True, False])).to_series().to_numpy()
        known = frequent[order[: config.max_size]]
        vocabulary = cls(statistics.values.take(pa.array(known)), config.oov_rows)
        ids = np.full(len(statistics.values), config.oov_rows, np.int64)
        ids[known] = 1 + config.oov_rows + np.arange(len(known))
        return vocabulary, vocabulary._place_unknown(ids, statistics.values)

    @property
    def rows(self) -> int:
        return 1 + self.oov_rows + len(self.keys)

    @property
    def unknown_rows(self) -> range:
        return range(1, 1 + self.oov_rows) if self.oov_rows else range(MISSING_ROW, MISSING_ROW + 1)

    def transform(self, values: pa.Array) -> Ids:
        ids = self._index.find(values) + (1 + self.oov_rows)  # the index answers -1 for the unknown
        return self._place_unknown(ids, values)

    def _place_unknown(self, ids: Ids, values: pa.Array) -> Ids:
        """Replace the id ``oov_rows``, which stands for "unknown" until here, by the row of each unknown value."""
        if self.oov_rows > 1:
            unknown = np.flatnonzero(ids == self.oov_rows)
            ids[unknown] = 1 + to_buckets(hash_array(values.take(pa.array(unknown))), self.oov_rows)
        return ids  # with a single row for unknown values it is row 1 = oov_rows; with none, the missing row 0

    def to_state(self) -> State:
        figures = {"name": "vocabulary", "version": VOCABULARY_VERSION, "oov_rows": self.oov_rows}
        if pa.types.is_integer(self.keys.type):
            return {**figures, "type": "integer"}, {"keys": self.keys.to_numpy()}
        blob, offsets = text_to_blob(self.keys)
        return {**figures, "type": "text"}, {"text": blob, "offsets": offsets}

    @classmethod
    def from_state(cls, figures: dict[str, Any], arrays: dict[str, npt.NDArray[Any]]) -> Self:
        check_version("vocabulary", figures["version"], VOCABULARY_VERSION)
        if figures["type"] == "integer":
            return cls(pa.array(arrays["keys"], pa.int64()), int(figures["oov_rows"]))
        return cls(blob_to_text(arrays["text"], arrays["offsets"]), int(figures["oov_rows"]))
