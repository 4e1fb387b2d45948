"""Exports a checkpoint as one plain safetensors file of whole tensors, for other tools.

Names are ``GROUP/NAME``. ``dense/…`` and ``tables/…`` are the weights with which training continues. If the run
averages weights, ``average/dense/…`` and ``average/tables/…`` are those that evaluation and prediction use. Optimizer
states are included on request. Rows are read file by file and written in place, so that no table need fit into memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.whole_file import TensorDescription, mapped_safetensors
from ziggurat.checkpoint.inspect.run_folders import open_folder
from ziggurat.checkpoint.open_checkpoint import open_checkpoint
from ziggurat.checkpoint.reader import TABLE_STATES, TABLES, CheckpointReader
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file, check_file_target
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.untrusted import Damage, tensor_metadata
from ziggurat.parallel.tensor_slices import TensorSlice

SUFFIX = ".safetensors"
PORTION_BYTES = 128 * 2**20
"""The least size of tables that are read together."""
MADE_BY = "ziggurat checkpoint gather"
WEIGHTS = ("dense", TABLES, "average")
OPTIMIZER = ("dense_optimizer", TABLE_STATES)


@dataclass(frozen=True, slots=True)
class Consolidated:
    """The exported file.

    Attributes:
        step: step of the checkpoint.
        tensors: ``GROUP/NAME`` -> shape.
        bytes: size of the file.
    """

    step: int
    tensors: dict[str, tuple[int, ...]]
    bytes: int


def gather(
    folder: CheckpointFolder | str | Path,
    which: str | int,
    out: str | Path,
    *,
    optimizer: bool = False,
    progress: Progress | None = None,
) -> Consolidated:
    """Writes the checkpoint ``which`` to the file ``out``, atomically.

    Args:
        folder: the checkpoints, or what :func:`ziggurat.open_checkpoints` takes.
        which: ``best``, ``last`` or a step.
        out: path with the suffix ``.safetensors``. A file that an earlier call has written there is replaced.
        optimizer: whether to include optimizer states.
        progress: where to show progress.

    Raises:
        RunFolderError: there is no such checkpoint, or it is damaged.
        DataError: ``out`` has another suffix, is any other existing file, or cannot be written.
    """
    progress, out = progress or Silent(), Path(out)
    check_out(out)
    folder = open_folder(folder)
    if isinstance(folder.store, LocalStore) and out.resolve().is_relative_to(folder.store.root.resolve()):
        raise DataError(f"{out}: is in the folder of the checkpoints", "name a place outside of that folder")
    step = folder.find(which)
    checkpoint = open_checkpoint(folder.store, step)
    groups = [group for group in (WEIGHTS + OPTIMIZER if optimizer else WEIGHTS) if group in checkpoint.names()]
    descriptions = {
        (group, name): TensorDescription(checkpoint.dtype(group, name), shape)
        for group in groups
        for name, shape in (checkpoint.shapes(group) or {}).items()
    }
    named = {f"{group}/{name}": each for (group, name), each in descriptions.items()}
    with atomic_file(out) as temporary:
        # Other libraries require the entry "format".
        tensors = mapped_safetensors(temporary, named, {"format": "pt", "made_by": MADE_BY, "step": str(step)})
        done = 0
        progress.start("gather", sum(each.bytes for each in named.values()), "bytes")
        for label, members in _portions(checkpoint, descriptions):
            tensor_slices: dict[str, list[TensorSlice]] = defaultdict(list)
            for group, name in members:
                tensor_slices[group].append(TensorSlice.of_tensor(name, tensors[f"{group}/{name}"]))
            end = done + sum(descriptions[each].bytes for each in members)
            checkpoint.fill(tensor_slices, _PortionProgress(progress, done, end, label))
            done = end
            progress.advance(done, reading=label)
        progress.finish()
        size = temporary.stat().st_size
    return Consolidated(step, {name: each.shape for name, each in named.items()}, size)


class _PortionProgress:
    """Shows the bytes read of one portion. It stops at ``end``, as deltas have some rows again."""

    def __init__(self, progress: Progress, done: int, end: int, label: str) -> None:
        self._progress, self._done, self._end, self._label = progress, done, end, label

    def __call__(self, more: int) -> None:
        self._done = min(self._done + more, self._end)
        self._progress.advance(self._done, reading=self._label)


def check_out(out: Path) -> None:
    """Checks that an exported file may be written to ``out``.

    Raises:
        DataError: ``out`` is a folder, has another suffix, or is an existing file that was not exported.
    """
    check_file_target(out)
    if out.suffix != SUFFIX:
        raise DataError(
            f"{out}: the output is a safetensors file, with the suffix {SUFFIX}", f"name it {out.with_suffix(SUFFIX)}"
        )
    try:
        made_by = tensor_metadata(out, Damage(DataError, "")).get("made_by")
    except FileNotFoundError:
        return
    except DataError:  # no safetensors file, or a link, a pipe or a device
        made_by = None
    if made_by != MADE_BY:
        raise DataError(f"{out}: exists, and was not made by `{MADE_BY}`", "name another file, or move this one away")


def _portions(
    checkpoint: CheckpointReader, descriptions: Mapping[tuple[str, str], TensorDescription]
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yields portions of tensors to read together, as one file may have rows of many tables.

    Yields:
        A label for progress, and (group, name) of each tensor in the portion.
    """
    tables = checkpoint.shapes(TABLES) or {}
    by_table: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for group, name in descriptions:
        table = name if group == TABLES else name.rpartition("/")[0] if group == TABLE_STATES else ""
        by_table[table if table in tables else ""].append((group, name))
    portion: list[tuple[str, str]] = []
    size = 0
    for label, members in by_table.items():
        portion += members
        size += sum(descriptions[each].bytes for each in members)
        if size >= PORTION_BYTES:
            yield label or "dense", portion
            portion, size = [], 0
    if portion:
        yield next(reversed(by_table)) or "dense", portion
