"""``reference.json``: what the served traffic is compared with, and what a page says about the training.

It is a file beside the manifest, which names it with its checksums; exports of earlier versions have none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from ziggurat.core.sealed import declared, read_sealed_json, write_sealed_json
from ziggurat.serving.artefact.damage import DAMAGED, check_version
from ziggurat.serving.artefact.manifest import Manifest

REFERENCE_FILE = "reference.json"
REFERENCE_VERSION = 1
BINS = 10
"""Bins of the scores: each holds a tenth of the validation's, where few scores are equal."""


@dataclass(frozen=True, slots=True)
class ScoreBins:
    """How the predictions of a label are distributed.

    Attributes:
        edges: ascending, the limits between the bins; a bin holds its lower limit.
        counts: rows in each bin, one more than edges.
        mean: the mean prediction.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    mean: float


@dataclass(frozen=True, slots=True)
class IdCounts:
    """Ids of a feature, and those of them whose values training did not know."""

    ids: int
    unknown: int

    @property
    def share(self) -> float:
        """The share of unknown ids; 0 without ids."""
        return self.unknown / self.ids if self.ids else 0.0


@dataclass(frozen=True, slots=True)
class NumberRange:
    """Values of a numeric column in the training rows."""

    least: float
    median: float
    greatest: float


@dataclass(frozen=True, slots=True)
class Training:
    """How the run was trained.

    Attributes:
        finished_at: when its results were written, in seconds since 1970; None if it did not finish.
        seconds: how long it took; None if it did not finish.
        steps: its steps; None if it did not finish.
        rows: split -> rows.
    """

    finished_at: float | None
    seconds: float | None
    steps: int | None
    rows: dict[str, int]


@dataclass(frozen=True, slots=True)
class Reference:
    """The content of ``reference.json``.

    Attributes:
        split: the split that was predicted: ``validation``, where there is one.
        rows: rows of it that were predicted.
        scores: label -> how its predictions are distributed.
        unknown_ids: feature -> its ids in these rows.
        numbers: numeric column -> its values in the training rows.
        training: how the run was trained.
        format_version: version of the format.
    """

    split: str
    rows: int
    scores: dict[str, ScoreBins]
    unknown_ids: dict[str, IdCounts]
    numbers: dict[str, NumberRange] = field(default_factory=dict[str, NumberRange])
    training: Training | None = None
    format_version: int = REFERENCE_VERSION

    def write(self, folder: Path) -> None:
        """Writes the file."""
        write_sealed_json(folder / REFERENCE_FILE, asdict(self))

    @classmethod
    def read(cls, folder: Path, manifest: Manifest) -> Self | None:
        """Returns the content of the file of an export; None if the export has none.

        Raises:
            DataError: it is damaged, or of another version.
        """
        if REFERENCE_FILE not in manifest.files:
            return None
        path = folder / REFERENCE_FILE
        try:
            values: dict[str, Any] = read_sealed_json(path, DAMAGED)
        except FileNotFoundError:
            raise DAMAGED.of(path, "is missing") from None
        check_version(values, path, REFERENCE_VERSION)
        found = declared(cls, values, path, DAMAGED)
        for fault in found._faults(manifest):
            raise DAMAGED.of(path, fault)
        return found

    def _faults(self, manifest: Manifest) -> Iterator[str]:
        labels = {task.name for task in manifest.tasks}
        for label, bins in self.scores.items():
            ascending = all(low < high for low, high in itertools.pairwise(bins.edges))
            finite = all(map(math.isfinite, (*bins.edges, bins.mean)))
            counted = len(bins.counts) == len(bins.edges) + 1 and all(0 <= each < 1 << 62 for each in bins.counts)
            if label not in labels or not (ascending and finite and counted):
                yield f"scores of {label!r}: no distribution of a label"
        for feature, counts in self.unknown_ids.items():
            if not 0 <= counts.unknown <= counts.ids < 1 << 62:
                yield f"unknown_ids of {feature!r}: {counts.unknown:,} of {counts.ids:,}"
