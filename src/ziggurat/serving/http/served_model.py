"""A model that is served: its columns, its outputs, its version, and what requests become for it."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.core.untrusted import read_bytes
from ziggurat.data.readers.advice import hint_for_prediction
from ziggurat.data.readers.blocks import BadRow
from ziggurat.data.readers.columnar.paths import splits
from ziggurat.data.readers.rejection_reasons import split_hint
from ziggurat.data.readers.table_reader import NAME
from ziggurat.features.transform import Transform
from ziggurat.serving.artefact.damage import DAMAGED
from ziggurat.serving.artefact.manifest import MANIFEST_FILE, manifest_digest
from ziggurat.serving.artefact.reference import Reference
from ziggurat.serving.http.refusals import HttpRefused
from ziggurat.serving.model.given_rows import GivenRows, JoinedRows, Record, Rows, Side
from ziggurat.serving.model.plain_rows import PlainFeatures
from ziggurat.serving.model.scorer import Scorer
from ziggurat.serving.tables.residence import Residence
from ziggurat.serving.versions.record import VersionRecord, version_word

_LINE = re.compile(r", line (\d+)")
_AT_FAULT = re.compile(r"(?P<at>\w+(?:\[(?P<row>\d+)\])?, column '(?P<column>[^']+)'): (?P<problem>.+)", re.DOTALL)
_REMEMBERED = 64
"""Divisions into context and candidates that are remembered."""


@dataclass(frozen=True, slots=True)
class Version:
    """Which model gave an answer.

    Attributes:
        name: the experiment's name.
        run_id: the id of the run.
        step: the step of the checkpoint.
        export: the first 16 digits of the SHA-256 of ``export.json``, which names all other files' checksums.
        checkpoint: the id of the checkpoint that was taken after the export; empty: it is the export itself.
    """

    name: str
    run_id: str
    step: int
    export: str
    checkpoint: str = ""

    @property
    def short(self) -> str:
        """The version as one word."""
        return version_word(self.step, self.export, self.checkpoint)

    def to_json(self) -> dict[str, Any]:
        found = {"name": self.name, "run": self.run_id, "step": self.step, "export": self.export}
        taken = {"checkpoint": self.checkpoint} if self.checkpoint else {}
        return {**found, **taken, "version": self.short}


class ServedModel:
    """An export that is served.

    Args:
        scorer: the export, or a version of it.
        record: the version; None: the export itself.

    Attributes:
        scorer: the export, or a version of it.
        transform: its transform.
        columns: the raw columns that a row must have.
        version: which model it is.
        reference: what traffic is compared with; None: the export is of a version without it.
        loaded_at: when it was opened, in seconds since 1970.
        exported_at: when the export was written, or the checkpoint of a version was made, in seconds since 1970.
    """

    def __init__(self, scorer: Scorer, record: VersionRecord | None = None) -> None:
        self.scorer = scorer
        self.transform = scorer.transform
        plain = PlainFeatures.shared(self.transform)
        self._side = Side.of(self.transform, plain)
        self.raw_schema, self.columns = self._side.schema, self._side.columns
        source = scorer.manifest.source
        path = scorer.folder / MANIFEST_FILE
        checkpoint = "" if record is None else record.checkpoint
        self.version = Version(source.name, source.run_id, source.step, export_digest(scorer.folder), checkpoint)
        self.reference = Reference.read(scorer.folder, scorer.manifest)
        self.loaded_at = time.time()
        self.exported_at = path.stat().st_mtime if record is None else record.made
        self._features_of: dict[str, list[str]] = {}
        for feature in self.transform.features:
            for column in feature.log_columns:
                self._features_of.setdefault(column, []).append(feature.name)
        divide = functools.partial(
            _divide, self.transform, plain
        )  # no method: a version that is exchanged is freed at once
        self._divided = functools.lru_cache(_REMEMBERED)(divide)
        self._needed = functools.lru_cache(_REMEMBERED)(functools.partial(_needed, self.transform))

    @classmethod
    def open(
        cls, folder: Path, *, residence: Residence | None = None, check_tables: bool = False, compiled: int = 0
    ) -> ServedModel:
        """Opens an export; see :meth:`Scorer.open`."""
        return cls(Scorer.open(folder, residence=residence, check_tables=check_tables, compiled=compiled))

    @property
    def outputs(self) -> list[str]:
        """The names of all outputs: the labels, then ``LABEL/NAME`` for quantiles and probabilities of levels."""
        found = [task.name for task in self.scorer.manifest.tasks]
        for task in self.scorer.manifest.tasks:
            columns = np.zeros((1, task.columns), np.float32)
            found += [f"{task.name}/{name}" for name in ({} if task.is_probability else task.further(columns))]
        return found

    def predict_parts(self, rows: Rows, *, plain: bool = False) -> list[GivenRows]:
        """Returns what a request to predict consists of; ``plain`` is that of :class:`GivenRows`.

        Raises:
            HttpRefused: columns are missing.
        """
        return [_checked(GivenRows.of(self._side, rows, "rows", plain=plain))]

    def rank_parts(self, context: Record, candidates: Sequence[Record], *, plain: bool = False) -> list[GivenRows]:
        """Returns what a request to rank consists of: what the context gives, and what the candidates give.

        Raises:
            HttpRefused: a column is in both, or in neither.
        """
        mine = frozenset(name for name in self.columns if is_given(name, context))
        first = candidates[0]
        fields = frozenset(name for name in context if any(is_given(column, (name,)) for column in mine))
        paths = [name for name in mine if "." in name]
        if paths or not all(map(fields.isdisjoint, candidates)):
            _refuse_twice(fields, paths, candidates)
        missing = [name for name in self.columns if name not in mine and not is_given(name, first)]
        if missing:
            raise missing_columns(missing, "neither the context nor candidates[0] has")
        shared = self._shared(mine, context)
        if shared:
            candidates = [{**shared, **candidate} for candidate in candidates]
        of_context, of_candidates = self._divided(mine)
        parts: list[GivenRows] = []
        if of_context is not None:
            parts.append(_checked(GivenRows.of(of_context, [context], "context", plain=plain)))
        if of_candidates is not None:
            parts.append(_checked(GivenRows.of(of_candidates, candidates, "candidates", plain=plain)))
        return parts

    def _shared(self, mine: frozenset[str], context: Record) -> Record:
        """Returns the values of the context that features of the candidates need beside the candidates' own."""
        shared: dict[str, Any] = {}
        for column in self._needed(mine):
            field = next(name for name in context if is_given(column, (name,)))
            shared[field] = context[field]
        return shared

    def bad_rows(self, bad: Iterable[tuple[JoinedRows, BadRow]]) -> HttpRefused:
        """Returns the refusal that names the rows of a request which cannot be read or encoded."""
        rows = tuple(self._row(part.kinds.place, row) for part, row in bad)
        first = rows[0]
        return HttpRefused(422, "invalid_rows", f"{first['at']}: {first['problem']}", first["hint"], rows=rows)

    def _row(self, part: str, row: BadRow) -> dict[str, Any]:
        problem, hint = split_hint(row.reason)
        place = part if part == "context" else f"{part}[{row.line - 1}]"
        column = row.column
        features = self._features_of.get(column or "", [])
        where = f"{place}, column {column!r}" if column else place
        if features and features != [column]:
            where += f" (feature {', '.join(map(repr, features))})"
        found: dict[str, Any] = {"at": where, "column": column, "features": features, "problem": problem}
        if part != "context":
            found["row"] = row.line - 1
        found["hint"] = hint_for_prediction(hint) if hint else "correct the row, or leave it out"
        return found


