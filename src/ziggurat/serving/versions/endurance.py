"""A budget of what may be written to a drive, by its endurance.

A drive that may be written once a day for its warranty (1 DWPD) bears its capacity in any 24 hours. What was written is
noted by the hour in a file, so that a restart forgets nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ziggurat.core.errors import ZigguratError
from ziggurat.core.sealed import declared, read_sealed_json, write_sealed_json
from ziggurat.core.untrusted import Damage
from ziggurat.serving.versions.folder import DAMAGED

DAY_S = 86_400.0
_HOUR_S = 3_600.0


@dataclass(slots=True)
class _Written:
    """Hours since 1970, as text -> bytes that were written in them; when the last were that were no table written anew,
    and when the last table was written anew, in seconds since 1970."""

    hours: dict[str, int] = field(default_factory=dict[str, int])
    last: float = 0.0
    last_table: float = 0.0


class WriteBudget:
    """Bytes that may be written in 24 hours. Half of them may be written at once; the rest is spread over the day.

    Tables that are written anew, and all other writes, are spread each on their own: else small writes that come all
    the time would keep a large one waiting for good. For the same reason they leave it what it needs within a day
    (:attr:`reserved`).

    Attributes:
        bytes_per_day: how many; None: any number.
        reserved: bytes of a table that waits to be written anew. While there are any, other writes are spread over the
            day from the first one on, in what is left beside them.

    Args:
        path: the file in which they are noted.
        bytes_per_day: how many; None: any number.
        now: returns the seconds since 1970.
        damage: the errors about a damaged file; it is then begun anew.
    """

    def __init__(
        self, path: Path, bytes_per_day: int | None, now: Callable[[], float], damage: Damage = DAMAGED
    ) -> None:
        self._path, self.bytes_per_day, self._now = path, bytes_per_day, now
        self.reserved = 0
        self._written = _Written()
        with contextlib.suppress(FileNotFoundError, ZigguratError, ValueError):
            self._written = declared(_Written, read_sealed_json(path, damage), path, damage)
            _ = [int(hour) for hour in self._written.hours]

    @property
    def spent(self) -> int:
        """Bytes written in the last 24 hours, whole hours at both ends."""
        first = (self._now() - DAY_S) // _HOUR_S
        return sum(size for hour, size in self._written.hours.items() if int(hour) >= first)

    def wait_s(self, size: int, *, is_table: bool = False) -> float:
        """Returns for how long so many bytes must wait; infinite if they are more than the budget of a day.

        Args:
            size: how many.
            is_table: whether they are a table that is written anew.
        """
        if self.bytes_per_day is None or not size:
            return 0.0
        if size > self.bytes_per_day:
            return float("inf")
        now, spent = self._now(), self.spent
        waits = 0.0
        if spent + size > self.bytes_per_day:
            left = spent
            for hour in sorted(map(int, self._written.hours)):
                if left + size <= self.bytes_per_day:
                    break
                if hour >= (now - DAY_S) // _HOUR_S:
                    left -= self._written.hours[str(hour)]
                    waits = (hour + 1) * _HOUR_S + DAY_S - now
        reserved = 0 if is_table else self.reserved
        if reserved or 2 * (spent + size) > self.bytes_per_day:
            last = self._written.last_table if is_table else self._written.last
            waits = max(waits, last + DAY_S * size / max(1, self.bytes_per_day - reserved) - now)
        return max(0.0, waits)

    def give_back(self, size: int) -> None:
        """Notes that so many of the bytes that were added last were not written after all."""
        hours = dict(self._written.hours)
        for hour in sorted(hours, key=int, reverse=True):
            back = min(size, hours[hour])
            hours[hour] -= back
            size -= back
        self._written = replace(self._written, hours=hours)
        with contextlib.suppress(OSError, ZigguratError):  # the disk may be full; it is kept in memory
            write_sealed_json(self._path, asdict(self._written))

    def add(self, size: int, *, is_table: bool = False) -> None:
        """Notes that so many bytes are written; ``is_table`` as in :meth:`wait_s`."""
        now = self._now()
        first, hour = (now - DAY_S) // _HOUR_S, str(int(now // _HOUR_S))
        hours = {each: bytes_ for each, bytes_ in self._written.hours.items() if int(each) >= first}
        hours[hour] = hours.get(hour, 0) + size
        last, last_table = self._written.last, self._written.last_table
        self._written = _Written(hours, last if is_table else now, now if is_table else last_table)
        write_sealed_json(self._path, asdict(self._written))


def capacity(folder: Path) -> int | None:
    """Returns the bytes of the file system that holds a folder; None if it is in memory, which does not wear out."""
    if file_system(folder) in {"tmpfs", "ramfs"}:
        return None
    found = os.statvfs(folder)
    return found.f_blocks * found.f_frsize


def file_system(folder: Path) -> str:
    """Returns the kind of file system that holds a folder, as Linux names it; empty if that is unknown."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    found = next((line for line in lines if line.split(" ", 3)[2] == number), "")
    return found.rpartition(" - ")[2].split(" ")[0] if found else ""
