"""Stores the baselines that earlier reports of a run have trained."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from ziggurat.core.errors import DataError
from ziggurat.core.files import write_json
from ziggurat.report.inputs import ComparisonRow


class BaselineStore:
    """Comparison rows by key, in a JSON file of a run folder.

    Attributes:
        problem: why the file could not be written; None if it was.
    """

    def __init__(self, path: Path) -> None:
        self.problem: str | None = None
        self._path = path
        self._rows = _read(path)

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
            write_json(self._path, content)
        except DataError as error:
            self.problem = error.problem


def _read(path: Path) -> dict[str, tuple[ComparisonRow, list[str]]]:
    """Reads the file; returns no rows if it is missing or invalid, as they can be computed again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {key: (ComparisonRow(**kept["row"]), list(kept["notes"])) for key, kept in found.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
