"""The journal of a preparation: which parts are staged, and where to resume reading after an interruption.

It has one JSON object per line, appended and flushed after a part's file is closed, so a part is staged if and only if
its line is complete. A process may be killed at any moment: an incomplete line is dropped and its part is staged again.
Parts are not flushed to the device individually; after a restart of the machine they are not trusted, and reading
starts from the beginning.
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
        rows: good rows in the part; 0 if all rows of a file range were rejected, or for the last entry of a source.
        source: number of the source (train, validation, test files) that it comes from.
        position: where to resume reading that source.
        done_bytes: bytes of the source read so far, for progress.
        refused: total number of rows rejected so far.
        finished: whether the source has been read completely.
    """

    rows: int
    source: int
    position: Position
    done_bytes: int
    refused: int
    finished: bool = False


class StagingJournal:
    """The journal in a folder; the folder is emptied if it belongs to a different preparation.

    Attributes:
        entries: entries in order; the number of an entry is that of its part.
        resumed: whether the folder contained parts of the same preparation.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._path = folder / "journal.jsonl"
        self._header = {"version": STAGING_VERSION, "fingerprint": fingerprint, "boot": _boot_id()}
        self.entries: list[JournalEntry] = []
        lines = self._complete_lines()
        if lines and json.loads(lines[0]) == self._header:
            self.entries = [_entry(json.loads(line)) for line in lines[1:]]
        else:
            _empty(folder)
            lines = [json.dumps(self._header).encode() + b"\n"]
        self.resumed = bool(self.entries)
        with explained_writes(self._path):
            self._path.write_bytes(b"".join(lines))

    def append(self, entry: JournalEntry) -> None:
        """Records a part whose file is closed."""
        with explained_writes(self._path), self._path.open("ab") as stream:
            stream.write(json.dumps(asdict(entry)).encode() + b"\n")
        self.entries.append(entry)

    def _complete_lines(self) -> list[bytes]:
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
    """Returns an id of the current boot of the machine; empty if the system provides none."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if os.access(path, os.R_OK) else ""
