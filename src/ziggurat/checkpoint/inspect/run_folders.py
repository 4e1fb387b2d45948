"""Finds the checkpoints that a user names: by a run folder, by the folder of its checkpoints, or by a store's URL."""

from __future__ import annotations

import os
from pathlib import Path

from ziggurat.checkpoint.folder import BEST_FILE, CHECKPOINTS, ENVIRONMENT, CheckpointFolder
from ziggurat.checkpoint.reader import FOLDER
from ziggurat.checkpoint.store.object_store import open_store
from ziggurat.core.errors import RunFolderError, nearest
from ziggurat.core.files import LOCK_FILE
from ziggurat.core.remote.uri import checked_store_uri
from ziggurat.core.untrusted import Damage, read_json_object, read_yaml

CONFIG = "config.yaml"
"""Name of the config in a run folder."""


def open_folder(place: CheckpointFolder | str | Path) -> CheckpointFolder:
    """Opens the checkpoints of a run.

    Args:
        place: the run folder, the folder of its checkpoints, or the URL of their store. Checkpoints that are open
            already are returned as they are.

    Raises:
        RunFolderError: there is no such run, its config cannot be read, or a symbolic link leads out of it.
        ConfigError: its ``checkpoints.store`` is no place for checkpoints.
    """
    if isinstance(place, CheckpointFolder):
        return place
    if "://" in str(place):
        found = CheckpointFolder(open_store(str(place)))
        if not any(FOLDER.fullmatch(name) for name in found.store.folders()):
            raise RunFolderError(f"{place}: no checkpoint", "name the value of checkpoints.store in the run's config")
        return found
    path = Path(place)
    if (path / CHECKPOINTS).is_file():
        raise RunFolderError(f"{path / CHECKPOINTS}: is a file, not a folder of checkpoints", "move it away")
    if os.path.lexists(path / CONFIG):
        store = open_store(_configured_store(path / CONFIG) or path / CHECKPOINTS)
        return CheckpointFolder(store, run_id=_run_id(path))
    if (path / CHECKPOINTS).is_dir():
        return CheckpointFolder(open_store(path / CHECKPOINTS), run_id=_run_id(path))
    above = path.resolve().parent
    folder = CheckpointFolder(path, run_id=_run_id(above) if path.resolve().name == CHECKPOINTS else "")
    has_some = any(FOLDER.fullmatch(name) for name in folder.store.folders()) or BEST_FILE in folder.store.files()
    if path.is_dir() and (has_some or path.resolve().name == CHECKPOINTS):
        return folder
    raise _no_run(path)


def run_folder(path: Path) -> Path | None:
    """Returns the run folder of ``path``, which training locks; None if there is none.

    Args:
        path: the run folder, or the folder of its checkpoints.
    """
    if (path / CHECKPOINTS).is_dir() or (path / CONFIG).is_file():
        return path
    parent = path.resolve().parent
    return parent if (parent / CONFIG).is_file() or (parent / LOCK_FILE).is_file() else None


def recorded_run_id(run: Path, damage: Damage) -> str | None:
    """Returns the id of a run that its folder records; None if it records none.

    Raises:
        ZigguratError: of class ``damage.error``: the file cannot be read.
    """
    try:
        found = read_json_object(run / ENVIRONMENT, damage).get("run_id")
    except FileNotFoundError:
        return None
    return found if isinstance(found, str) and found else None


def _run_id(run: Path) -> str:
    """Returns the id of a run; empty if that cannot be read, so that nothing is known to be foreign."""
    try:
        return recorded_run_id(run, Damage(RunFolderError, "")) or ""
    except (OSError, RunFolderError):
        return ""


def _configured_store(config: Path) -> str | None:
    """Returns ``checkpoints.store`` of a run's config; None means in the run folder."""
    hint = f"restore it, or name the folder of the checkpoints, as {config.parent / CHECKPOINTS}"
    values = read_yaml(config, Damage(RunFolderError, hint))
    section = values.get("checkpoints") if isinstance(values, dict) else None
    place = section.get("store") if isinstance(section, dict) else None
    return None if place is None else checked_store_uri(str(place))


def _no_run(path: Path) -> RunFolderError:
    if path.is_file():
        return RunFolderError(f"{path}: is a file, not a run folder", "name the folder of a run")
    if not path.is_dir():
        near = nearest(path.name, _runs_in(path.parent)) if path.parent.is_dir() else None
        hint = f"did you mean {path.parent / near}?" if near else "name the folder of a run, as in runs/NAME"
        return RunFolderError(f"{path}: there is no such folder", hint)
    match = FOLDER.fullmatch(path.resolve().name)
    if match is not None:
        above = path.resolve().parent
        run = above.parent if above.name == CHECKPOINTS else above
        return RunFolderError(f"{path}: is a single checkpoint", f"name the run, {run}, and then step {int(match[1])}")
    runs = _runs_in(path) or [
        str(each.parent.relative_to(path)) for each in sorted(path.glob("rung-*/seed-*/" + CONFIG))
    ]
    if runs:
        return RunFolderError(f"{path}: contains runs, but is not one", f"name one of them, as {path / runs[0]}")
    return RunFolderError(
        f"{path}: not a run folder: there is neither {CONFIG} nor a folder {CHECKPOINTS} in it",
        "name the folder of a run, as in runs/NAME, or that of its checkpoints",
    )


def _runs_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if (each / CONFIG).is_file() or (each / CHECKPOINTS).is_dir())
