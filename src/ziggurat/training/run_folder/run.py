"""Opens, creates and checks run folders.

A run folder contains its config, data, library versions and progress. Its files are sealed, and say which run they
belong to (:mod:`ziggurat.training.run_folder.run_files`):

``config.yaml`` (resolved) · ``environment.json`` · ``dataset.json`` (folder of the prepared data, its fingerprint, and
the checksum of the encoders) · ``plan.json`` · ``row_order.safetensors`` (if the plan orders rows) · ``encoders/`` ·
``warm_start.json`` (if it started from another run's weights) · ``metrics.jsonl`` · ``results.json`` (once finished) ·
``tensorboard/`` · ``checkpoints/`` · ``baselines.json`` and ``report.html`` (once reported). Running ``train`` on it
again resumes exactly where it stopped.
"""

from __future__ import annotations

import contextlib
import math
import platform
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ziggurat._version import __version__
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.store.object_store import open_store
from ziggurat.checkpoint.store.writer_identity import Owner
from ziggurat.core.engine import installed_engine
from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.core.files import LOCK_FILE, atomic_folder, remove
from ziggurat.core.sealed import declared
from ziggurat.core.untrusted import is_plain_folder
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import ENCODERS, MANIFEST_FILE
from ziggurat.features.saved_transform import copy_transform, transform_checksum
from ziggurat.features.transform import Transform
from ziggurat.training.experiment import Experiment, differing_keys, parse_experiment, to_yaml
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.run_files import (
    CONFIG_FILE,
    DATASET_FILE,
    ENVIRONMENT_FILE,
    METRICS_FILE,
    PLAN_FILE,
    RESULTS_FILE,
    ROW_ORDER_FILE,
    RUN_VERSION,
    WARM_START_FILE,
    RunFiles,
    damage_of,
    read_environment,
)

SWEEP_FILE = "scale.json"
"""File in the folder of a scaling sweep, which contains runs but is not a run."""

_MAY_GROW = frozenset({"training.epochs", "training.max_steps"})
"""Keys whose values may grow when a run is resumed: training longer does not make it another experiment."""
_MAY_DIFFER = frozenset(
    {
        "data.folder",
        "training.log_every",
        "training.keep",
        "training.prefetch",
        "evaluation.batch_size",
        "parallel.timeout_s",
        "parallel.pipeline",
        "training.readers",
        "training.reader_token_file",
        "training.reader_authorities",
        "training.reader_timeout",
    }
)
"""Keys that may differ when a run is resumed, because they do not change what is computed."""
_FIRST_FILES = (DATASET_FILE, ENCODERS, PLAN_FILE, ROW_ORDER_FILE, WARM_START_FILE)
"""Files and folders that exist in a run folder before the first step, besides the config."""


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
        store = self.experiment.checkpoints.store
        return CheckpointFolder(open_store(store or self.folder / "checkpoints"), self.experiment.training.keep)

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
                f"{dataset.folder}: holds dataset {dataset.fingerprint[:12]}, "
                f"the run was trained on {pointer.fingerprint[:12]}",
                hint,
            )
        theirs = dataset.checksum(ENCODERS)
        if None not in (theirs, pointer.encoders) and theirs != pointer.encoders:
            raise RunFolderError(
                f"{dataset.folder}: its encoders differ from those that the run was trained with, although the config "
                "and the raw files are the same",
                hint,
            )
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
        siblings = sorted(item.parent.name for item in folder.parent.glob("*/config.yaml"))
        raise RunFolderError(
            f"{folder}: no run folder (config.yaml is missing)",
            f"runs beside it: {', '.join(siblings)}" if siblings else "train first: `ziggurat train exp.yaml`",
        )
    return Run(folder, parse_experiment(RunFiles.open(folder).read_config(), path))


def check_run_folder(folder: Path) -> None:
    """Refuses a folder that holds something other than a run, before anything is written into it.

    Raises:
        RunFolderError: the folder holds something else, or a run without its config.
    """
    if folder.is_file():
        raise RunFolderError(f"{folder}: is a file", "name another folder with --run")
    if folder.is_dir() and not (folder / CONFIG_FILE).is_file():
        foreign = [item.name for item in folder.iterdir() if item.name not in {LOCK_FILE, ENVIRONMENT_FILE}]
        if {DATASET_FILE, ENVIRONMENT_FILE} <= {item.name for item in folder.iterdir()}:
            raise damage_of(CONFIG_FILE).of(folder / CONFIG_FILE, "is missing")
        if any(not name.startswith(".") for name in foreign):
            raise RunFolderError(
                f"{folder}: exists, is not empty and is no run folder", "name another folder with --run"
            )


def check_resumable(folder: Path, experiment: Experiment) -> bool:
    """Checks, without changing anything, that ``experiment`` may be trained in ``folder``.

    A run that failed before its first step has left a config but no progress. :func:`begin_run` replaces it.

    Args:
        folder: the run folder, which need not exist.
        experiment: the config.

    Returns:
        Whether the folder holds a run that is to be continued, as its config and versions match.

    Raises:
        RunFolderError: the folder belongs to another config (the differing keys are named) or other library versions.
    """
    if not (folder / CONFIG_FILE).is_file():
        return False
    run = open_run(folder)
    try:
        check_config(run, experiment)
        check_versions(run)
    except RunFolderError:
        if run.metrics_path.exists() or run.checkpoints.steps():
            raise
        return False
    return True


