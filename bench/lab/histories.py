"""Histories of ids to look up: drawn by Zipf's law, or those of a log of users; ids fall by frequency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

SHORTEST, LONGEST = 20, 200
COUNTED = 1e7
"""The look-ups of drawn ids that the counts of preparation stand for."""


class Histories:
    """Draws histories for the examples of a step.

    Args:
        spec: ``{"zipf": exponent, "rows": rows}``, with lengths from 20 to 200, evenly; or ``{"file": path}``: the
            histories of users, a line each, of a user's id and item ids in order, of which the last 200 are taken.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        self._logged: Sequence[Ints] = []
        if "file" in spec:
            logged = _read(Path(spec["file"]))
            found, places, counts = np.unique(np.concatenate(logged), return_inverse=True, return_counts=True)
            order = np.argsort(-counts, kind="stable")
            ranks = np.empty(len(found), np.int64)
            ranks[order] = np.arange(len(found))
            ends = np.cumsum([len(each) for each in logged])
            self._logged = np.split(ranks[places.reshape(-1)], ends[:-1])
            self.counts: Ints = counts[order].astype(np.int64)
            self.mean = float(np.mean([len(each) for each in logged]))
        else:
            shares = np.arange(1, spec["rows"] + 1, dtype=np.float64) ** -spec["zipf"]
            self.counts = np.maximum(1, COUNTED * shares / shares.sum()).astype(np.int64)
            self.mean = (SHORTEST + LONGEST) / 2
        self._ends = np.cumsum(self.counts)

    @property
    def rows(self) -> int:
        """The number of different ids."""
        return len(self.counts)

    def draw(self, examples: int, random: np.random.Generator) -> tuple[Ints, Ints]:
        """Returns the ids of some histories, one after another, and their lengths."""
        if self._logged:
            chosen = [self._logged[user] for user in random.integers(0, len(self._logged), examples)]
            return np.concatenate(chosen), np.array([len(each) for each in chosen])
        lengths = random.integers(SHORTEST, LONGEST + 1, examples)
        draws = random.integers(0, self._ends[-1], int(lengths.sum()))
        return np.searchsorted(self._ends, draws, side="right"), lengths


def _read(path: Path) -> list[Ints]:
    return [
        np.array(line.split()[1:][-LONGEST:], np.int64)
        for line in path.read_text(encoding="utf-8").splitlines()
        if len(line.split()) > 1
    ]
