"""Opens run folders, and reads what is in them.

A run folder contains its config, data, library versions and progress. Its files are sealed, and say which run they
belong to (:mod:`ziggurat.training.run_folder.run_files`):

``config.yaml`` (resolved) · ``environment.json`` · ``dataset.json`` (folder of the prepared data, its fingerprint, and
the checksum of the encoders) · ``plan.json`` · ``row_order.safetensors`` (if the plan orders rows) · ``encoders/`` ·
``warm_start.json`` (if it started from another run's weights) · ``metrics.jsonl`` · ``results.json`` (once finished) ·
``tensorboard/`` · ``checkpoints/`` · ``baselines.json`` and ``report.html`` (once reported). Running ``train`` on it
again resumes exactly where it stopped.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.store.object_store import open_store
from ziggurat.checkpoint.store.writer_identity import Owner
from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.core.sealed import declared
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import ENCODERS, MANIFEST_FILE
from ziggurat.features.dataset_schema import check_schema
from ziggurat.features.saved_transform import TRANSFORM_FILE, SavedTransform
from ziggurat.features.transform import Transform
from ziggurat.objectives.label_figures import LabelFigures
from ziggurat.training.experiment import Experiment, parse_experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.run_files import (
    CONFIG_FILE,
    DATASET_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    PLAN_FILE,
    RESULTS_FILE,
    RunFiles,
    damage_of,
)

SWEEP_FILE = "scale.json"
"""File in the folder of a scaling sweep, which contains runs but is not a run."""
ENSEMBLE_FILE = "ensemble.json"
"""File in the folder of an ensemble, which names checkpoints of runs but is not a run."""


@dataclass(frozen=True, slots=True)
class DatasetPointer:
    """The prepared dataset of a run, as ``dataset.json`` records it.

    Attributes:
        folder: where it was when the run was trained.
        fingerprint: its fingerprint.
        encoders: the checksum of its fitted transform, and of the copy in the run; None in runs of version 1.
    """

    folder: str
    fingerprint: str
    encoders: str | None = None


@dataclass(frozen=True, slots=True)
class _Results:
    """The content of ``results.json``."""

    steps: int
    best_step: int
    seconds: float
    figures: dict[str, dict[str, float | None]]
    records: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """An opened run folder."""

    folder: Path
    experiment: Experiment

    @property
    def checkpoints(self) -> CheckpointFolder:
        """The checkpoints of the run; those of another run in their place are refused.

        Raises:
            RunFolderError: ``environment.json`` is damaged.
        """
        store = self.experiment.checkpoints.store
        started = (self.folder / ENVIRONMENT_FILE).exists()
        return CheckpointFolder(
            open_store(store or self.folder / "checkpoints"),
            self.experiment.training.keep,
            self.files.run_id if started else "",
        )

    @property
    def owner(self) -> Owner:
        """The owner of the run's checkpoints: this folder, with an id that stays the same if the folder is moved."""
        return Owner(str(self.folder), self.files.run_id)

    @property
    def files(self) -> RunFiles:
        """The files of the run, which are checked when they are read.

        Raises:
            RunFolderError: ``environment.json`` is missing or damaged.
        """
        return RunFiles.open(self.folder)

    @property
    def plan(self) -> dict[str, Any] | None:
        """The content of ``plan.json``; None before tables are placed."""
        return self.files.read_json(PLAN_FILE)

    @property
    def metrics_path(self) -> Path:
        return self.folder / METRICS_FILE

    @property
    def results(self) -> dict[str, Any] | None:
        """The final figures, once training has finished; undefined ones are nan.

        Raises:
            RunFolderError: ``results.json`` is damaged.
        """
        stored = self._stored_results()
        if stored is None:
            return None
        results = asdict(stored)
        del results["records"]
        for figures in results["figures"].values():
            figures.update({name: math.nan for name, value in figures.items() if value is None})
        return results

    @property
    def written_records(self) -> int | None:
        """How many records the finished training wrote to ``metrics.jsonl``; None if that is unknown.

        Raises:
            RunFolderError: ``results.json`` is damaged.
        """
        stored = self._stored_results()
        return None if stored is None else stored.records

    def _stored_results(self) -> _Results | None:
        values = self.files.read_json(RESULTS_FILE)
        return (
            None if values is None else declared(_Results, values, self.folder / RESULTS_FILE, damage_of(RESULTS_FILE))
        )

    def pointer(self) -> DatasetPointer | None:
        """Returns which prepared dataset the run uses; None before it is known.

        Raises:
            RunFolderError: ``dataset.json`` is damaged.
        """
        path, files = self.folder / DATASET_FILE, self.files
        values = files.read_json(DATASET_FILE)
        if values is None:
            return None
        damage = damage_of(DATASET_FILE)
        found = declared(DatasetPointer, values, path, damage)
        if found.encoders is None and files.has_checksums:
            raise damage.of(path, "has no checksum of the encoders")
        return found

    def encoders_checksum(self) -> str | None:
        """Returns the checksum that the transform in ``encoders/`` must have; None in runs of version 1.

        Raises:
            RunFolderError: ``dataset.json`` is missing or damaged.
        """
        return self._known_pointer().encoders

    def transform(self) -> Transform:
        """Loads the run's copy of the fitted transform.

        Raises:
            RunFolderError: ``dataset.json`` is missing or damaged.
            DataError: a file in ``encoders/`` is missing, damaged, or of another run.
        """
        return Transform.load(self.folder / ENCODERS, self.encoders_checksum())

    def labels(self) -> Mapping[str, LabelFigures]:
        """Returns figures of the labels in the training rows; empty if an earlier ziggurat prepared them.

        Raises:
            RunFolderError, DataError: as :meth:`transform`.
        """
        return SavedTransform.open(self.folder / ENCODERS, self.encoders_checksum()).labels

    def _known_pointer(self) -> DatasetPointer:
        pointer = self.pointer()
        if pointer is None:
            raise RunFolderError(
                f"{self.folder / DATASET_FILE}: is missing",
                "run `ziggurat train` with the run's config again, which writes it anew",
            )
        return pointer

    def dataset(self, prepared: str | Path | None = None) -> Dataset:
        """Returns the prepared dataset that the run was trained on.

        Args:
            prepared: folder of the dataset; default: where it was when the run was trained.

        Raises:
            RunFolderError: the folder holds a dataset made from other data or another config, or ``dataset.json`` is
                missing or damaged.
            DataError: the folder holds no dataset, or a damaged one.
        """
        pointer = self._known_pointer()
        folder = Path(pointer.folder if prepared is None else prepared)
        if not (folder / MANIFEST_FILE).is_file():
            config = self.folder / CONFIG_FILE
            again = shlex.join(["ziggurat", "prepare", str(config), "--prepared", str(folder)])
            raise DataError(
                f"{folder}: the prepared dataset of {self.folder} is not there (manifest.json is missing)",
                f"if it was moved, name its folder: --prepared DIR; if it is lost, prepare it again: `{again}`",
            )
        dataset = Dataset(folder)
        hint = (
            "name the folder that the run was trained on with --prepared DIR, restore the raw files and config of the "
            "run, or train into a new run folder"
        )
        if dataset.fingerprint != pointer.fingerprint:
            raise RunFolderError(
                f"{dataset.folder / MANIFEST_FILE}: holds dataset {dataset.fingerprint[:12]}, "
                f"the run was trained on {pointer.fingerprint[:12]}",
                hint,
            )
        theirs = dataset.checksum(ENCODERS)
        if None not in (theirs, pointer.encoders) and theirs != pointer.encoders:
            raise RunFolderError(
                f"{dataset.folder / MANIFEST_FILE}: its encoders differ from those that the run was trained with, "
                "although the config and the raw files are the same",
                hint,
            )
        if (self.folder / ENCODERS / TRANSFORM_FILE).exists():
            check_schema(dataset, SavedTransform.open(self.folder / ENCODERS, pointer.encoders))
        return dataset


