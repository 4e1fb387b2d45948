"""Cases of a long benchmark, noted one by one, so that one that was interrupted goes on where it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ziggurat.training.placement.kernel_benchmark import note, noted


class Noted:
    """What was measured so far, a line a case.

    Args:
        path: of the file.
        sources: of what is measured: notes of other sources do not count.

    Raises:
        DataError: a line of the file is damaged, other than by an end while it was written.
    """

    def __init__(self, path: Path, sources: str) -> None:
        self._path, self._sources = path, sources
        self._found = {line["case"]: line["measured"] for line in noted(path) if line["sources"] == sources}

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, case: str) -> bool:
        return case in self._found

    def get(self, case: str, measure: Callable[[], Any]) -> Any:
        """What was noted of a case, or is now: JSON values."""
        if case not in self._found:
            self._found[case] = measure()
            note(self._path, {"case": case, "sources": self._sources, "measured": self._found[case]})
        return self._found[case]

    def forget(self) -> None:
        """All of it: the result is made."""
        self._path.unlink()
