"""Damages files of a checkpoint – truncates, flips a bit, deletes or replaces them – and loads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE
from ziggurat.checkpoint.reader import folder_of
from ziggurat.core.errors import RunFolderError
from ziggurat.parallel.tensor_slices import TensorSlice

DamageKind = Literal["truncated", "flipped", "deleted", "foreign"]
DAMAGE_KINDS: tuple[DamageKind, ...] = get_args(DamageKind)
GROUPS = ("dense", "tables", "table_optimizer")
"""The groups of tensors that a resume fills in one call."""
UNTOUCHED = -77.0
"""A value that no checkpoint contains."""


@dataclass(frozen=True, slots=True)
class Damage:
    """The result of loading a checkpoint with a damaged file.

    Attributes:
        file: the path of the file in the folder of checkpoints.
        kind: the kind of damage.
        named: whether the errors of a restore and of a verification name the file.
        clean: whether no number was loaded.
        error: the error of the restore.
    """

    file: str
    kind: DamageKind
    named: bool
    clean: bool
    error: str


def chain(folder: CheckpointFolder, step: int) -> list[Path]:
    """Returns every file that a restore of ``step`` reads; of earlier checkpoints these are only rows of tables."""
    newest = folder.manifest(step)
    assert newest is not None
    found: list[Path] = []
    for each in (*(need.step for need in newest.needs), step):
        manifest, place = folder.manifest(each), Path(folder.where) / folder_of(each)
        assert manifest is not None
        found.append(place / MANIFEST_FILE)
        found += [place / file.name for file in manifest.files if file.blocks or each == step]
    return found


def damaged(
    folder: CheckpointFolder, step: int, path: Path, kind: DamageKind, other: bytes, draw: np.random.Generator
) -> Damage:
    """Damages a file, loads the checkpoint of ``step``, and restores the file.

    Args:
        folder, step: the checkpoint.
        path: a file of its :func:`chain`.
        kind: the kind of damage.
        other: the content of the file for ``foreign``.
        draw: the generator of the place and extent of the damage.
    """
    content = path.read_bytes()
    where = str(path.relative_to(folder.where))
    tensor_slices = _untouched_tensors(folder, step)
    try:
        _apply_damage(path, content, kind, other, draw)
        error = _error(lambda: folder.load(step).fill(tensor_slices))
        verified = _error(lambda: folder.load(step).verify())
    finally:
        path.write_bytes(content)
    clean = all(
        bool((tensor_slice.tensor == UNTOUCHED).all()) for each in tensor_slices.values() for tensor_slice in each
    )
    named = all(_names(each, path, kind) for each in (error, verified))
    return Damage(where, kind, named, clean, error)


def _error(read: Callable[[], None]) -> str:
    """Returns the error message of a read."""
    try:
        read()
    except RunFolderError as error:
        return error.problem
    return "no error"


def _apply_damage(path: Path, content: bytes, kind: DamageKind, other: bytes, draw: np.random.Generator) -> None:
    match kind:
        case "truncated":
            path.write_bytes(content[: int(draw.integers(len(content)))])
        case "flipped":
            changed = bytearray(content)
            changed[int(draw.integers(len(content)))] ^= 1 << int(draw.integers(8))
            path.write_bytes(changed)
        case "deleted":
            path.unlink()
        case "foreign":
            assert other != content
            path.write_bytes(other)


def _names(problem: str, path: Path, kind: DamageKind) -> bool:
    """Returns whether an error names the file, or the step if the manifest is missing."""
    if kind == "deleted" and path.name == MANIFEST_FILE:
        return f"step {int(path.parent.name.removeprefix('step-'))}" in problem or path.parent.name in problem
    return path.parent.name in problem and path.name in problem


def _untouched_tensors(folder: CheckpointFolder, step: int) -> dict[str, list[TensorSlice]]:
    """Returns tensors of the checkpoint's shapes, filled with :data:`UNTOUCHED`."""
    saved = folder.load(step)
    return {
        group: [
            TensorSlice.of_tensor(name, torch.full(shape, UNTOUCHED, dtype=saved.dtype(group, name)))
            for name, shape in (saved.shapes(group) or {}).items()
        ]
        for group in GROUPS
    }
