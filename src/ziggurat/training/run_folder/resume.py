"""Begins a run in a folder, or continues the one that is there, if config, versions and data are those of it.

Every check comes before the first change: what is refused leaves the folder as it is.
"""

from __future__ import annotations

import contextlib
import platform
import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ziggurat._version import __version__
from ziggurat.core.engine import installed_engine
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import LOCK_FILE, atomic_folder, remove
from ziggurat.core.untrusted import is_plain_folder
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.features.dataset_schema import check_schema
from ziggurat.features.saved_transform import SavedTransform, copy_transform, transform_checksum
from ziggurat.training.experiment import Experiment, differing_keys, to_yaml
from ziggurat.training.run_folder.run import DatasetPointer, Run, open_run
from ziggurat.training.run_folder.run_files import (
    CONFIG_FILE,
    DATASET_FILE,
    ENVIRONMENT_FILE,
    LOOKUPS_FILE,
    PLAN_FILE,
    ROW_ORDER_FILE,
    RUN_VERSION,
    WARM_START_FILE,
    RunFiles,
    damage_of,
    read_environment,
)

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
_OPEN: dict[str, Any] = {
    "training.precision": "auto",
    "training.compile": "auto",
    "training.start_at_base_rate": None,
}
"""Keys with the value that leaves the choice to a run, which goes on with what it took."""
_FIRST_FILES = (DATASET_FILE, ENCODERS, PLAN_FILE, ROW_ORDER_FILE, LOOKUPS_FILE, WARM_START_FILE)
"""Files and folders that exist in a run folder before the first step, besides the config."""


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
    check_schema(dataset, SavedTransform.open(encoders))
    values = DatasetPointer(str(dataset.folder.resolve()), dataset.fingerprint, checksum)
    run.files.write_json(DATASET_FILE, asdict(values))


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
        and not (key in _OPEN and new == _OPEN[key])
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
