"""Checkpoints of format 1, which are read but no longer written: whole tensors and a JSON state with their checksums.

The folder of a checkpoint::

    state.json                 {"format_version", "files": {name: sha256}, "state": {...}}
    dense.safetensors          one file per group of tensors, as named by the caller
    tables.safetensors ...
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from ziggurat.checkpoint.format.blocks import tensors_in
from ziggurat.core.errors import RunFolderError, shorten
from ziggurat.core.untrusted import Damage, file_name, is_plain_folder, opened, read_json_object, read_opened

FORMAT_VERSION = 1
STATE_FILE = "state.json"
_HINT = "move this folder away; older checkpoints stay usable"


def load_state(folder: Path) -> dict[str, Any]:
    """Returns the JSON state of a checkpoint, without reading its tensors.

    Raises:
        RunFolderError: the state is missing, unreadable, or of another format version.
    """
    return _manifest(folder)["state"]


def digests(folder: Path) -> dict[str, str]:
    """Returns name -> recorded SHA-256 of a checkpoint's files.

    Raises:
        RunFolderError: as :func:`load_state`.
    """
    return _manifest(folder)["files"]


def load_groups(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Returns group -> name -> tensor of a checkpoint, after verifying the checksums of its files.

    Raises:
        RunFolderError: a file is missing, truncated or changed; the message names it.
    """
    groups: dict[str, dict[str, Tensor]] = {}
    for name, checksum in digests(folder).items():
        path = folder / name
        damage = Damage(
            RunFolderError,
            f"restore the file, or do without this checkpoint: delete {folder}, then use another one "
            "(--checkpoint last) or go on from it with `ziggurat train`",
        )
        try:
            with opened(path, damage) as file:
                data = read_opened(file, path, damage)
        except FileNotFoundError:
            raise damage.of(path, f"missing, but listed in {STATE_FILE}") from None
        if hashlib.sha256(data).hexdigest() != checksum:
            raise damage.of(path, "its SHA-256 differs from the one recorded when it was saved")
        groups[path.stem] = tensors_in(data, str(path))
    return groups


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / STATE_FILE
    damage = Damage(RunFolderError, _HINT)
    if not is_plain_folder(folder):
        raise damage.of(folder, "is a symbolic link, or no folder, and is not followed")
    try:
        manifest = read_json_object(path, damage)
    except FileNotFoundError:
        raise damage.of(path, "missing") from None
    if manifest.get("format_version") != FORMAT_VERSION:
        raise RunFolderError(
            f"{path}: checkpoint format {shorten(manifest.get('format_version'))}, this ziggurat reads "
            f"{FORMAT_VERSION}",
            "use the ziggurat version in the run's environment.json",
        )
    files = manifest.get("files")
    if not isinstance(manifest.get("state"), dict) or not isinstance(files, dict):
        raise damage.of(path, "not a checkpoint: it has no state, or no files")
    for name, checksum in cast("dict[str, Any]", files).items():
        if file_name(name, path, damage) == STATE_FILE or not isinstance(checksum, str):
            raise damage.of(path, f"not a checkpoint: files: {shorten(name)}: {shorten(checksum)}")
    return manifest