def open_run(folder: str | Path) -> Run:
    """Opens an existing run folder for evaluation, prediction, reporting or export.

    Raises:
        RunFolderError: the folder holds no run, a damaged one, or one of another format version.
        ConfigError: its config is not that of an experiment.
    """
    folder = Path(folder)
    path = folder / CONFIG_FILE
    if not path.is_file():
        if (folder / SWEEP_FILE).is_file():
            runs = sorted(item.parent for item in folder.glob("rung-*/seed-*/config.yaml"))
            later = f", once `ziggurat scale` has started one, such as {folder}/rung-01/seed-0"
            example = f", such as {runs[0]}" if runs else later
            raise RunFolderError(f"{folder}: is a scaling sweep, not a run", f"name one of its runs{example}")
        if (folder / ENSEMBLE_FILE).is_file():
            raise RunFolderError(
                f"{folder}: is an ensemble, not a run",
                f"name one of the runs in {folder / ENSEMBLE_FILE}; "
                "`evaluate`, `predict`, `export`, `serve` and `verify` take ensembles",
            )
        siblings = sorted(item.parent.name for item in folder.parent.glob("*/config.yaml"))
        raise RunFolderError(
            f"{folder}: no run folder (config.yaml is missing)",
            f"runs beside it: {', '.join(siblings)}" if siblings else "train first: `ziggurat train exp.yaml`",
        )
    return Run(folder, _as_begun(parse_experiment(RunFiles.open(folder).read_config(), path)))


def _as_begun(experiment: Experiment) -> Experiment:
    """Returns the stored config of a run with what its version took where it says nothing: predictions began at 1/2."""
    if experiment.training.start_at_base_rate is not None:
        return experiment
    training = experiment.training.model_copy(update={"start_at_base_rate": False})
    return experiment.model_copy(update={"training": training})


def write_results(run: Run, results: Mapping[str, Any]) -> None:
    """Writes ``results.json``, with the number of records that training has written to ``metrics.jsonl``."""
    records = len(read_metrics_log(run.metrics_path, run.files))
    run.files.write_json(RESULTS_FILE, {**results, "records": records})
