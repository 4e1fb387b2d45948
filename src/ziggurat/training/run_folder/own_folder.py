"""Refuses a folder that holds something else than what is about to be written into it."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import LOCK_FILE
from ziggurat.training.run_folder.run_files import CONFIG_FILE


def check_own_folder(folder: Path, marker: str, what: str, option: str = "--run") -> None:
    """Checks a folder before anything is written into it; one that is missing, or holds only hidden files, is free.

    Args:
        folder: the folder.
        marker: the name of the file by which a folder of this kind is known.
        what: the kind in words, as in ``search``.
        option: the option that names the folder, for messages.

    Raises:
        RunFolderError: it is a file, or not empty and without ``marker``.
    """
    if folder.is_file():
        raise RunFolderError(f"{folder}: is a file", f"name another folder with {option}")
    if not folder.is_dir() or (folder / marker).is_file():
        return
    if any(item.name != LOCK_FILE and not item.name.startswith(".") for item in folder.iterdir()):
        kind = "is the folder of a single run" if (folder / CONFIG_FILE).is_file() else "is not empty"
        raise RunFolderError(f"{folder}: {kind} and holds no {what}", f"name another folder with {option}")
