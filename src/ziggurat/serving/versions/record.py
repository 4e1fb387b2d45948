"""What the files of a folder of versions hold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

Mode = Literal["following", "pinned"]


@dataclass(frozen=True, slots=True)
class TableRecord:
    """The rows of a table in a version.

    Attributes:
        base: the file of all its rows; empty: the export's.
        log: the name of the files of changed rows and of their ids; empty: there are none.
        log_rows: the rows of the log that belong to this version.
        changed: how many different rows they are.
        tail_rows, tail: the last of them, and their checksum: those that this version added.
    """

    base: str = ""
    log: str = ""
    log_rows: int = 0
    changed: int = 0
    tail_rows: int = 0
    tail: str = ""


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """A version.

    Attributes:
        number: counts versions, in the order in which they were taken; 0 is the export.
        step: the step of its checkpoint.
        checkpoint: the id of its checkpoint; empty: it is the export.
        export: the first 16 digits of the SHA-256 of ``export.json``.
        made: when its checkpoint was made, in seconds since 1970.
        taken: when it could be served, in seconds since 1970.
        bytes: what was written to the disk for it.
        dense: the file of the dense part's tensors; empty: the export's.
        dense_bytes, dense_digest: its size and checksum.
        tables: the rows of each table.
    """

    number: int
    step: int
    checkpoint: str
    export: str
    made: float
    taken: float
    bytes: int
    dense: str
    dense_bytes: int
    dense_digest: str
    tables: dict[str, TableRecord]

    @property
    def short(self) -> str:
        """The version as one word, the same on every host that follows the same run with the same export."""
        return version_word(self.step, self.export, self.checkpoint)


def version_word(step: int, export: str, checkpoint: str) -> str:
    """Returns a version as one word.

    Args:
        step: the step of its checkpoint.
        export: the first 16 digits of the SHA-256 of ``export.json``.
        checkpoint: the id of a checkpoint that was taken with this export; empty: it is the export itself.
    """
    digest = hashlib.sha256(f"{export}/{step}/{checkpoint}".encode()).hexdigest()[:16] if checkpoint else export
    return f"{step}-{digest}"


@dataclass(frozen=True, slots=True)
class Pointer:
    """Which version is served.

    Attributes:
        number: its number.
        mode: whether newer versions take its place.
        since: when it was chosen, in seconds since 1970.
        turn: how often a version was chosen.
        files: table -> since which turn its file of all rows is the same; tables that are left out: always.
        rows: table -> since which turn all its rows are the same; tables that are left out: always.
    """

    number: int
    mode: Mode
    since: float
    turn: int = 1
    files: dict[str, int] = field(default_factory=dict[str, int])
    rows: dict[str, int] = field(default_factory=dict[str, int])

    def after(self, mode: Mode, since: float, record: VersionRecord, before: VersionRecord | None) -> Pointer:
        """Returns the pointer to another version, of which each process can tell what caches still hold.

        Args:
            mode: see :attr:`mode`.
            since: see :attr:`since`.
            record: the version to serve.
            before: the version that was served; None: it is not known.
        """
        turn = self.turn + 1
        held = {} if before is None else before.tables
        files, rows = dict(self.files), dict(self.rows)
        for name, table in record.tables.items():
            old = held.get(name)
            if old is None or old.base != table.base:
                files[name] = turn
            if old is None or (old.base, old.log, old.log_rows) != (table.base, table.log, table.log_rows):
                rows[name] = turn
        return Pointer(record.number, mode, since, turn, files, rows)


@dataclass(slots=True)
class FollowStatus:
    """What the updater tells. Counts go on when another updater takes its place.

    Attributes:
        updater: its process.
        checked: when it last looked for a checkpoint, in seconds since 1970.
        taken: versions that were taken.
        compacted: how often all rows of a table were written anew.
        merged: checkpoints that were taken together with a later one, because of the budget.
        bytes: bytes written to the disk.
        day_bytes: those of the last 24 hours.
        budget_bytes: bytes that may be written in 24 hours; -1: any number.
        waits_until: until when a version waits for the budget, in seconds since 1970; 0: none waits.
        table_waits_until: until when a table whose log has grown long waits for the budget, in seconds since 1970; 0:
            none waits.
        seconds: from when the last checkpoint was made until it was served.
        failures: kind of failure -> how often.
        problem: why following fails at present; empty: it does not.
        problem_since: since when, in seconds since 1970.
    """

    updater: int = 0
    checked: float = 0.0
    taken: int = 0
    compacted: int = 0
    merged: int = 0
    bytes: int = 0
    day_bytes: int = 0
    budget_bytes: int = -1
    waits_until: float = 0.0
    table_waits_until: float = 0.0
    seconds: float = 0.0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    problem: str = ""
    problem_since: float = 0.0
