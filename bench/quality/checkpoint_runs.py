"""Trainings that count the bytes of their checkpoints, or that fail and resume from them."""

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
"""The steps between evaluations, so many that there is only one at the end."""


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of one length, each of which ends with a checkpoint.

    Attributes:
        steps: the steps of an interval.
        counted: the number of checkpoints to count, including the first full one.
    """

    steps: int
    counted: int


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """A data set, and the training on it.

    Attributes:
        name: the name of the data set.
        values: the unparsed experiment, without the values that :meth:`experiment` sets.
        epochs: the epochs of a complete training.
        batch_size: the batch size.
        intervals: the intervals at which bytes are counted; complete trainings use the first.
        description: the description of the data for the notes.
    """

    name: str
    values: Mapping[str, Any]
    epochs: int
    batch_size: int
    intervals: tuple[Intervals, ...]
    description: str

    def experiment(self, dataset: Dataset | None, every: int, seed: int, policy: str, bits: int) -> Experiment:
        """Returns a training of as many complete intervals as its epochs have, with an evaluation at the end.

        Args:
            dataset: the dataset; None for an experiment that is only prepared.
            every: the steps of an interval.
            seed, policy, bits: the values of the same names in the config.
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
        """Returns the encoded dataset, and prepares it in ``folder`` if it is missing."""
        return prepared(self.experiment(None, 1, 0, "full", 32), folder)


@dataclass(slots=True)
class StorageBytes:
    """The storage that checkpoints use.

    Attributes:
        written: the bytes of each checkpoint, including its manifest, in order.
        peak: the largest size of the folder at any moment; a file that is being replaced counts once.
        resting: the largest size of the folder between two checkpoints.
        full: the number of full checkpoints.
        rows: the rows that each checkpoint contains.
        all_rows: the rows of all tables.
        table_bytes: the part of ``written`` that is in files with rows of tables.
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
    def from_json(cls, values: Mapping[str, Any]) -> StorageBytes:
        return cls(**values)


class Ledger:
    """Counts the bytes that are written to a folder of checkpoints and deleted from it.

    Args:
        counted: the number of checkpoints after which counting stops.
    """

    def __init__(self, counted: int) -> None:
        self._left, self._files = counted, dict[tuple[str, str], int]()
        self._by_folder: dict[str, int] = {}
        self._peak = self._resting = 0
        self._manifests: list[Manifest] = []

    def wrote(self, folder: str, name: str, data: bytes) -> None:
        """Records a written file."""
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
        """Records a deleted file, or a deleted folder if ``name`` is None."""
        for each in [key for key in self._files if key[0] == folder and name in {None, key[1]}]:
            del self._files[each]

    def totals(self) -> StorageBytes:
        """Returns the counted bytes.

        Raises:
            AssertionError: there were fewer checkpoints than expected.
        """
        assert self._left == 0, f"{self._left} checkpoints are missing"
        with_rows = [file for each in self._manifests for file in each.files if file.blocks]
        return StorageBytes(
            written=[self._by_folder[folder_of(each.step)] for each in self._manifests],
            peak=self._peak,
            resting=self._resting,
            full=sum(each.kind == "full" for each in self._manifests),
            rows=[sum(block.rows for file in each.files for block in file.blocks) for each in self._manifests],
            all_rows=sum(table.rows for table in self._manifests[0].tables.values()),
            table_bytes=sum(file.bytes for file in with_rows),
        )


@contextlib.contextmanager
def recording(ledger: Ledger) -> Generator[None]:
    """Makes ``ledger`` record the files that this process writes or deletes through a local store in the context."""
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


def counted(
    setup: TrainingSetup, dataset: Dataset, intervals: Intervals, policy: str, bits: int, scratch: Path
) -> StorageBytes:
    """Trains over ``intervals`` with one checkpoint kept, and returns the bytes of the checkpoints."""
    values = setup.experiment(dataset, intervals.steps, 0, policy, bits)
    training = values.training.model_copy(update={"keep": 1})
    ledger = Ledger(intervals.counted)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="counted-") as folder, recording(ledger):
        # Stopping writes another, exact checkpoint, which is not counted.
        stop = intervals.steps * intervals.counted + 1
        run = Path(folder) / "run"
        api.train(values.model_copy(update={"training": training}), run, prepared=dataset.folder, stop_after=stop)
    return ledger.totals()


def log_loss(
    setup: TrainingSetup,
    dataset: Dataset,
    seed: int,
    bits: int,
    restores: int,
    scratch: Path,
    policy: str = "intermittent",
) -> float:
    """Returns the log-loss on the test rows after a training that failed and resumed ``restores`` times.

    The failures are evenly spaced. The training stops a step after a regular checkpoint, and the exact checkpoint that
    stopping writes is deleted. This leaves the folder as after a killed process, and training resumes from the regular
    checkpoint.
    """
    every = setup.intervals[0].steps
    experiment = setup.experiment(dataset, every, seed, policy, bits)
    steps = experiment.training.max_steps
    assert steps is not None
    with tempfile.TemporaryDirectory(dir=scratch, prefix="restored-") as folder:
        run = Path(folder) / "run"
        for at in failure_steps(steps, every, restores):
            api.train(experiment, run, prepared=dataset.folder, stop_after=at + 1)
            _delete_stop_checkpoint(CheckpointFolder(run / "checkpoints"), at, bits)
        outcome = api.train(experiment, run, prepared=dataset.folder)
    assert outcome.results is not None
    return float(outcome.results["figures"]["test"]["log_loss"])


def failure_steps(steps: int, every: int, restores: int) -> list[int]:
    """Returns the steps of the checkpoints from which a failed training resumes.

    They are ascending, unique ends of intervals before the last one.

    Raises:
        AssertionError: there are fewer intervals than failures.
    """
    intervals = steps // every
    ends = [number * intervals // (restores + 1) for number in range(1, restores + 1)]
    assert not ends or (ends[0] > 0 and len(set(ends)) == len(ends)), f"{restores} failures in {intervals} intervals"
    return [each * every for each in ends]


def _delete_stop_checkpoint(checkpoints: CheckpointFolder, at: int, bits: int) -> None:
    """Deletes the checkpoint that a stop one step after ``at`` has written."""
    checkpoints.store.delete(folder_of(at + 1))
    manifest = checkpoints.manifest(at)
    assert checkpoints.last() == at, checkpoints.steps()
    assert manifest is not None
    assert manifest.bits == bits, manifest.bits
