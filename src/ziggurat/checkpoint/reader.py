"""The contract of a checkpoint reader: any number of ranks, under any plan, each read the rows that they hold."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ziggurat.checkpoint.format.manifest import TableShape
from ziggurat.parallel.tensor_slices import TensorSlice

FOLDER = re.compile(r"step-([0-9]{8}|[1-9][0-9]{8,13})")
"""Names of checkpoints' folders; :func:`folder_of` makes each of them."""
TABLES, TABLE_STATES = "tables", "table_optimizer"
OnProgress = Callable[[int], None]
"""A callback that receives the number of bytes read or verified since its last call."""


def folder_of(step: int) -> str:
    """Returns the name of a checkpoint's folder."""
    return f"step-{step:08d}"


class CheckpointReader(ABC):
    """Reads one checkpoint. Its tensors are addressed by group and name, and read whole or in slices."""

    state: dict[str, Any]

    @cached_property
    def groups(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Group -> name -> whole tensor. A group is read when it is first accessed."""
        return _Groups(self)

    @property
    @abstractmethod
    def bits(self) -> int:
        """The least number of bits of a value in a table's rows. 32 means that they are exact."""

    @abstractmethod
    def shapes(self, group: str) -> Mapping[str, tuple[int, ...]] | None:
        """Returns name -> shape of a group's whole tensors; None if there is no such group."""

    @abstractmethod
    def verify(self, on_progress: OnProgress = lambda _: None) -> None:
        """Reads every file that a restore needs and checks it against the manifest.

        Raises:
            RunFolderError: a file is missing, changed, or of another size; the message names it.
        """

    @abstractmethod
    def fill(self, groups: Mapping[str, Sequence[TensorSlice]], on_progress: OnProgress = lambda _: None) -> None:
        """Fills slices of tensors from the checkpoint.

        Args:
            groups: group -> slices to fill, each with its part of the whole tensor of its name.
            on_progress: receives the number of bytes of rows copied. A row that deltas replace counts each time.

        Raises:
            RunFolderError: as :meth:`verify`; then no slice was changed. Or a table lacks rows, or a file that was
                intact a moment ago cannot be read again; then some slices were changed.
        """

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Returns the names of the groups."""

    def whole(self, group: str) -> dict[str, Tensor]:
        """Returns name -> whole tensor of a group; empty if there is no such group."""
        shapes = self.shapes(group) or {}
        tensor_slices = [_empty_whole(name, shape, self.dtype(group, name)) for name, shape in shapes.items()]
        self.fill({group: tensor_slices})
        return {tensor_slice.name: tensor_slice.tensor for tensor_slice in tensor_slices}

    @abstractmethod
    def dtype(self, group: str, name: str) -> torch.dtype:
        """Returns the dtype of a tensor."""


def table_shapes(checkpoint: CheckpointReader) -> dict[str, TableShape]:
    """Returns table name -> shape, for a checkpoint of either format."""
    return shapes_of_tables(checkpoint.shapes(TABLES) or {}, checkpoint.shapes(TABLE_STATES) or {})


def shapes_of_tables(
    shapes: Mapping[str, tuple[int, ...]], states: Mapping[str, tuple[int, ...]]
) -> dict[str, TableShape]:
    """Returns table name -> shape.

    Args:
        shapes: table name -> shape of its whole weights.
        states: ``TABLE/STATE`` -> shape of a whole optimizer state.
    """
    found = {
        name: TableShape(rows=shape[0], dim=shape[1], states={}) for name, shape in shapes.items() if len(shape) == 2
    }
    for name, shape in states.items():
        table, _, state = name.rpartition("/")
        if shape and table in found:
            found[table].states[state] = shape[1] if len(shape) > 1 else 0
    return found


class _Groups(Mapping[str, Mapping[str, Tensor]]):
    def __init__(self, checkpoint: CheckpointReader) -> None:
        self._checkpoint, self._read = checkpoint, dict[str, dict[str, Tensor]]()

    def __getitem__(self, group: str) -> dict[str, Tensor]:
        if group not in self._checkpoint.names():
            raise KeyError(group)
        if group not in self._read:
            self._read[group] = self._checkpoint.whole(group)
        return self._read[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._checkpoint.names())

    def __len__(self) -> int:
        return len(self._checkpoint.names())


def _empty_whole(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> TensorSlice:
    return TensorSlice.of_tensor(name, torch.empty(shape, dtype=dtype))
