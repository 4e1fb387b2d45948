"""The turn to compute: of several threads one has it, and leaves it to another while it waits for the disk."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator


class Turn:
    """The turn of some threads.

    Args:
        changed: whoever calls :meth:`begin` or :meth:`end` holds it; it is notified when the turn is free.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._is_taken, self._coming_back = False, 0

    @property
    def awaited(self) -> bool:
        """Whether somebody has come back and waits for it."""
        return self._coming_back > 0

    def begin(self) -> None:
        """Waits for the turn, behind those who come back to it, and takes it."""
        while self._is_taken or self.awaited:
            self._changed.wait()
        self._is_taken = True

    def end(self) -> None:
        """Ends the turn."""
        self._is_taken = False
        self._changed.notify_all()

    @contextlib.contextmanager
    def left(self) -> Generator[None]:
        """Leaves the turn to others for a while, and waits for it at the end."""
        with self._changed:
            self.end()
        try:
            yield
        finally:
            with self._changed:
                self._coming_back += 1
                while self._is_taken:
                    self._changed.wait()
                self._coming_back -= 1
                self._is_taken = True
