"""One checkpoint: named tensors in safetensors files, a JSON state, and checksums of both.

Format (version 1), a folder::

    state.json                 {"format_version", "files": {name: sha256}, "state": {...}}
    dense.safetensors          one file per group of tensors, as named by the caller
    tables.safetensors ...

A folder is written under a temporary name, made durable, and renamed, so it is whole or not there.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import atomic_folder

FORMAT_VERSION = 1
STATE_FILE = "state.json"

TensorGroups = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint holds: groups of named tensors, and everything else as JSON."""

    groups: TensorGroups
    state: dict[str, Any]


def save_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Write ``snapshot`` to ``folder``, atomically.

    Raises:
        DataError: full disk or missing permission; nothing is left behind.
    """
    with atomic_folder(folder) as temporary:
        checksums: dict[str, str] = {}
        for group, tensors in snapshot.groups.items():
            path = temporary / f"{group}.safetensors"
            _save_tensors(path, tensors)
            checksums[path.name] = _sha256(path)
        values = {"format_version": FORMAT_VERSION, "files": checksums, "state": snapshot.state}
        (temporary / STATE_FILE).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def load_state(folder: Path) -> dict[str, Any]:
    """The JSON state of a checkpoint, without reading its tensors.

    Raises:
        RunFolderError: missing, unreadable, or of another format version.
    """
    return _manifest(folder)["state"]


def load_snapshot(folder: Path) -> Snapshot:
    """Read a checkpoint and verify every file's checksum.

    Raises:
        RunFolderError: names the file that is missing, truncated or changed.
    """
    manifest = _manifest(folder)
    groups: dict[str, dict[str, Tensor]] = {}
    for name, checksum in manifest["files"].items():
        path = folder / name
        mend = (
            f"restore the file, or do without this checkpoint: delete {folder}, then use another one "
            "(--checkpoint last) or go on from it with `ziggurat train`"
        )
        if not path.exists():
            raise RunFolderError(f"{path}: missing, but listed in {STATE_FILE}", mend)
        if _sha256(path) != checksum:
            raise RunFolderError(f"{path}: its SHA-256 differs from the one recorded when it was saved", mend)
        try:
            groups[path.stem] = load_file(path)
        except SafetensorError as error:
            raise RunFolderError(f"{path}: cannot be read: {error}", mend) from error
    return Snapshot(groups, manifest["state"])


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / STATE_FILE
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path}: not a checkpoint: {error}", "move this folder away; older checkpoints stay usable"
        ) from error
    if manifest.get("format_version") != FORMAT_VERSION:
        raise RunFolderError(
            f"{path}: checkpoint format {manifest.get('format_version')!r}, this ziggurat reads {FORMAT_VERSION}",
            "use the ziggurat version in the run's environment.json",
        )
    return manifest


def _save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        # The library wraps the system's error in text; the number in it is what tells a full disk.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error), str(path)) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
