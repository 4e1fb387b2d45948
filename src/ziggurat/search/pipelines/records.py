"""The evaluations of a search, in a file to which each is appended when it is done.

A line carries its own checksum. The last one may be torn by a process that died, and is then dropped; any other damage
is an error. Results are found by what was evaluated, not by when, so that several processes may append in any order.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import sync_folder
from ziggurat.core.sealed import declared, sealed_line, unsealed
from ziggurat.core.untrusted import Damage, as_object, parse_json, read_bytes
from ziggurat.search.pipelines.evaluation import Result

RECORDS_FILE = "evaluations.jsonl"
_DAMAGE = Damage(RunFolderError, "restore it from a copy, or search in another folder")
_MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class _Line:
    key: str
    scores: list[float]
    seconds: float
    reason: str


class Records:
    """Results by key, in memory and, if there is a folder, in its file.

    Args:
        folder: where the file is; None keeps nothing.

    Raises:
        RunFolderError: the file is damaged.
    """

    def __init__(self, folder: Path | None) -> None:
        self._results: dict[str, Result] = {}
        self._path = None if folder is None else folder / RECORDS_FILE
        if self._path is not None and self._path.exists():
            self._read(self._path)
        elif self._path is not None:
            self._path.touch()
            sync_folder(self._path.parent)

    def __len__(self) -> int:
        return len(self._results)

    def get(self, key: str) -> Result | None:
        return self._results.get(key)

    def add(self, key: str, result: Result, described: Mapping[str, Any]) -> None:
        """Records a result; ``described`` says what it is of, for readers of the file."""
        self._results[key] = result
        if self._path is None:
            return
        values = {"key": key, "scores": list(result.scores), "seconds": result.seconds, "reason": result.reason}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(sealed_line({**values, **described}))
            file.flush()
            os.fsync(file.fileno())

    def _read(self, path: Path) -> None:
        data = read_bytes(path, _DAMAGE, limit=_MOST_BYTES)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            with path.open("r+b") as file:
                file.truncate(whole)
        for number, line in enumerate(data[:whole].splitlines(), 1):
            where = f"{path}, line {number}"
            values = unsealed(as_object(parse_json(line, where, _DAMAGE), where, _DAMAGE), where, _DAMAGE)
            read = declared(_Line, values, where, _DAMAGE)
            self._results[read.key] = Result(tuple(read.scores), read.seconds, read.reason)
