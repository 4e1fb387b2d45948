"""Matches the rows of a table between two fitted transforms: which row of the other table represents the same value?

The rows of a vocabulary are ordered by frequency, so a value's row differs between transforms that were fitted on
different data. In names and messages, ``here`` is the transform that takes rows over, and ``there`` is the one that
they come from.

Shape legend: R rows of the table here, L selected rows of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.schema import ValueType
from ziggurat.features.compressed_rows import CompressedEncoder, compressed_difference, match_compressed
from ziggurat.features.config import FeatureConfig, NumericFeature
from ziggurat.features.encoders.encoder import MISSING_ROW
from ziggurat.features.encoders.files import arrays_checksum, encoder_settings
from ziggurat.features.encoders.key_lookup import ABSENT
from ziggurat.features.encoders.origin import same_fit
from ziggurat.features.encoders.vocabulary import VocabularyEncoder
from ziggurat.features.inputs.of_features import inputs_of
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.saved_transform import TRANSFORM_FILE, SavedTransform
from ziggurat.features.tables import resolve_tables
from ziggurat.features.versions import DAMAGED

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowMatch:
    """Maps the rows of a table here to the rows of the table there that represent the same values.

    Attributes:
        size: number of rows here.
        size_there: number of rows there.
        matched: number of rows here that have a row there.
        rows_R: int64: the row there of each row here, or -1. None if each of the first ``matched`` rows has the same
            number there.
        note: what could not be matched although both tables have it, for the user.
    """

    size: int
    size_there: int
    matched: int
    rows_R: Rows | None = None
    note: str | None = None

    def of(self, rows_L: Rows) -> Rows:
        """Returns the row there of each of these rows here, or -1."""
        if self.rows_R is not None:
            return self.rows_R[rows_L]
        return np.where(rows_L < self.matched, rows_L, ABSENT)


class FittedTables:
    """The tables of a saved transform; encoders are loaded on demand.

    Args:
        folder: a folder that :meth:`~ziggurat.features.transform.Transform.save` or preparation wrote.
        features: the features that the transform was fitted for.
        checksum: the checksum that the transform must have, if that was recorded.

    Raises:
        DataError: a file is missing, damaged, another than the recorded one, or was saved in another version.
    """

    def __init__(self, folder: Path, features: Sequence[FeatureConfig], checksum: str | None = None) -> None:
        self._folder = folder
        self._tables = resolve_tables(features)
        self._saved = SavedTransform.open(folder, checksum)
        chains = {feature.name for feature in inputs_of(features) if isinstance(feature, NumericFeature)}
        if {*self._saved.tables()} != self._tables.keys() or self._saved.chains.keys() != chains:
            raise DAMAGED.of(folder / TRANSFORM_FILE, "was fitted for other features than those of the config")

    @property
    def chains(self) -> dict[str, NumericChain]:
        """The chains of the numeric features, by feature."""
        return self._saved.chains

    def settings(self, table: str) -> dict[str, Any]:
        """Returns the JSON that a table's encoder has saved; for a bucketised number, the steps of its chain."""
        if table not in self._tables:
            return {"name": "bucketise", "steps": self.chains[table].to_json()["steps"]}
        settings = encoder_settings(self._folder, table, self._saved.files)
        if "import" not in settings and settings.get("name") != "vocabulary":
            self._saved.encoder(table)  # checks the settings, which are all that such an encoder saves
        return settings

    def arrays_checksum(self, table: str) -> str:
        """Returns a checksum of the arrays that an encoder has saved; empty if there are none."""
        return arrays_checksum(self._folder, table, self._saved.files)

    def type(self, table: str) -> ValueType:
        """Returns the type of a table's ids, or FLOAT for a bucketised number."""
        return self._tables[table].type if table in self._tables else ValueType.FLOAT

    def rows(self, table: str) -> int:
        """Returns the number of rows of a table."""
        if table in self._tables:
            return self._saved.encoder(table).rows
        rows = self.chains[table].table_rows
        assert rows is not None, table
        return rows

    def compressed(self, table: str) -> CompressedEncoder:
        """Returns the encoder of a table that has fewer rows than values."""
        encoder = self._saved.encoder(table)
        assert isinstance(encoder, CompressedEncoder), table
        return encoder

    def vocabulary(self, table: str) -> VocabularyEncoder:
        """Returns the encoder of a table that has a vocabulary."""
        encoder = self._saved.encoder(table)
        assert isinstance(encoder, VocabularyEncoder), table
        return encoder


