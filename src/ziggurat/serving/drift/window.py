"""The scores and unknown ids of the last hour, of all workers, beside those of the validation.

Each worker counts into slots of a minute. With several workers the slots of each are a file that is mapped into memory
in a folder that they share, so that any of them adds all up.
"""

from __future__ import annotations

import bisect
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.serving.artefact.reference import IdCounts, Reference, ScoreBins
from ziggurat.serving.drift.psi import psi

SLOT_S = 60
SLOTS = 60
WINDOW_S = SLOT_S * SLOTS
LEAST_SCORES = 500
"""Fewer scores show no index: of so many rows it is near 0.02 without any drift."""

_FEW = 16
"""Scores that are counted one by one."""

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LabelDrift:
    """Scores of a label in the window.

    Attributes:
        scores: how many.
        counts: in each bin.
        bins: those of the validation.
        index: the population stability index; None for fewer than 500 scores.
    """

    scores: int
    counts: tuple[int, ...]
    bins: ScoreBins
    index: float | None


@dataclass(frozen=True, slots=True)
class Drift:
    """The window.

    Attributes:
        labels: label -> its scores, of labels whose validation is known.
        unknown: feature -> its ids in the window.
        expected: feature -> its ids in the validation, as far as they are known.
    """

    labels: dict[str, LabelDrift]
    unknown: dict[str, IdCounts]
    expected: dict[str, IdCounts]


class Window:
    """Counts scores and ids of the last hour.

    Args:
        reference: what they are compared with; None: ids are counted alone.
        features: the features whose ids are counted.
        folder: where workers share their counts; None: there is one.
        version: the model's version; workers add up those of the same.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        reference: Reference | None,
        features: tuple[str, ...],
        folder: Path | None = None,
        version: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._bins = {} if reference is None else reference.scores
        self._expected = {} if reference is None else reference.unknown_ids
        self._features, self._clock = features, clock
        self._edges = {label: list(bins.edges) for label, bins in self._bins.items()}
        width = 1 + sum(len(bins.counts) for bins in self._bins.values()) + 2 * len(features)
        self._shape = (SLOTS, width)
        self._folder, self._name = folder, f"window-{version}-{width}"
        if folder is None:
            self._slots: Counts = np.zeros(self._shape, np.int64)
        else:
            path = folder / f"{self._name}-{os.getpid()}.counts"
            self._slots = np.asarray(np.memmap(path, np.int64, "w+", shape=self._shape))  # a view, which is faster

    def add(self, outputs: Mapping[str, npt.NDArray[np.float32]], ids: Mapping[str, IdCounts]) -> None:
        """Counts a batch.

        Args:
            outputs: label -> its predictions.
            ids: feature -> its ids.
        """
        slot = self._slot()
        at = 1
        for label, edges in self._edges.items():
            scores = outputs[label]
            if len(scores) <= _FEW:  # numpy's search gives other threads the interpreter, for which it may wait long
                for score in scores.tolist():
                    if math.isfinite(score):
                        slot[at + bisect.bisect_right(edges, score)] += 1
            else:
                found = np.searchsorted(edges, scores[np.isfinite(scores)].astype(np.float64), side="right")
                slot[at : at + len(edges) + 1] += np.bincount(found, minlength=len(edges) + 1)
            at += len(edges) + 1
        for feature in self._features:
            counts = ids.get(feature)
            if counts is not None:
                slot[at : at + 2] += counts.ids, counts.unknown
            at += 2

    def drift(self) -> Drift:
        """Returns what the window of all workers holds."""
        total = self._total()
        at = 1
        labels: dict[str, LabelDrift] = {}
        for label, bins in self._bins.items():
            counts = tuple(total[at : at + len(bins.counts)].tolist())
            at += len(bins.counts)
            index = psi(bins.counts, counts) if sum(counts) >= LEAST_SCORES else None
            labels[label] = LabelDrift(sum(counts), counts, bins, index)
        unknown: dict[str, IdCounts] = {}
        for feature in self._features:
            unknown[feature] = IdCounts(*map(int, total[at : at + 2]))
            at += 2
        return Drift(labels, unknown, self._expected)

    def _slot(self) -> Counts:
        """Returns the slot of this minute, whose first number says which it is."""
        minute = int(self._clock() // SLOT_S)
        slot = self._slots[minute % SLOTS]
        if slot[0] != minute:
            slot[1:] = 0
            slot[0] = minute
        return slot

    def _total(self) -> Counts:
        least = int(self._clock() // SLOT_S) - SLOTS
        total = np.zeros(self._shape[1], np.int64)
        for slots in self._of_workers():
            total += slots[slots[:, 0] > least].sum(axis=0)
        return total

    def _of_workers(self) -> list[Counts]:
        if self._folder is None:
            return [self._slots]
        size = 8 * self._shape[0] * self._shape[1]
        found: list[Counts] = []
        for path in self._folder.glob(f"{self._name}-*.counts"):
            data = path.read_bytes()
            if len(data) == size:  # else it is being made
                found.append(np.frombuffer(data, np.int64).reshape(self._shape))
        return found
