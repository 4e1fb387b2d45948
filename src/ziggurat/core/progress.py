"""How long work tells its caller where it is, without knowing whether a terminal is there."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A sink for progress; the command line draws it, the library's default stays silent."""

    def start(self, stage: str, total: float | None, unit: str) -> None:
        """A stage begins; ``total`` is None when its size is unknown."""

    def advance(self, done: float, **figures: float | str) -> None:
        """``done`` units of the stage are complete (absolute, not a delta); figures are shown beside it."""

    def finish(self, message: str = "") -> None:
        """The stage ended."""

    def note(self, message: str) -> None:
        """One line for the reader, outside the bar."""


class Silent:
    """A Progress that shows nothing."""

    def start(self, stage: str, total: float | None, unit: str) -> None: ...

    def advance(self, done: float, **figures: float | str) -> None: ...

    def finish(self, message: str = "") -> None: ...

    def note(self, message: str) -> None: ...
