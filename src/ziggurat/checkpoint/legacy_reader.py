"""Reads checkpoints of format 1: whole tensors, one file per group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from ziggurat.checkpoint.format.legacy import load_groups, load_state
from ziggurat.checkpoint.reader import CheckpointReader, OnProgress
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.parallel.tensor_slices import TensorSlice, fill


class LegacyCheckpointReader(CheckpointReader):
    """Reads a checkpoint of format 1."""

    def __init__(self, store: LocalStore, folder: str) -> None:
        self._path = store.root / folder
        self.state = load_state(self._path)

    @property
    def bits(self) -> int:
        return 32

    @cached_property
    def _stored(self) -> Mapping[str, Mapping[str, Tensor]]:
        return load_groups(self._path)

    def names(self) -> tuple[str, ...]:
        return tuple(self._stored)

    def shapes(self, group: str) -> Mapping[str, tuple[int, ...]] | None:
        found = self._stored.get(group)
        return None if found is None else {name: tuple(tensor.shape) for name, tensor in found.items()}

    def dtype(self, group: str, name: str) -> torch.dtype:
        return self._stored[group][name].dtype

    def verify(self, on_progress: OnProgress = lambda _: None) -> None:
        on_progress(sum(tensor.nbytes for group in self._stored.values() for tensor in group.values()))

    def fill(self, groups: Mapping[str, Sequence[TensorSlice]], on_progress: OnProgress = lambda _: None) -> None:
        for group, tensor_slices in groups.items():
            fill(tensor_slices, self._stored[group])