_COMPRESSED = (
    "learned_hash",
    "lsh",
    "clustered_codes",
    "frequency_hash",
    "frequency_band",
    "double_hash",
    "quotient_remainder",
)


def difference(table: str, there: FittedTables, here: FittedTables) -> str | None:
    """Returns why the rows of a table cannot be matched between two transforms; None if they can."""
    ours, theirs = here.settings(table), there.settings(table)
    if "import" in ours or "import" in theirs:  # what an encoder from outside saves, only its own class can compare
        same = same_fit(ours, theirs) and here.arrays_checksum(table) == there.arrays_checksum(table)
        return None if same else "its encoder is from outside the package, and what was fitted differs"
    if ours["name"] != theirs["name"]:
        return f"its encoder is {theirs['name']} there, {ours['name']} here"
    if here.type(table) is not there.type(table):
        return f"its ids are of type {there.type(table)} there, {here.type(table)} here"
    if ours["name"] == "hash" and ours != theirs:
        keys = [key for key in ("rows", "seed", "version") if ours[key] != theirs[key]]
        return "its hash differs: " + ", ".join(f"{key} {theirs[key]:,} there, {ours[key]:,} here" for key in keys)
    if ours["name"] in _COMPRESSED:
        return compressed_difference(ours, theirs)
    if ours["name"] == "bucketise" and ours != theirs:
        return f"its buckets differ: {_describe_steps(theirs['steps'])} there, {_describe_steps(ours['steps'])} here"
    return None


def match_rows(table: str, there: FittedTables, here: FittedTables) -> RowMatch:
    """Matches the rows of a table between which :func:`difference` finds no difference.

    Known values are matched by value, missing and unknown values by their role.
    """
    settings = here.settings(table)
    if settings.get("name") in _COMPRESSED and "import" not in settings:
        ours, theirs = here.compressed(table), there.compressed(table)
        rows_R, note = match_compressed(theirs, ours)
        if ours.rows == theirs.rows and np.array_equal(rows_R, np.arange(ours.rows)):
            return RowMatch(ours.rows, theirs.rows, ours.rows, note=note)
        return RowMatch(ours.rows, theirs.rows, int(np.count_nonzero(rows_R != ABSENT)), rows_R, note)
    if settings.get("name") != "vocabulary" or "import" in settings:  # equal hashes, buckets or identities: equal rows
        size, size_there = here.rows(table), there.rows(table)
        return RowMatch(size, size_there, min(size, size_there))
    return match_vocabularies(there.vocabulary(table), here.vocabulary(table))


def match_vocabularies(there: VocabularyEncoder, here: VocabularyEncoder) -> RowMatch:
    """Matches the rows of two vocabularies of the same type.

    The rows of missing values match. A value that both vocabularies do not know has row ``1 + hash mod n`` in each,
    where ``n`` is the number of rows of unknown values. If the number here is a multiple of the number there, each row
    here matches one row there. If there are none there, unknown values used the row of missing values there.
    """
    rows_R = np.full(here.rows, ABSENT, np.int64)
    rows_R[MISSING_ROW] = MISSING_ROW
    note = None
    unknown = np.arange(here.oov_rows)
    if there.oov_rows == 0:
        rows_R[1 + unknown] = MISSING_ROW
    elif here.oov_rows % there.oov_rows == 0:
        rows_R[1 + unknown] = 1 + unknown % there.oov_rows
    else:
        note = f"rows of unknown values start from scratch: {there.oov_rows} there, {here.oov_rows} here"
    found = there.transform(here.keys)
    rows_R[1 + here.oov_rows :] = np.where(found > there.oov_rows, found, ABSENT)
    if here.rows == there.rows and np.array_equal(rows_R, np.arange(here.rows)):
        return RowMatch(here.rows, there.rows, here.rows)
    return RowMatch(here.rows, there.rows, int(np.count_nonzero(rows_R != ABSENT)), rows_R, note)


def _describe_steps(steps: Sequence[dict[str, Any]]) -> str:
    """Describes the steps of a bucketised number, the last one by some of its boundaries."""
    *earlier, last = steps
    edges = [f"{edge:g}" for edge in last["boundaries"]]
    shown = ", ".join(edges if len(edges) <= 4 else [*edges[:3], "…", edges[-1]])
    names = "".join(f"{step['name']}, " for step in earlier)
    return f"{names}{len(edges)} boundaries ({shown})"
