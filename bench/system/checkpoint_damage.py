"""Files of a checkpoint that are truncated, changed by a bit, deleted or replaced, and what reading it comes to."""

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

Harm = Literal["truncated", "flipped", "deleted", "foreign"]
HARMS: tuple[Harm, ...] = get_args(Harm)
GROUPS = ("dense", "tables", "table_optimizer")
"""What a resume fills in one call."""
UNTOUCHED = -77.0


@dataclass(frozen=True, slots=True)
class Damage:
    """One damaged file.

    Attributes:
        file: its place below the checkpoints' folder.
        harm: what was done to it.
        named: whether the errors of a restore and of a verification named it.
        clean: whether no number was loaded.
        said: the restore's error, or what happened instead.
    """

    file: str
    harm: Harm
    named: bool
    clean: bool
    said: str


def chain(folder: CheckpointFolder, step: int) -> list[Path]:
    """Every file that a restore of the checkpoint of ``step`` reads: of those before it, rows of tables alone."""
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
    folder: CheckpointFolder, step: int, path: Path, harm: Harm, other: bytes, draw: np.random.Generator
) -> Damage:
    """Do it, read the checkpoint of ``step``, and put the file back.

    Args:
        folder, step: the checkpoint.
        path: one of its :func:`chain`.
        harm: what is done.
        other: the content of a file that does not belong there, for ``foreign``.
        draw: where, and how much.
    """
    content = path.read_bytes()
    where = str(path.relative_to(folder.where))
    tensor_slices = _pieces(folder, step)
    try:
        _do(path, content, harm, other, draw)
        said = _error(lambda: folder.load(step).fill(tensor_slices))
        verified = _error(lambda: folder.load(step).verify())
    finally:
        path.write_bytes(content)
    clean = all(
        bool((tensor_slice.tensor == UNTOUCHED).all()) for each in tensor_slices.values() for tensor_slice in each
    )
    named = all(_names(each, path, harm) for each in (said, verified))
    return Damage(where, harm, named, clean, said)


def _error(read: Callable[[], None]) -> str:
    """What is said of it."""
    try:
        read()
    except RunFolderError as error:
        return error.problem
    return "no error"


def _do(path: Path, content: bytes, harm: Harm, other: bytes, draw: np.random.Generator) -> None:
    match harm:
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


def _names(problem: str, path: Path, harm: Harm) -> bool:
    """Whether the error names the file. One without a manifest is no checkpoint: its step is named."""
    if harm == "deleted" and path.name == MANIFEST_FILE:
        return f"step {int(path.parent.name.removeprefix('step-'))}" in problem or path.parent.name in problem
    return path.parent.name in problem and path.name in problem


def _pieces(folder: CheckpointFolder, step: int) -> dict[str, list[TensorSlice]]:
    """Tensors of the checkpoint's shapes, full of a number that it does not have."""
    saved = folder.load(step)
    return {
        group: [
            TensorSlice.of_tensor(name, torch.full(shape, UNTOUCHED, dtype=saved.dtype(group, name)))
            for name, shape in (saved.shapes(group) or {}).items()
        ]
        for group in GROUPS
    }
