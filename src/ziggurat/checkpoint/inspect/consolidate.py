"""A checkpoint as one plain safetensors file of whole tensors, for other tools.

Names are ``GROUP/NAME``: ``dense/…`` and ``tables/…`` are the weights that training goes on with; where the run
averages weights, ``average/dense/…`` and ``average/tables/…`` are those that evaluation and prediction use. Optimizers'
states are there if asked for. Rows are read file by file and written where they belong: no table need fit into memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.whole_file import TensorDescription, create, read_metadata
from ziggurat.checkpoint.open_checkpoint import open_checkpoint
from ziggurat.checkpoint.reader import TABLE_STATES, TABLES, CheckpointReader
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file, check_file_target
from ziggurat.core.progress import Progress, Silent
from ziggurat.parallel.tensor_slices import TensorSlice

SUFFIX = ".safetensors"
PORTION_BYTES = 128 * 2**20
"""Of tables that are read together, at least."""
MADE_BY = "ziggurat checkpoint gather"
WEIGHTS = ("dense", TABLES, "average")
OPTIMIZER = ("dense_optimizer", TABLE_STATES)


@dataclass(frozen=True, slots=True)
class Consolidated:
    """What was written.

    Attributes:
        step: of the checkpoint.
        tensors: ``GROUP/NAME`` -> shape.
        bytes: of the file.
    """

    step: int
    tensors: dict[str, tuple[int, ...]]
    bytes: int


def gather(
    folder: CheckpointFolder,
    which: str | int,
    out: Path,
    *,
    optimizer: bool = False,
    progress: Progress | None = None,
) -> Consolidated:
    """Write the checkpoint ``which`` to ``out``, whole or not at all.

    Args:
        folder: of the checkpoints.
        which: ``best``, ``last`` or a step.
        out: ends in ``.safetensors``; what was gathered there before is replaced.
        optimizer: the optimizers' states too.
        progress: where to show it.

    Raises:
        RunFolderError: no such checkpoint, or a damaged one.
        DataError: ``out`` is something else, or cannot be written.
    """
    progress = progress or Silent()
    check_out(out)
    if isinstance(folder.store, LocalStore) and out.resolve().is_relative_to(folder.store.root.resolve()):
        raise DataError(f"{out}: lies among the checkpoints", "name a place outside of their folder")
    step = folder.find(which)
    saved = open_checkpoint(folder.store, step)
    groups = [group for group in (WEIGHTS + OPTIMIZER if optimizer else WEIGHTS) if group in saved.names()]
    described = {
        (group, name): TensorDescription(saved.dtype(group, name), shape)
        for group in groups
        for name, shape in (saved.shapes(group) or {}).items()
    }
    named = {f"{group}/{name}": each for (group, name), each in described.items()}
    with atomic_file(out) as temporary:
        # "format" is what other readers ask for.
        tensors = create(temporary, named, {"format": "pt", "made_by": MADE_BY, "step": str(step)})
        done = 0
        progress.start("gather", sum(each.bytes for each in named.values()), "bytes")
        for label, members in _portions(saved, described):
            tensor_slices: dict[str, list[TensorSlice]] = defaultdict(list)
            for group, name in members:
                tensor_slices[group].append(TensorSlice.of_tensor(name, tensors[f"{group}/{name}"]))
            last = done + sum(described[each].bytes for each in members)
            saved.fill(tensor_slices, _Heard(progress, done, last, label))
            done = last
            progress.advance(done, reading=label)
        progress.finish()
        size = temporary.stat().st_size
    return Consolidated(step, {name: each.shape for name, each in named.items()}, size)


class _Heard:
    """Shows how many bytes were read, of a portion that ends at ``last``: deltas have some rows again."""

    def __init__(self, progress: Progress, done: int, last: int, label: str) -> None:
        self._progress, self._done, self._last, self._label = progress, done, last, label

    def __call__(self, more: int) -> None:
        self._done = min(self._done + more, self._last)
        self._progress.advance(self._done, reading=self._label)


def check_out(out: Path) -> None:
    """Refuse a place where no such file belongs.

    Raises:
        DataError: a folder, another suffix, or a file that was not gathered.
    """
    check_file_target(out)
    if out.suffix != SUFFIX:
        raise DataError(f"{out}: a safetensors file is written", f"name it so: {out.with_suffix(SUFFIX)}")
    if out.exists() and (read_metadata(out) or {}).get("made_by") != MADE_BY:
        raise DataError(f"{out}: is there, and was not made by `{MADE_BY}`", "name another file, or move this one away")


def _portions(
    saved: CheckpointReader, described: Mapping[tuple[str, str], TensorDescription]
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """A label and members (group, name) that are read together, as one file may have rows of many tables."""
    tables = saved.shapes(TABLES) or {}
    by_table: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for group, name in described:
        table = name if group == TABLES else name.rpartition("/")[0] if group == TABLE_STATES else ""
        by_table[table if table in tables else ""].append((group, name))
    portion: list[tuple[str, str]] = []
    size = 0
    for label, members in by_table.items():
        portion += members
        size += sum(described[each].bytes for each in members)
        if size >= PORTION_BYTES:
            yield label or "dense", portion
            portion, size = [], 0
    if portion:
        yield next(reversed(by_table)) or "dense", portion
