"""When a training is killed: what has to be seen in its folder first, and what is found there afterwards."""

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
"""Seconds in which a training that lives must come to the moment."""
_LOOK_S = 0.0001


@dataclass(frozen=True, slots=True)
class Moment:
    """What is waited for, and then how long at most.

    Attributes:
        name: for the reader.
        within_s: a random delay is drawn from 0 to this.
    """

    name: str
    within_s: float


MOMENTS = (
    Moment("in training", 0.05),  # after a checkpoint was committed
    Moment("in the stall", 0.004),  # the journal has the line that is written just before
    Moment("in the writer", 0.02),  # the folder of the next checkpoint is there
    Moment("before the manifest", 0.003),  # all of its data files are, and no manifest
)


class Watched:
    """A folder of checkpoints that another process writes into.

    Args:
        run: the run folder.
        files: data files of a checkpoint.
    """

    def __init__(self, run: Path, files: int) -> None:
        self._checkpoints, self._journal, self._files = run / "checkpoints", run / "metrics.jsonl", files

    def committed(self) -> int:
        """The newest step with a manifest; 0 where there is none."""
        return max((step for step, names in self._folders() if MANIFEST_FILE in names), default=0)

    def unfinished(self) -> list[str]:
        """Names in the folder of the checkpoint that is being written; none where there is no such folder."""
        names = max(self._folders(), default=(0, [MANIFEST_FILE]))[1]
        return [] if MANIFEST_FILE in names else [".", *names]

    def left(self) -> str:
        """What a kill has left of the checkpoint that was being written."""
        names = self.unfinished()
        if not names:
            return "nothing unfinished"
        if any(name.startswith(f".{MANIFEST_FILE}") for name in names):
            return "all data, half a manifest"
        return "all data, no manifest" if self._data(names) >= self._files else "some data, no manifest"

    def wait(self, moment: Moment, alive: Callable[[], bool]) -> bool:
        """Until the moment comes; False where training has ended before.

        Raises:
            AssertionError: neither happened in time.
        """
        lines = self._lines()
        come: Callable[[], bool] = {
            "in training": lambda: True,
            "in the stall": lambda: self._lines() > lines,
            "in the writer": lambda: bool(self.unfinished()),
            "before the manifest": lambda: self._data(self.unfinished()) >= self._files,
        }[moment.name]
        return seen(come, alive)

    def _lines(self) -> int:
        """Size of the journal."""
        with contextlib.suppress(FileNotFoundError):
            return self._journal.stat().st_size
        return 0

    def _data(self, names: list[str]) -> int:
        return sum(name.endswith(".safetensors") for name in names)

    def _folders(self) -> Iterator[tuple[int, list[str]]]:
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._checkpoints):  # noqa: PTH208 - a kill may be late by what a Path takes
                found = FOLDER.fullmatch(name)
                if found is not None:
                    with contextlib.suppress(FileNotFoundError):
                        yield int(found[1]), os.listdir(self._checkpoints / name)  # noqa: PTH208


def seen(come: Callable[[], bool], alive: Callable[[], bool]) -> bool:
    """Wait until ``come``; False where nothing is ``alive`` any more.

    Raises:
        AssertionError: neither in time.
    """
    deadline, looks = time.monotonic() + PATIENCE_S, 0
    while not come():
        looks += 1
        if looks % 50 == 0 and not alive():
            return False
        assert time.monotonic() < deadline, "training comes no further"
        time.sleep(_LOOK_S)
    return True
