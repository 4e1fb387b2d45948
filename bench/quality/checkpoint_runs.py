"""Trainings whose checkpoints are looked at: every byte that they write counted, or stopped hard and gone on with."""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.quality.trials import prepared
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE, Manifest
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.core.config import parse_config
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

NEVER = 10**6
"""Steps between evaluations: there is one, at the end."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Intervals of one length.

    Attributes:
        steps: of an interval; a checkpoint ends it.
        counted: how many checkpoints are counted, the first full one included.
    """

    steps: int
    counted: int


@dataclass(frozen=True, slots=True)
class Subject:
    """What is trained.

    Attributes:
        name: of the data.
        values: the experiment, unparsed, without what :meth:`experiment` sets.
        epochs: of a whole training.
        batch_size: rows of a step.
        spans: the intervals at which bytes are counted; the first one's length is that of whole trainings.
        description: a description of the data, for the reader.
    """

    name: str
    values: Mapping[str, Any]
    epochs: int
    batch_size: int
    spans: tuple[Spans, ...]
    description: str

    def experiment(self, dataset: Dataset | None, every: int, seed: int, policy: str, bits: int) -> Experiment:
        """A training of as many whole intervals as its epochs have; no evaluation before the end.

        Args:
            dataset: that it is for; None: only to be prepared.
            every: steps of an interval.
            seed, policy, bits: of the same name in the config.
        """
        rows = self.batch_size * every if dataset is None else dataset.split("train").rows
        steps = max(1, self.epochs * (rows // self.batch_size) // every) * every
        training = {
            "batch_size": self.batch_size, "epochs": self.epochs, "max_steps": steps, "seed": seed, "threads": 1,
            "device": "cpu", "evaluate_every": NEVER, "save_every": every, "log_every": NEVER, "keep": 2,
            "schedule": {"name": "warmup_linear", "warmup_share": 0.05, "final_share": 0.0},
        }  # fmt: skip
        values = {**copy.deepcopy(dict(self.values)), "training": training}
        values["checkpoints"] = {"policy": policy, "bits": bits}
        return parse_config(Experiment, values, f"checkpoints of {self.name}")

    def dataset(self, folder: Path) -> Dataset:
        """Encoded, in ``folder``; made if it is not there."""
        return prepared(self.experiment(None, 1, 0, "full", 32), folder)


@dataclass(slots=True)
class Kept:
    """What checkpoints cost.

    Attributes:
        written: bytes of each, its manifest included, in order.
        peak: most bytes that lay in the folder at any moment, a file being replaced counted once.
        resting: most bytes that lay there between two checkpoints.
        full: how many were full.
        rows: written by each.
        all_rows: of the tables.
        table_bytes: of ``written``, of files with rows of tables.
    """

    written: list[int]
    peak: int
    resting: int
    full: int
    rows: list[int]
    all_rows: int
    table_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Kept:
        return cls(**values)


class Ledger:
    """Follows what is written into a folder of checkpoints, and deleted from it, up to some checkpoint.

    Args:
        counted: after so many manifests nothing is counted any more.
    """

    def __init__(self, counted: int) -> None:
        self._left, self._files = counted, dict[tuple[str, str], int]()
        self._by_folder: dict[str, int] = {}
        self._peak = self._resting = 0
        self._manifests: list[Manifest] = []

    def wrote(self, folder: str, name: str, data: bytes) -> None:
        """A file is there."""
        if not self._left:
            return
        if folder not in self._by_folder:
            self._resting = max(self._resting, sum(self._files.values()))
        self._files[folder, name] = len(data)
        self._by_folder[folder] = self._by_folder.get(folder, 0) + len(data)
        self._peak = max(self._peak, sum(self._files.values()))
        if name == MANIFEST_FILE:
            self._manifests.append(Manifest.from_bytes(data, f"{folder}/{name}"))
            self._left -= 1

    def deleted(self, folder: str, name: str | None) -> None:
        """A file, or all of a folder, is gone."""
        for each in [key for key in self._files if key[0] == folder and name in {None, key[1]}]:
            del self._files[each]

    def kept(self) -> Kept:
        """What came of it.

        Raises:
            AssertionError: fewer checkpoints came.
        """
        assert self._left == 0, f"{self._left} checkpoints have not come"
        with_rows = [file for each in self._manifests for file in each.files if file.blocks]
        return Kept(
            written=[self._by_folder[folder_of(each.step)] for each in self._manifests],
            peak=self._peak,
            resting=self._resting,
            full=sum(each.kind == "full" for each in self._manifests),
            rows=[sum(block.rows for file in each.files for block in file.blocks) for each in self._manifests],
            all_rows=sum(table.rows for table in self._manifests[0].tables.values()),
            table_bytes=sum(file.bytes for file in with_rows),
        )


@contextlib.contextmanager
def followed(ledger: Ledger) -> Generator[None]:
    """Within the context, ``ledger`` records every file that this process writes or deletes through a local store."""
    write, delete = LocalStore.write, LocalStore.delete

    def recorded_write(self: LocalStore, folder: str, name: str, data: bytes) -> None:
        write(self, folder, name, data)
        ledger.wrote(folder, name, data)

    def recorded_delete(self: LocalStore, folder: str, name: str | None = None) -> None:
        delete(self, folder, name)
        ledger.deleted(folder, name)

    LocalStore.write, LocalStore.delete = recorded_write, recorded_delete
    try:
        yield
    finally:
        LocalStore.write, LocalStore.delete = write, delete


def counted(subject: Subject, dataset: Dataset, spans: Spans, policy: str, bits: int, scratch: Path) -> Kept:
    """Train over the intervals of ``spans``, one newest checkpoint kept, and count."""
    values = subject.experiment(dataset, spans.steps, 0, policy, bits)
    training = values.training.model_copy(update={"keep": 1})
    ledger = Ledger(spans.counted)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="counted-") as folder, followed(ledger):
        # The stop saves once more, exactly; that one is not counted.
        stop = spans.steps * spans.counted + 1
        run = Path(folder) / "run"
        api.train(values.model_copy(update={"training": training}), run, prepared=dataset.folder, stop_after=stop)
    return ledger.kept()


def log_loss(
    subject: Subject, dataset: Dataset, seed: int, bits: int, restores: int, scratch: Path, policy: str = "intermittent"
) -> float:
    """On the test rows at the end of a training that failed and went on ``restores`` times, evenly spread.

    It goes on from the last checkpoint that it had written by itself: training is stopped a step behind it, and the
    exact checkpoint that a stop leaves is taken away, which is what a killed process leaves.
    """
    every = subject.spans[0].steps
    experiment = subject.experiment(dataset, every, seed, policy, bits)
    steps = experiment.training.max_steps
    assert steps is not None
    with tempfile.TemporaryDirectory(dir=scratch, prefix="restored-") as folder:
        run = Path(folder) / "run"
        for at in failures(steps, every, restores):
            api.train(experiment, run, prepared=dataset.folder, stop_after=at + 1)
            _forget(CheckpointFolder(run / "checkpoints"), at, bits)
        outcome = api.train(experiment, run, prepared=dataset.folder)
    assert outcome.results is not None
    return float(outcome.results["figures"]["test"]["log_loss"])


def failures(steps: int, every: int, restores: int) -> list[int]:
    """The steps whose checkpoint is gone on from: ends of intervals, ascending, none twice, before the last.

    Raises:
        AssertionError: there are fewer intervals.
    """
    intervals = steps // every
    ends = [number * intervals // (restores + 1) for number in range(1, restores + 1)]
    assert not ends or (ends[0] > 0 and len(set(ends)) == len(ends)), f"{restores} failures in {intervals} intervals"
    return [each * every for each in ends]


def _forget(checkpoints: CheckpointFolder, at: int, bits: int) -> None:
    """Delete the checkpoint that a stop one step behind ``at`` left."""
    checkpoints.store.delete(folder_of(at + 1))
    manifest = checkpoints.manifest(at)
    assert checkpoints.last() == at, checkpoints.steps()
    assert manifest is not None
    assert manifest.bits == bits, manifest.bits