def _refuse_twice(fields: frozenset[str], paths: Sequence[str], candidates: Sequence[Record]) -> None:
    """Refuses candidates with a field, or the path of a column, that the context has given.

    Raises:
        HttpRefused: there is one.
    """
    for number, candidate in enumerate(candidates):
        if twice := fields.intersection(candidate) or [name for name in paths if is_given(name, candidate)]:
            raise HttpRefused(
                422,
                "column_in_both",
                f"column {min(twice)!r} is in the context and in candidates[{number}]",
                "give it in one of both places",
            )


def _divide(transform: Transform, plain: PlainFeatures, given: frozenset[str]) -> tuple[Side | None, Side | None]:
    """Returns the features whose columns the context gives, and the others."""
    mine = [each.name for each in transform.features if given.issuperset(each.log_columns)]
    others = [each.name for each in transform.features if each.name not in mine]
    return tuple(Side.of(transform.restricted(names), plain) if names else None for names in (mine, others))  # pyright: ignore[reportReturnType]


def _needed(transform: Transform, given: frozenset[str]) -> tuple[str, ...]:
    """Returns the columns that the context gives and features need beside columns of the candidates."""
    columns: dict[str, None] = {}
    for feature in transform.features:
        needed = given.intersection(feature.log_columns)
        if len(needed) < len(feature.log_columns):
            columns |= dict.fromkeys(sorted(needed))
    return tuple(columns)