def begin_run(run: Run) -> None:
    """Writes the first files of a run; those of a run that has trained no step are deleted."""
    for name in _FIRST_FILES:
        remove(run.folder / name)
    _write_config(run, RunFiles(run.folder, RUN_VERSION, _known_id(run.folder) or secrets.token_hex(8)))


def record_config(run: Run) -> None:
    """Writes the config with which a run continues, and the machine on which it does."""
    _write_config(run, run.files)


def _write_config(run: Run, files: RunFiles) -> None:
    # The environment is written first, so a folder that has a config is complete. It says to which version the files
    # belong that are there already, so that a run of version 1 stays one.
    values = environment(run.experiment.training.seed) | {"run_version": files.version}
    files.write_json(ENVIRONMENT_FILE, values)
    files.write_config(to_yaml(run.experiment))


def _known_id(folder: Path) -> str | None:
    """Returns the id of the run in ``folder``; None if it has none yet."""
    with contextlib.suppress(RunFolderError):  # of a run without a config, nothing else exists
        return RunFiles.open(folder).run_id
    return None


def check_dataset(run: Run, dataset: Dataset) -> None:
    """Checks that a dataset is the one that a run was started on, if it has been started.

    Raises:
        RunFolderError: the run was started on other data, or its encoders are not those of the dataset.
        DataError: the encoders of the dataset are damaged.
    """
    pointer = run.pointer()
    if pointer is None:
        return
    if pointer.fingerprint != dataset.fingerprint:
        raise RunFolderError(
            f"{run.folder}: was started on dataset {pointer.fingerprint[:12]}, "
            f"the data now prepares to {dataset.fingerprint[:12]}",
            "restore the raw files, or train into a new run folder (--run)",
        )
    checksum = transform_checksum(dataset.folder / ENCODERS, dataset.checksum(ENCODERS))
    if pointer.encoders not in {None, checksum}:
        raise RunFolderError(
            f"{dataset.folder}: its encoders differ from those that {run.folder} was started with",
            "restore that dataset, or train into a new run folder (--run)",
        )


def attach_dataset(run: Run, dataset: Dataset) -> None:
    """Records which prepared dataset the run uses and copies its encoders, so the run can predict without the dataset.

    Raises:
        RunFolderError: the run was started on other data, or its encoders are not those of the dataset.
        DataError: the encoders of the dataset or of the run are damaged.
    """
    check_dataset(run, dataset)
    theirs, encoders = dataset.folder / ENCODERS, run.folder / ENCODERS
    recorded = dataset.checksum(ENCODERS)
    if is_plain_folder(encoders):
        checksum = transform_checksum(theirs, recorded)
    else:
        with atomic_folder(encoders) as temporary:
            checksum = copy_transform(theirs, temporary, recorded)
    if transform_checksum(encoders) != checksum:
        raise RunFolderError(
            f"{encoders}: is damaged, or of another run: it differs from the encoders in {dataset.folder}",
            "delete that folder: training copies it again",
        )
    values = DatasetPointer(str(dataset.folder.resolve()), dataset.fingerprint, checksum)
    run.files.write_json(DATASET_FILE, asdict(values))


def write_results(run: Run, results: Mapping[str, Any]) -> None:
    """Writes ``results.json``, with the number of records that training has written to ``metrics.jsonl``."""
    records = len(read_metrics_log(run.metrics_path, run.files))
    run.files.write_json(RESULTS_FILE, {**results, "records": records})


def environment(seed: int) -> dict[str, Any]:
    """Returns versions, machine and seed, as stored in ``environment.json``."""
    engine = installed_engine()
    return {
        "run_version": RUN_VERSION,
        "ziggurat": __version__,
        "torch": engine.torch,
        "torchrec": engine.torchrec,
        "fbgemm": engine.fbgemm,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "seed": seed,
    }


def check_config(run: Run, experiment: Experiment) -> None:
    """Refuses to resume a run whose config differs from ``experiment``; a longer training is allowed.

    Raises:
        RunFolderError: the configs differ; the message lists the keys.
    """
    differences = [
        (key, old, new)
        for key, old, new in differing_keys(run.experiment.model_dump(mode="json"), experiment.model_dump(mode="json"))
        if key not in _MAY_DIFFER
        and not (key.startswith(("planning.", "checkpoints.")) and key != "checkpoints.store")
        and not (key.startswith("training.warm_start") and run.checkpoints.last() is None)
        and not (key in _MAY_GROW and _grows(old, new))
    ]
    if differences:
        listed = "\n  ".join(f"{key}: the run has {old!r}, you ask for {new!r}" for key, old, new in differences[:8])
        raise RunFolderError(
            f"{run.folder}: belongs to another config\n  {listed}",
            "name another folder with --run, or delete this one",
        )


def check_versions(run: Run) -> None:
    """Refuses to resume a run of other library versions than the installed ones.

    Raises:
        RunFolderError: a version differs; the message names the first one.
    """
    there, here = read_environment(run.folder), environment(run.experiment.training.seed)
    for key in ("ziggurat", "torch", "torchrec", "fbgemm"):
        if there.get(key) != here[key]:
            raise RunFolderError(
                f"{run.folder}: was trained with {key} {there.get(key)}, this is {here[key]}; "
                "it could not be resumed bit for bit",
                "install that version, or train again into another folder (--run)",
            )


def _grows(old: Any, new: Any) -> bool:
    """Returns whether training length ``new`` is at least ``old``; None means all epochs."""
    return new is None or (old is not None and new >= old)
