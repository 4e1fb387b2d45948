"""Stores the baselines that earlier reports of a run have trained."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.core.sealed import SEAL, declared, unsealed, write_sealed_json
from ziggurat.core.untrusted import Damage, read_json_object
from ziggurat.report.inputs import ComparisonRow

BASELINES_FILE = "baselines.json"
"""Name of the file in a run folder."""
_VERSION = 2
"""Version 1 had the rows as the whole content, and no checksum."""
_DAMAGED = Damage(RunFolderError, "delete it: the next report trains the baselines again")


class BaselineStore:
    """Comparison rows by key, in a JSON file of a run folder.

    Args:
        path: the file.
        run_id: the id of the run, which the file must have.

    Attributes:
        problem: why the file could not be written; None if it was.
        damage: why the rows in the file are not used; None if they are.
    """

    def __init__(self, path: Path, run_id: str) -> None:
        self.problem: str | None = None
        self.damage: str | None = None
        self._path, self._run_id = path, run_id
        self._rows: dict[str, tuple[ComparisonRow, list[str]]] = {}
        try:
            self._rows = read_baselines(path, run_id)
        except RunFolderError as error:
            self.damage = error.problem

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __getitem__(self, key: str) -> tuple[ComparisonRow, list[str]]:
        """Returns the row and its notes."""
        return self._rows[key]

    def add(self, key: str, row: ComparisonRow, notes: list[str]) -> None:
        """Adds a row and writes the file."""
        self._rows[key] = (row, notes)
        content = {
            key: {"row": {**asdict(row), "figures": dict(row.figures)}, "notes": notes}
            for key, (row, notes) in self._rows.items()
        }
        try:
            write_sealed_json(self._path, {"version": _VERSION, "run_id": self._run_id, "baselines": content})
        except DataError as error:
            self.problem = error.problem


def read_baselines(path: Path, run_id: str) -> dict[str, tuple[ComparisonRow, list[str]]]:
    """Returns the stored rows with their notes, by key; none if there is no file.

    Raises:
        RunFolderError: the file is damaged, or belongs to another run.
    """
    try:
        values = read_json_object(path, _DAMAGED)
    except FileNotFoundError:
        return {}
    if SEAL in values or "version" in values:
        values = unsealed(values, path, _DAMAGED)
        if values.get("run_id") != run_id or values.get("version") != _VERSION:
            raise _DAMAGED.of(path, "belongs to another run, or is of another version")
        values = values.get("baselines")
    stored = declared(dict[str, _Stored], values, path, _DAMAGED)
    return {key: (ComparisonRow(**asdict(each.row)), each.notes) for key, each in stored.items()}


@dataclass(frozen=True, slots=True)
class _StoredRow:
    """A :class:`ComparisonRow` in the file."""

    task: str
    model: str
    ours: bool
    figures: dict[str, float]
    seconds: float | None = None
    settings: str = ""


@dataclass(frozen=True, slots=True)
class _Stored:
    row: _StoredRow
    notes: list[str]
