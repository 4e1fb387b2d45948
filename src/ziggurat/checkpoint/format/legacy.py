"""Checkpoints of format 1, which are read but no longer written: whole tensors and a JSON state with their checksums.

The folder of a checkpoint::

    state.json                 {"format_version", "files": {name: sha256}, "state": {...}}
    dense.safetensors          one file per group of tensors, as named by the caller
    tables.safetensors ...
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ziggurat.core.errors import RunFolderError

FORMAT_VERSION = 1
STATE_FILE = "state.json"
_HINT = "move this folder away; older checkpoints stay usable"


def load_state(folder: Path) -> dict[str, Any]:
    """Returns the JSON state of a checkpoint, without reading its tensors.

    Raises:
        RunFolderError: the state is missing, unreadable, or of another format version.
    """
    return _manifest(folder)["state"]


def load_groups(folder: Path) -> dict[str, dict[str, Tensor]]:
    """Returns group -> name -> tensor of a checkpoint, after verifying the checksums of its files.

    Raises:
        RunFolderError: a file is missing, truncated or changed; the message names it.
    """
    manifest = _manifest(folder)
    groups: dict[str, dict[str, Tensor]] = {}
    for name, checksum in manifest["files"].items():
        path = folder / name
        hint = (
            f"restore the file, or do without this checkpoint: delete {folder}, then use another one "
            "(--checkpoint last) or go on from it with `ziggurat train`"
        )
        if not path.exists():
            raise RunFolderError(f"{path}: missing, but listed in {STATE_FILE}", hint)
        if _sha256(path) != checksum:
            raise RunFolderError(f"{path}: its SHA-256 differs from the one recorded when it was saved", hint)
        try:
            groups[path.stem] = load_file(path)
        except SafetensorError as error:
            raise RunFolderError(f"{path}: cannot be read: {error}", hint) from error
    return groups


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / STATE_FILE
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: not a checkpoint: {error}", _HINT) from error
    if not isinstance(manifest, dict):
        raise RunFolderError(f"{path}: not a checkpoint: no JSON object", _HINT)
    if manifest.get("format_version") != FORMAT_VERSION:
        raise RunFolderError(
            f"{path}: checkpoint format {manifest.get('format_version')!r}, this ziggurat reads {FORMAT_VERSION}",
            "use the ziggurat version in the run's environment.json",
        )
    if not isinstance(manifest.get("state"), dict) or not isinstance(manifest.get("files"), dict):
        raise RunFolderError(f"{path}: not a checkpoint: it has no state, or no files", _HINT)
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
