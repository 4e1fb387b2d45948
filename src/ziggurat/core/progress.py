"""The interface through which long-running work reports progress, with or without a terminal."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives progress. The command line draws it; the library's default is silent."""

    def start(self, stage: str, total: float | None, unit: str) -> None:
        """Starts a stage; ``total`` is its size in ``unit``, or None if unknown."""

    def advance(self, done: float, **figures: float | str) -> None:
        """Reports that ``done`` units of the stage are complete in total; ``figures`` are shown next to the bar."""

    def finish(self, message: str = "") -> None:
        """Ends the stage."""

    def note(self, message: str) -> None:
        """Shows one line outside the bar."""


class Silent:
    """A Progress that shows nothing."""

    def start(self, stage: str, total: float | None, unit: str) -> None: ...

    def advance(self, done: float, **figures: float | str) -> None: ...

    def finish(self, message: str = "") -> None: ...

    def note(self, message: str) -> None: ...
