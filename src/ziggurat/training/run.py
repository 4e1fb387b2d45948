"""Opens, creates and checks run folders.

A run folder contains its config, data, library versions and progress:

``config.yaml`` (resolved) · ``environment.json`` · ``dataset.json`` (folder of the prepared data, and its
fingerprint) · ``plan.json`` · ``row_order.safetensors`` (if the plan orders rows) · ``encoders/`` ·
``warm_start.json`` (if it started from another run's weights) · ``metrics.jsonl`` · ``results.json`` (once finished) ·
``tensorboard/`` · ``checkpoints/`` · ``baselines.json`` and ``report.html`` (once reported). Running ``train`` on it
again resumes exactly where it stopped.
"""

from __future__ import annotations

import json
import math
import platform
import secrets
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ruamel.yaml import YAML

from ziggurat._version import __version__
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.store.object_store import open_store
from ziggurat.checkpoint.store.writer_identity import Owner
from ziggurat.core.config import parse_config
from ziggurat.core.engine import installed_engine
from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.core.files import LOCK_FILE, atomic_file, remove, write_json
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training.experiment import Experiment, differing_keys, to_yaml

RUN_VERSION = 1
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
        "training.reader_timeout",
    }
)
"""Keys that may differ when a run is resumed, because they do not change what is computed."""
_FIRST_FILES = (
    "config.yaml",
    "dataset.json",
    "encoders",
    "plan.json",
    "row_order.safetensors",
    "warm_start.json",
)
"""Files and folders that exist in a run folder before the first step."""


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
        return Owner(str(self.folder), (_read_json(self.folder / "environment.json") or {})["run_id"])

    @property
    def plan(self) -> dict[str, Any] | None:
        """The content of ``plan.json``; None before tables are placed."""
        return _read_json(self.folder / "plan.json")

    @property
    def metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def results(self) -> dict[str, Any] | None:
        """The final figures, once training has finished; undefined ones are nan."""
        results = _read_json(self.folder / "results.json")
        if results is not None:
            for figures in results["figures"].values():
                figures.update({name: math.nan for name, value in figures.items() if value is None})
        return results

    def dataset(self, prepared: str | Path | None = None) -> Dataset:
        """Returns the prepared dataset that the run was trained on.

        Args:
            prepared: folder of the dataset; default: where it was when the run was trained.

        Raises:
            RunFolderError: the folder holds a dataset made from other data or another config.
            DataError: the folder holds no dataset.
        """
        pointer = _read_json(self.folder / "dataset.json")
        if pointer is None:
            raise RunFolderError(f"{self.folder}: dataset.json is missing", "train again into an empty run folder")
        folder = Path(pointer["folder"] if prepared is None else prepared)
        if not (folder / "manifest.json").is_file():
            config = self.folder / "config.yaml"
            again = shlex.join(["ziggurat", "prepare", str(config), "--prepared", str(folder)])
            raise DataError(
                f"{folder}: the prepared dataset of {self.folder} is not there (manifest.json is missing)",
                f"if it was moved, name its folder: --prepared DIR; if it is lost, prepare it again: `{again}`",
            )
        dataset = Dataset(folder)
        if dataset.fingerprint != pointer["fingerprint"]:
            raise RunFolderError(
                f"{dataset.folder}: holds dataset {dataset.fingerprint[:12]}, "
                f"the run was trained on {pointer['fingerprint'][:12]}",
                "name the folder that the run was trained on with --prepared DIR, restore the raw files and config of "
                "the run, or train into a new run folder",
            )
        return dataset


def open_run(folder: str | Path) -> Run:
    """Opens an existing run folder for evaluation, prediction, reporting or export.

    Raises:
        RunFolderError: the folder holds no run, or one of another format version.
    """
    folder = Path(folder)
    path = folder / "config.yaml"
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
    environment = _read_json(folder / "environment.json") or {}
    if environment.get("run_version") != RUN_VERSION:
        raise RunFolderError(
            f"{folder}: run format {environment.get('run_version')!r} (ziggurat {environment.get('ziggurat')}), "
            f"this ziggurat {__version__} reads format {RUN_VERSION}",
            "install the ziggurat version above, or train again into another folder (--run)",
        )
    values = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    return Run(folder, parse_config(Experiment, values, str(path)))


def check_run_folder(folder: Path) -> None:
    """Refuses a folder that holds something other than a run, before anything is written into it.

    Raises:
        RunFolderError: the folder holds something else.
    """
    if folder.is_file():
        raise RunFolderError(f"{folder}: is a file", "name another folder with --run")
    if folder.is_dir() and not (folder / "config.yaml").is_file():
        foreign = [item.name for item in folder.iterdir() if item.name not in {LOCK_FILE, "environment.json"}]
        if any(not name.startswith(".") for name in foreign):
            raise RunFolderError(
                f"{folder}: exists, is not empty and is no run folder", "name another folder with --run"
            )


def create_or_resume(folder: Path, experiment: Experiment, note: Callable[[str], None] = lambda _: None) -> Run:
    """Returns the run of ``experiment`` in ``folder``: a new one, or the existing one if config and versions match.

    A run that failed before its first step has left a config but no progress; it is started again.

    Args:
        folder: the run folder.
        experiment: the config.
        note: called with a message if a run of another config is started again.

    Raises:
        RunFolderError: the folder belongs to another config (the differing keys are named) or other library versions.
    """
    if (folder / "config.yaml").is_file():
        run = open_run(folder)
        try:
            check_config(run, experiment)
            check_versions(run)
        except RunFolderError:
            if run.metrics_path.exists() or run.checkpoints.steps():
                raise
            note(f"{folder}: was started with another config or other versions and has trained no step: starting again")
            for name in _FIRST_FILES:
                remove(folder / name)
    run = Run(folder, experiment)
    # The environment is written first, so a folder that has a config is complete.
    stored = _read_json(folder / "environment.json") or {}
    identity = {"run_id": stored.get("run_id") or secrets.token_hex(8)}
    write_json(folder / "environment.json", environment(experiment.training.seed) | identity)
    with atomic_file(folder / "config.yaml") as temporary:
        temporary.write_text(to_yaml(experiment), encoding="utf-8")
    return run


def attach_dataset(run: Run, dataset: Dataset) -> None:
    """Records which prepared dataset the run uses and copies its encoders, so the run can predict without the dataset.

    Raises:
        RunFolderError: the run was started on other data.
    """
    pointer = _read_json(run.folder / "dataset.json")
    if pointer is not None and pointer["fingerprint"] != dataset.fingerprint:
        raise RunFolderError(
            f"{run.folder}: was started on dataset {pointer['fingerprint'][:12]}, "
            f"the data now prepares to {dataset.fingerprint[:12]}",
            "restore the raw files, or train into a new run folder (--run)",
        )
    if not (run.folder / "encoders").is_dir():
        shutil.copytree(dataset.folder / "encoders", run.folder / ".encoders.part", dirs_exist_ok=True)
        (run.folder / ".encoders.part").rename(run.folder / "encoders")
    write_json(
        run.folder / "dataset.json", {"folder": str(dataset.folder.resolve()), "fingerprint": dataset.fingerprint}
    )


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
    there, here = _read_json(run.folder / "environment.json") or {}, environment(run.experiment.training.seed)
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


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFolderError(
            f"{path}: not valid JSON: {error}", "restore the file, or train into a new folder"
        ) from None
