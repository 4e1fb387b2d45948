"""The journal of an interrupted preparation: which parts are staged, and where reading goes on.

One JSON object a line, appended and flushed after a part's files are closed, so a part is staged exactly when its line
is whole. A process may be killed at any moment: the line it was writing is dropped and its part staged again. Parts are
not flushed to the device one by one; after the machine itself went down they are not trusted and reading starts anew.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ziggurat.core.files import explained_writes, remove
from ziggurat.data.readers.blocks import Position

STAGING_VERSION = 2


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One staged part.

    Attributes:
        rows: good rows in the part; 0 for a stretch that held only refused rows, or the last entry of a source.
        source: which of the sources (train, validation, test files) it comes from.
        position: where reading of that source goes on.
        done_bytes: bytes of the source read so far, for progress.
        refused: rows refused so far, in all.
        finished: the source holds nothing more.
    """

    rows: int
    source: int
    position: Position
    done_bytes: int
    refused: int
    finished: bool = False


class StagingJournal:
    """The parts staged so far in ``folder``, which is emptied when it was left by another preparation.

    Attributes:
        entries: in order; the entry's number names the part's files.
        resumed: whether the folder held parts of this very preparation.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._path = folder / "journal.jsonl"
        self._header = {"version": STAGING_VERSION, "fingerprint": fingerprint, "boot": _boot_id()}
        self.entries: list[JournalEntry] = []
        lines = self._whole_lines()
        if lines and json.loads(lines[0]) == self._header:
            self.entries = [_entry(json.loads(line)) for line in lines[1:]]
        else:
            _empty(folder)
            lines = [json.dumps(self._header).encode() + b"\n"]
        self.resumed = bool(self.entries)
        with explained_writes(self._path):
            self._path.write_bytes(b"".join(lines))

    def append(self, entry: JournalEntry) -> None:
        """Record a part whose files are closed."""
        with explained_writes(self._path), self._path.open("ab") as stream:
            stream.write(json.dumps(asdict(entry)).encode() + b"\n")
        self.entries.append(entry)

    def _whole_lines(self) -> list[bytes]:
        try:
            lines = self._path.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _entry(values: dict[str, Any]) -> JournalEntry:
    position = Position(**values.pop("position"))
    return JournalEntry(**values, position=position)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "lock":
            remove(path)


def _boot_id() -> str:
    """Names this start of the machine; empty where the system does not tell."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if os.access(path, os.R_OK) else ""
