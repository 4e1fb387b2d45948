"""The journal of a preparation: which parts are staged, and where to resume reading after an interruption.

It has one JSON object per line, appended and flushed after a part's file is closed, so a part is staged if and only if
its line is complete. A process may be killed at any moment: an incomplete line is dropped and its part is staged again.
Parts are not flushed to the device individually; after a restart of the machine they are not trusted, and reading
starts from the beginning.

Each line has a checksum, its number, and the checksum of its part's file. A line that is damaged, missing or out of
place ends the journal before it, as does a damaged file: reading continues from there.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ziggurat.core.errors import DataError
from ziggurat.core.files import explained_writes, remove
from ziggurat.core.sealed import declared, sealed_line, unsealed
from ziggurat.core.untrusted import Damage, as_object, opened, parse_json
from ziggurat.data.readers.blocks import Position

STAGING_VERSION = 3
_DAMAGED = Damage(DataError, "delete the folder .staging and run the same command again")
_LINE_BYTES = 2**20
"""The most bytes of a line."""


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
        checksum: the checksum of the part's file; empty if it has none.
        refused_checksum: the checksum of its rejected rows' lines in the quarantine file; empty if there are none.
    """

    rows: int
    source: int
    position: Position
    done_bytes: int
    refused: int
    finished: bool = False
    checksum: str = ""
    refused_checksum: str = ""


class StagingJournal:
    """The journal in a folder; the folder is emptied if it belongs to a different preparation.

    Attributes:
        entries: entries in order; the number of an entry is that of its part.
        damage: what was wrong with the first line that was not used; None if all were.
    """

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._path = folder / "journal.jsonl"
        header = {"version": STAGING_VERSION, "fingerprint": fingerprint, "boot": _boot_id()}
        self._lines = [sealed_line(header).encode()]
        self.entries: list[JournalEntry] = []
        self.damage: str | None = None
        lines = self._complete_lines()
        if lines and lines[0] == self._lines[0]:
            self._read(lines[1:])
        else:
            _empty(folder)
        self._write()

    @property
    def resumed(self) -> bool:
        """Whether there are entries, of this preparation or of one that was interrupted."""
        return bool(self.entries)

    def append(self, entry: JournalEntry) -> None:
        """Records a part whose file is closed."""
        line = sealed_line({"part": len(self.entries), **asdict(entry)}).encode()
        with explained_writes(self._path), self._path.open("ab") as stream:
            stream.write(line)
        self._lines.append(line)
        self.entries.append(entry)

    def drop_from(self, number: int) -> None:
        """Forgets an entry and those after it, whose parts are then staged again."""
        del self.entries[number:], self._lines[number + 1 :]
        self._write()

    def _write(self) -> None:
        with explained_writes(self._path):
            self._path.write_bytes(b"".join(self._lines))

    def _read(self, lines: list[bytes]) -> None:
        """Takes the entries up to the first damaged line."""
        for number, line in enumerate(lines):
            where = f"{self._path}: line {number + 2}"
            try:
                values = unsealed(as_object(parse_json(line, where, _DAMAGED), where, _DAMAGED), where, _DAMAGED)
                if values.get("part") != number:
                    raise _DAMAGED.of(where, "is out of place")
                self.entries.append(_entry(values, where))
            except DataError as error:
                self.damage = error.problem
                return
            self._lines.append(line)

    def _complete_lines(self) -> list[bytes]:
        try:
            with opened(self._path, _DAMAGED) as file:
                lines = list(iter(lambda: file.readline(_LINE_BYTES), b""))
        except FileNotFoundError:
            return []
        return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def _entry(values: dict[str, Any], where: str) -> JournalEntry:
    """Returns the entry of a line.

    Raises:
        DataError: a value is missing, mistyped or out of its range.
    """
    entry = declared(JournalEntry, values, where, _DAMAGED)
    numbers = (entry.rows, entry.source, entry.done_bytes, entry.refused)
    if min(*numbers, entry.position.file, entry.position.offset, entry.position.line) < 0:
        raise _DAMAGED.of(where, "has a negative number")
    return entry


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "lock":
            remove(path)


def _boot_id() -> str:
    """Returns an id of the current boot of the machine; empty if the system provides none."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if os.access(path, os.R_OK) else ""
