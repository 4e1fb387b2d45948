"""What a resumed preparation still trusts: staged parts and rejected rows that are as they were recorded.

All of them are read for that. It happens only after an interruption, and the passes that follow read them several
times.
"""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.digests import digest
from ziggurat.core.errors import DataError
from ziggurat.core.untrusted import opened
from ziggurat.features.preparation.column_file import STAGE_AGAIN, ColumnFile
from ziggurat.features.preparation.journal import JournalEntry, StagingJournal
from ziggurat.features.preparation.parts import part_path


def drop_damaged(journal: StagingJournal, folder: Path, sources: int, quarantine: Path) -> str | None:
    """Forgets the journal's entries from the first one on that is not as it was recorded; their rows are read again.

    The quarantine file then holds the rejected rows of the entries that are left, and no others.

    Args:
        journal: the journal of the interrupted preparation.
        folder: the folder of the staged parts.
        sources: the number of sources.
        quarantine: the file of rejected rows.

    Returns:
        What was wrong, or None.
    """
    problem = journal.damage
    lines = _QuarantineLines(quarantine)
    for number, entry in enumerate(journal.entries):
        try:
            if entry.source >= sources:
                raise STAGE_AGAIN.of(folder, f"part {number} is of source {entry.source}, and there are {sources}")
            lines.check(entry)
            if entry.rows:
                ColumnFile(part_path(folder, number), entry.checksum).check()
        except DataError as error:
            journal.drop_from(number)
            problem = error.problem
            break
    lines.truncate(journal.entries[-1].refused if journal.entries else 0)
    return problem


class _QuarantineLines:
    """The lines of a quarantine file, compared entry by entry with the journal."""

    def __init__(self, path: Path) -> None:
        self._path, self._lines = path, list[bytes]()
        try:
            with opened(path, STAGE_AGAIN) as file:
                self._lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            pass
        self._checked = 0

    def check(self, entry: JournalEntry) -> None:
        """Compares the lines up to those of ``entry``, which must be those that were recorded.

        Raises:
            DataError: they are not.
        """
        first, self._checked = self._checked, entry.refused
        if first == entry.refused:
            return
        lines = self._lines[first : entry.refused]
        if len(lines) != entry.refused - first or digest(b"".join(lines)) != entry.refused_checksum:
            raise STAGE_AGAIN.of(self._path, f"lines {first + 1} to {entry.refused} are not those that were recorded")

    def truncate(self, count: int) -> None:
        """Keeps the first ``count`` lines of the file, which is deleted without any."""
        if count == 0:
            self._path.unlink(missing_ok=True)
        elif len(self._lines) > count:
            with self._path.open("r+b") as file:
                file.truncate(sum(map(len, self._lines[:count])))
