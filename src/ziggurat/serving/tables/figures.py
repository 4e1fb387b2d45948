"""What look-ups in tables on disk did: hits, reads, bytes, errors."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

_MOST_KEPT = 10_000


@dataclass(slots=True)
class TableFigures:
    """The figures of a table on disk.

    Attributes:
        hits, misses: rows that were in the cache, and rows that were not.
        reads, read_bytes: reads of the disk.
        pooled_hits, pooled_misses: long bags that were known, and that were not.
        errors: look-ups for which it could not be read.
    """

    hits: int = 0
    misses: int = 0
    reads: int = 0
    read_bytes: int = 0
    pooled_hits: int = 0
    pooled_misses: int = 0
    errors: int = 0

    def add(self, other: TableFigures) -> None:
        """Adds other figures."""
        self.hits += other.hits  # without a loop over fields, which takes as long as a look-up
        self.misses += other.misses
        self.reads += other.reads
        self.read_bytes += other.read_bytes
        self.pooled_hits += other.pooled_hits
        self.pooled_misses += other.pooled_misses
        self.errors += other.errors


@dataclass(slots=True)
class LookupFigures:
    """The figures of some look-ups.

    Attributes:
        tables: table on disk -> its figures.
        seconds: of each look-up that read the disk, the seconds of its reads.
    """

    tables: dict[str, TableFigures]
    seconds: list[float] = field(default_factory=list[float])

    @classmethod
    def of(cls, tables: Iterable[str]) -> LookupFigures:
        """Returns figures of nothing."""
        return cls({name: TableFigures() for name in tables})

    @property
    def total(self) -> TableFigures:
        """The figures of all tables together."""
        found = TableFigures()
        for each in self.tables.values():
            found.add(each)
        return found


class FiguresKeeper:
    """Adds figures up; threads may share it.

    Args:
        tables: the tables on disk.
    """

    def __init__(self, tables: Iterable[str]) -> None:
        self._tables = tuple(tables)
        self._turn = threading.Lock()
        self._all, self._new = LookupFigures.of(self._tables), LookupFigures.of(self._tables)

    def add(self, figures: LookupFigures) -> None:
        """Adds the figures of a look-up."""
        with self._turn:
            for name, each in figures.tables.items():
                self._all.tables[name].add(each)
                self._new.tables[name].add(each)
            if len(self._new.seconds) < _MOST_KEPT:  # nobody takes them
                self._new.seconds += figures.seconds

    def taken(self) -> LookupFigures:
        """Returns the figures since the last call."""
        with self._turn:
            found, self._new = self._new, LookupFigures.of(self._tables)
        return found

    @property
    def total(self) -> TableFigures:
        """The figures of all tables since the beginning."""
        with self._turn:
            return self._all.total