def _checked(given: GivenRows) -> GivenRows:
    """Refuses rows without all columns: a key that is misspelt must not be a missing value."""
    rows, side = given.rows, given.side
    if given.is_complete:
        return given
    if not isinstance(rows, Sequence):
        names: Container[str] = rows if isinstance(rows, Mapping) else rows.column_names
        missing = [name for name in side.columns if not is_given(name, names)]
        if missing:
            raise missing_columns(missing, f"{given.place}: there is no")
        return given
    for number, row in enumerate(rows):
        if not (side.names <= row.keys() and (not side.paths or all(is_given(name, row) for name in side.paths))):
            missing = [name for name in side.columns if not is_given(name, row)]
            where = given.place if given.place == "context" else f"{given.place}[{number}]"
            raise missing_columns(missing, f"{where} lacks")
    return given


def export_digest(folder: Path) -> str:
    """Returns what names the export of a folder in versions."""
    return manifest_digest(read_bytes(folder / MANIFEST_FILE, DAMAGED))


def is_given(name: str, names: Container[str]) -> bool:
    """Whether a column, or the one in which its path begins, is among ``names``."""
    return name in names or ("." in name and any(first in names for first, _ in splits(name)))


def missing_columns(missing: list[str], who: str) -> HttpRefused:
    """Returns the refusal that names columns which were not given."""
    listed = ", ".join(map(repr, missing[:20])) + (f" and {len(missing) - 20} more" if len(missing) > 20 else "")
    word = "columns" if len(missing) > 1 else "column"
    return HttpRefused(
        422, "missing_columns", f"{who} {word} {listed}", "give each; null stands for a value that is not known"
    )


def of_data_error(error: DataError, place: str) -> HttpRefused:
    """Returns the refusal for an error of the readers about rows in memory."""
    problem = error.problem.replace(NAME, place)
    at = _LINE.search(problem)
    if at is not None:
        row = "" if place == "context" else f"[{int(at[1]) - 1}]"
        problem = problem[: at.start()] + row + problem[at.end() :]
    hint = hint_for_prediction(error.hint)
    named = _AT_FAULT.match(problem)
    rows: tuple[dict[str, Any], ...] = ()
    if named is not None:
        rows = ({"at": named["at"], "column": named["column"], "problem": named["problem"], "hint": hint},)
        if named["row"] is not None:
            rows[0]["row"] = int(named["row"])
    return HttpRefused(422, "invalid_rows", problem, hint, rows=rows)


def value_words(column: RawColumn) -> str:
    """Says what values a column has, as ``a list of whole numbers``."""
    if column.vector is not None:
        return f"a list of {column.vector.length} numbers"
    one, many = {
        ValueType.INTEGER: ("a whole number", "whole numbers"),
        ValueType.FLOAT: ("a number", "numbers"),
        ValueType.TEXT: ("a text", "texts"),
        ValueType.TIME: ("a time", "times"),
    }[column.type]
    return f"a list of {many}" if column.many else one
