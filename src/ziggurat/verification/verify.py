"""Verifies whatever a path names: a run, a prepared dataset, checkpoints, a sweep, an ensemble, or an export."""

from __future__ import annotations

from pathlib import Path

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.inspect.run_folders import open_folder
from ziggurat.checkpoint.reader import FOLDER
from ziggurat.core.errors import RunFolderError, nearest
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.untrusted import kind_of_file
from ziggurat.data.encoded.manifest import MANIFEST_FILE, SPLITS
from ziggurat.serving.artefact.dense_program import PROGRAM_FILE
from ziggurat.serving.artefact.manifest import MANIFEST_FILE as EXPORT_FILE
from ziggurat.serving.artefact.manifest import TABLES
from ziggurat.training.run_folder.run import ENSEMBLE_FILE, SWEEP_FILE
from ziggurat.training.run_folder.run_files import CONFIG_FILE, DATASET_FILE, ENVIRONMENT_FILE, METRICS_FILE
from ziggurat.verification.datasets import verify_dataset
from ziggurat.verification.ensembles import verify_ensemble
from ziggurat.verification.exports import verify_export
from ziggurat.verification.findings import Findings, Kind, Verified
from ziggurat.verification.runs import verify_checkpoints, verify_run
from ziggurat.verification.sweeps import verify_sweep

_RUN_FILES = (CONFIG_FILE, ENVIRONMENT_FILE, DATASET_FILE, METRICS_FILE, "checkpoints")


def verify(path: str | Path, progress: Progress | None = None) -> Verified:
    """Reads every file of a run, a prepared dataset, checkpoints, a sweep, an ensemble or an export, and compares it
    with its checksum. Of an ensemble, these are its own file and those of the runs of its members.

    Args:
        path: its folder; for checkpoints, the folder of one of them, of all of them, or the URL of their store.
        progress: where to show progress.

    Raises:
        RunFolderError: there is no such folder, or it is none of these.
    """
    progress, findings = progress or Silent(), Findings()
    if "://" in str(path):
        verify_checkpoints(open_folder(path), findings, progress)
        return findings.verified(str(path), "checkpoints")
    folder = Path(path)
    kind = kind_of(folder)
    match kind:
        case "run":
            verify_run(folder, findings, progress)
        case "prepared dataset":
            verify_dataset(folder, findings, progress, copied=_is_copy(folder))
        case "scaling sweep":
            verify_sweep(folder, findings, progress)
        case "ensemble":
            verify_ensemble(folder, findings, progress)
        case "export":
            verify_export(folder, findings, progress)
        case "checkpoints":
            one = FOLDER.fullmatch(folder.resolve().name)
            checkpoints = CheckpointFolder(folder.resolve().parent) if one else open_folder(folder)
            verify_checkpoints(checkpoints, findings, progress, [int(one[1])] if one else None)
    return findings.verified(str(path), kind)


def _is_copy(folder: Path) -> bool:
    """Returns whether a dataset is what a run has copied from readers, which has no training rows."""
    return folder.resolve().name == "dataset" and (folder.resolve().parent / ENVIRONMENT_FILE).is_file()


def kind_of(folder: Path) -> Kind:
    """Returns what a folder holds, even if a file that would say so is missing.

    Raises:
        RunFolderError: there is no such folder, or it holds something else.
    """
    if not folder.is_dir():
        if folder.exists():
            raise RunFolderError(
                f"{folder}: is {kind_of_file(folder.stat().st_mode)}, not a folder of a run, prepared dataset, "
                "checkpoints, scaling sweep, ensemble or export",
                "name such a folder",
            )
        names = [each.name for each in folder.parent.iterdir()] if folder.parent.is_dir() else []
        close = nearest(folder.name, names)
        hint = f"did you mean {folder.parent / close}?" if close else "name the folder of a run or a prepared dataset"
        raise RunFolderError(f"{folder}: there is no such folder", hint)
    names = {each.name for each in folder.iterdir()}
    if FOLDER.fullmatch(folder.resolve().name) or (folder.resolve().name == "checkpoints"):
        return "checkpoints"
    if SWEEP_FILE in names or any(folder.glob("rung-*/seed-*")):
        return "scaling sweep"
    if ENSEMBLE_FILE in names:
        return "ensemble"
    if EXPORT_FILE in names or {TABLES, PROGRAM_FILE} <= names:
        return "export"
    if MANIFEST_FILE in names or {"train", "encoders"} <= names or len(names & {*SPLITS, "statistics.json"}) > 1:
        return "prepared dataset"
    if names & set(_RUN_FILES):
        return "run"
    if any(FOLDER.fullmatch(name) for name in names):
        return "checkpoints"
    runs = sorted(each.parent.name for each in folder.glob(f"*/{CONFIG_FILE}"))
    raise RunFolderError(
        f"{folder}: holds no run, prepared dataset, checkpoint, scaling sweep, ensemble or export",
        f"name one of its runs, as {folder / runs[0]}" if runs else "name the folder of one of these",
    )
