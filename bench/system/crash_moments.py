"""The moments of a training at which it is killed, recognised by the files in its folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ziggurat.checkpoint.format.manifest import MANIFEST_FILE
from ziggurat.checkpoint.reader import FOLDER

PATIENCE_S = 120.0
"""The seconds within which a running training must reach the moment."""
_POLL_S = 0.0001


@dataclass(frozen=True, slots=True)
class Moment:
    """An event in a training, and the largest delay of a kill after it.

    Attributes:
        name: the name in the results.
        within_s: the upper bound of the random delay in seconds.
    """

    name: str
    within_s: float


MOMENTS = (
    Moment("in training", 0.05),  # a checkpoint was committed
    Moment("in the stall", 0.004),  # the journal has the line that is written immediately before
    Moment("in the writer", 0.02),  # the folder of the next checkpoint exists
    Moment("before the manifest", 0.003),  # all of its data files exist, but no manifest
)


class WatchedFolder:
    """A folder of checkpoints to which another process writes.

    Args:
        run: the run folder.
        files: the number of data files of a checkpoint.
    """

    def __init__(self, run: Path, files: int) -> None:
        self._checkpoints, self._journal, self._files = run / "checkpoints", run / "metrics.jsonl", files

    def committed(self) -> int:
        """Returns the newest step with a manifest, or 0 if there is none."""
        return max((step for step, names in self._folders() if MANIFEST_FILE in names), default=0)

    def unfinished(self) -> list[str]:
        """Returns the names in the folder of the checkpoint that is being written, or none without such a folder."""
        names = max(self._folders(), default=(0, [MANIFEST_FILE]))[1]
        return [] if MANIFEST_FILE in names else [".", *names]

    def left(self) -> str:
        """Returns a description of what a kill has left of the checkpoint that was being written."""
        names = self.unfinished()
        if not names:
            return "nothing unfinished"
        if any(name.startswith(f".{MANIFEST_FILE}") for name in names):
            return "all data, half a manifest"
        return "all data, no manifest" if self._data(names) >= self._files else "some data, no manifest"

    def wait(self, moment: Moment, alive: Callable[[], bool]) -> bool:
        """Waits for the moment; returns False if the training ends first.

        Args:
            moment: the moment to wait for.
            alive: a function that returns whether the training runs.

        Raises:
            AssertionError: neither happened in time.
        """
        size = self._journal_bytes()
        reached: Callable[[], bool] = {
            "in training": lambda: True,
            "in the stall": lambda: self._journal_bytes() > size,
            "in the writer": lambda: bool(self.unfinished()),
            "before the manifest": lambda: self._data(self.unfinished()) >= self._files,
        }[moment.name]
        return wait_until(reached, alive)

    def _journal_bytes(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return self._journal.stat().st_size
        return 0

    def _data(self, names: list[str]) -> int:
        return sum(name.endswith(".safetensors") for name in names)

    def _folders(self) -> Iterator[tuple[int, list[str]]]:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._checkpoints):  # noqa: PTH208 - a Path would delay the kill
                found = FOLDER.fullmatch(name)
                if found is not None:
                    with contextlib.suppress(FileNotFoundError):
                        yield int(found[1]), os.listdir(self._checkpoints / name)  # noqa: PTH208


def wait_until(reached: Callable[[], bool], alive: Callable[[], bool]) -> bool:
    """Waits until ``reached()`` is True; returns False if ``alive()`` becomes False first.

    Raises:
        AssertionError: neither happened in time.
    """
    deadline, polls = time.monotonic() + PATIENCE_S, 0
    while not reached():
        polls += 1
        if polls % 50 == 0 and not alive():
            return False
        assert time.monotonic() < deadline, "training makes no progress"
        time.sleep(_POLL_S)
    return True
