"""Which row of another fit's table stands for the same value: tables of two transforms, row by row.

A vocabulary's rows are in order of frequency, so that the same value has another row wherever the data is another.

Shape legend: R rows of a table here, L of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.schema import ValueType
from ziggurat.features.config import FeatureConfig
from ziggurat.features.encoders.encoder import MISSING_ROW
from ziggurat.features.encoders.files import load_encoder, read_json
from ziggurat.features.encoders.key_lookup import ABSENT
from ziggurat.features.encoders.vocabulary import VocabularyEncoder
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.tables import resolve_tables
from ziggurat.features.transform import TRANSFORM_VERSION
from ziggurat.features.versions import check_version

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowMatch:
    """Rows of a table here, and those of the table there that stand for the same.

    Attributes:
        size: rows here.
        there: rows there.
        taken: how many of them have a row there.
        rows_R: int64, the row there, or -1; None: the first ``taken`` rows have there the numbers that they have here.
        note: what could not be matched although both have it, for people.
    """

    size: int
    there: int
    taken: int
    rows_R: Rows | None = None
    note: str | None = None

    def of(self, rows_L: Rows) -> Rows:
        """The row there of each of these rows here, or -1."""
        if self.rows_R is not None:
            return self.rows_R[rows_L]
        return np.where(rows_L < self.taken, rows_L, ABSENT)


class FittedTables:
    """What a saved transform says of its tables; each table's encoder is loaded when it is asked for.

    Args:
        folder: that :meth:`~ziggurat.features.transform.Transform.save` or preparation wrote.
        features: that it was fitted for.

    Raises:
        DataError: a part of it is missing, or of another version.
    """

    def __init__(self, folder: Path, features: Sequence[FeatureConfig]) -> None:
        self._folder = folder
        self._tables = resolve_tables(features)
        path = folder / "transform.json"
        self._values = read_json(path)
        check_version(str(path), self._values["version"], TRANSFORM_VERSION)

    @cached_property
    def chains(self) -> dict[str, NumericChain]:
        """Of the numeric features, by name."""
        return {name: NumericChain.from_json(chain) for name, chain in self._values["chains"].items()}

    def figures(self, table: str) -> dict[str, Any]:
        """What an encoder has saved of itself beside its arrays; of a bucketised number, the steps of its chain."""
        if table not in self._tables:
            return {"name": "bucketise", "steps": self.chains[table].to_json()["steps"]}
        return read_json(self._folder / f"table.{table}.json")

    def arrays_digest(self, table: str) -> str:
        """Returns a digest of the arrays that an encoder has saved; empty where there are none."""
        path = self._folder / f"table.{table}.safetensors"
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""

    def type(self, table: str) -> ValueType:
        """Of the ids, or of the numbers."""
        return self._tables[table].type if table in self._tables else ValueType.FLOAT

    def rows(self, table: str) -> int:
        """Rows of a table."""
        if table in self._tables:
            return load_encoder(self._folder, table).rows
        rows = self.chains[table].table_rows
        assert rows is not None, table
        return rows

    def vocabulary(self, table: str) -> VocabularyEncoder:
        """The encoder of a table that has a vocabulary."""
        encoder = load_encoder(self._folder, table)
        assert isinstance(encoder, VocabularyEncoder), table
        return encoder


def difference(table: str, there: FittedTables, here: FittedTables) -> str | None:
    """Why the rows of a table cannot be told apart by what they stand for; None where they can."""
    ours, theirs = here.figures(table), there.figures(table)
    if "import" in ours or "import" in theirs:  # what an encoder from outside saves, only its own class can compare
        same = ours == theirs and here.arrays_digest(table) == there.arrays_digest(table)
        return None if same else "its encoder is from outside the package, and what was fitted differs"
    if ours["name"] != theirs["name"]:
        return f"its encoder is {theirs['name']} there, {ours['name']} here"
    if here.type(table) is not there.type(table):
        return f"its ids are of type {there.type(table)} there, {here.type(table)} here"
    if ours["name"] == "hash" and ours != theirs:
        keys = [key for key in ("rows", "seed", "version") if ours[key] != theirs[key]]
        return "its hash differs: " + ", ".join(f"{key} {theirs[key]:,} there, {ours[key]:,} here" for key in keys)
    if ours["name"] == "bucketise" and ours != theirs:
        return f"its buckets differ: {_told_steps(theirs['steps'])} there, {_told_steps(ours['steps'])} here"
    return None


def match_rows(table: str, there: FittedTables, here: FittedTables) -> RowMatch:
    """Rows of a table of both, where :func:`difference` finds none: known values by value, the others by their role."""
    if here.figures(table).get("name") != "vocabulary" or "import" in here.figures(
        table
    ):  # hashes and buckets are alike, and identities are numbers
        size, other = here.rows(table), there.rows(table)
        return RowMatch(size, other, min(size, other))
    return match_vocabularies(there.vocabulary(table), here.vocabulary(table))


def match_vocabularies(there: VocabularyEncoder, here: VocabularyEncoder) -> RowMatch:
    """Rows of two vocabularies of one type.

    The row of missing values is that of missing values. A value unknown to both has the row ``1 + hash mod n`` in each
    (``n`` rows of unknown values), so that where ours are a multiple of theirs each of ours follows from one of theirs;
    where theirs has none, from its row of missing values, which unknown ones shared.
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
        note = f"rows of unknown values begin anew: {there.oov_rows} there, {here.oov_rows} here"
    found = there.transform(here.keys)
    rows_R[1 + here.oov_rows :] = np.where(found > there.oov_rows, found, ABSENT)
    if here.rows == there.rows and np.array_equal(rows_R, np.arange(here.rows)):
        return RowMatch(here.rows, there.rows, here.rows)
    return RowMatch(here.rows, there.rows, int(np.count_nonzero(rows_R != ABSENT)), rows_R, note)


def _told_steps(steps: Sequence[dict[str, Any]]) -> str:
    """The steps of a bucketised number, the last one by its boundaries, as many as can be read."""
    *before, last = steps
    edges = [f"{edge:g}" for edge in last["boundaries"]]
    shown = ", ".join(edges if len(edges) <= 4 else [*edges[:3], "…", edges[-1]])
    names = "".join(f"{step['name']}, " for step in before)
    return f"{names}{len(edges)} boundaries ({shown})"
