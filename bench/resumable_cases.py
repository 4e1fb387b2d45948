"""Results of the cases of a long benchmark, stored one by one, so that an interrupted benchmark can resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ziggurat.training.placement.kernel_benchmark import append_json_line, read_json_lines


class ResumableCases:
    """The cases measured so far, in a file with one line per case.

    Args:
        path: the file.
        sources: digest of the code that is measured; lines of other sources are ignored.

    Raises:
        DataError: a line of the file is damaged, except a last line that was being written when the process ended.
    """

    def __init__(self, path: Path, sources: str) -> None:
        self._path, self._sources = path, sources
        self._found = {line["case"]: line["measured"] for line in read_json_lines(path) if line["sources"] == sources}

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, case: str) -> bool:
        return case in self._found

    def get(self, case: str, measure: Callable[[], Any]) -> Any:
        """Returns the stored result of a case, or measures and stores it; a result is a JSON value."""
        if case not in self._found:
            self._found[case] = measure()
            append_json_line(self._path, {"case": case, "sources": self._sources, "measured": self._found[case]})
        return self._found[case]

    def forget(self) -> None:
        """Deletes the file; to be called when the benchmark's result is complete."""
        self._path.unlink()
