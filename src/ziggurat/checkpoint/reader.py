"""A checkpoint that is read: by any number of ranks, under any plan, each reading the rows that it holds."""

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

FOLDER = re.compile(r"step-(\d{8,})")
TABLES, TABLE_STATES = "tables", "table_optimizer"
Heard = Callable[[int], None]
"""Told how many bytes of a checkpoint were read or verified."""


def folder_of(step: int) -> str:
    """Name of a checkpoint's folder."""
    return f"step-{step:08d}"


class CheckpointReader(ABC):
    """A checkpoint: everything in it by group and name, as whole tensors or as pieces of them."""

    state: dict[str, Any]

    @cached_property
    def groups(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Every group's tensors, whole, by name; read when they are asked for."""
        return _Groups(self)

    @property
    @abstractmethod
    def bits(self) -> int:
        """Of its rows' numbers; 32: as they were in training."""

    @abstractmethod
    def shapes(self, group: str) -> Mapping[str, tuple[int, ...]] | None:
        """Of a group's tensors, by name; None where there is no such group."""

    @abstractmethod
    def verify(self, heard: Heard = lambda _: None) -> None:
        """Read every file that a restore needs.

        Raises:
            RunFolderError: names one that is missing, shorter or longer, or changed.
        """

    @abstractmethod
    def fill(self, groups: Mapping[str, Sequence[TensorSlice]], heard: Heard = lambda _: None) -> None:
        """Copy into each piece of a group what it is of the whole of its name; ``heard`` is told how many bytes of rows
        more were copied, those of deltas too.

        Raises:
            RunFolderError: as :meth:`verify`, and no piece was changed. Or a table lacks rows, or a file that was whole
                a moment ago cannot be read again, and some pieces were.
        """

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Of the groups."""

    def whole(self, group: str) -> dict[str, Tensor]:
        """A group's tensors, whole, by name; none where there is no such group."""
        shapes = self.shapes(group) or {}
        tensor_slices = [_whole_piece(name, shape, self.dtype(group, name)) for name, shape in shapes.items()]
        self.fill({group: tensor_slices})
        return {tensor_slice.name: tensor_slice.tensor for tensor_slice in tensor_slices}

    @abstractmethod
    def dtype(self, group: str, name: str) -> torch.dtype:
        """Of a tensor."""


def table_shapes(saved: CheckpointReader) -> dict[str, TableShape]:
    """Of a checkpoint of either version."""
    return shapes_of_tables(saved.shapes(TABLES) or {}, saved.shapes(TABLE_STATES) or {})


def shapes_of_tables(
    shapes: Mapping[str, tuple[int, ...]], states: Mapping[str, tuple[int, ...]]
) -> dict[str, TableShape]:
    """Of the whole tensors of their rows, by table, and of their states, as ``TABLE/STATE``."""
    found = {name: TableShape(rows=shape[0], dim=shape[1], states={}) for name, shape in shapes.items()}
    for name, shape in states.items():
        table, _, state = name.rpartition("/")
        if shape and table in found:
            found[table].states[state] = shape[1] if len(shape) > 1 else 0
    return found


class _Groups(Mapping[str, Mapping[str, Tensor]]):
    def __init__(self, saved: CheckpointReader) -> None:
        self._saved, self._read = saved, dict[str, dict[str, Tensor]]()

    def __getitem__(self, group: str) -> dict[str, Tensor]:
        if group not in self._saved.names():
            raise KeyError(group)
        if group not in self._read:
            self._read[group] = self._saved.whole(group)
        return self._read[group]

    def __iter__(self) -> Iterator[str]:
        return iter(self._saved.names())

    def __len__(self) -> int:
        return len(self._saved.names())


def _whole_piece(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> TensorSlice:
    return TensorSlice.of_tensor(name, torch.empty(shape, dtype=dtype))
