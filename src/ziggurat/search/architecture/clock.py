"""Measures a part of a search by two clocks: the wall's, and the processor time of this process.

Wall-clock depends on what else runs on the machine, so that budgets of equal compute are set by processor time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spent:
    """What something took.

    Attributes:
        seconds: wall-clock.
        cpu_seconds: processor seconds of all threads of this process, without those of its children.
    """

    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.seconds + other.seconds, self.cpu_seconds + other.cpu_seconds)


NOTHING = Spent()


class Clock:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def spent(self) -> Spent:
        """Returns what was spent since then."""
        return Spent(time.monotonic() - self._wall, time.process_time() - self._cpu)
