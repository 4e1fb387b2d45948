"""Slices of tensors that are distributed over ranks, and the whole tensors that they form.

A checkpoint holds whole tensors, so that any number of ranks can use it: :func:`gather` assembles them from slices, and
:func:`fill` copies them back into slices.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


class RowSink(Protocol):
    """Receives values for a slice that is not stored in a tensor."""

    def put(self, rows_L: Tensor, first_column: int, values: Tensor) -> None:
        """Replaces distinct rows of the slice by values (L, columns) or (L,), starting at a column of the slice."""
        ...

    def flush(self) -> None:
        """Marks the end of values that belong together, so that they can be written."""
        ...


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """The slice of a tensor that this rank holds.

    Attributes:
        name: the name of the whole tensor.
        tensor: the slice; live, so writing to it in place changes the model.
        shape: the shape of the whole tensor.
        first: the index in the whole tensor of the slice's first element, one coordinate per dimension.
        rows: for slices whose rows are stored in another order: the row of the whole tensor that each row of the slice
            is, integers of the slice's first dimension, on the CPU. ``first`` then counts rows in stored order.
        sink: for slices that are not stored in a tensor: receives their values. ``tensor`` is then on the meta device.
    """

    name: str
    tensor: Tensor
    shape: tuple[int, ...]
    first: tuple[int, ...]
    rows: Tensor | None = None
    sink: RowSink | None = None

    @classmethod
    def of_tensor(cls, name: str, tensor: Tensor) -> TensorSlice:
        """Returns the slice of an undivided tensor, or this rank's shard of a DTensor."""
        if isinstance(tensor, DTensor):
            _, first = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            return cls(name, tensor.to_local(), tuple(tensor.shape), tuple(first))
        return cls(name, tensor, tuple(tensor.shape), (0,) * tensor.ndim)

    @property
    def is_whole(self) -> bool:
        return self.rows is None and tuple(self.tensor.shape) == self.shape

    @property
    def key(self) -> str:
        """The name, followed by the index range if the slice is not the whole tensor; unique on a rank."""
        if self.is_whole:
            return self.name
        return f"{self.name}[{','.join(f'{a}:{a + n}' for a, n in zip(self.first, self.tensor.shape, strict=True))}]"

    def extract(self, whole: Tensor) -> Tensor:
        """Returns the part of ``whole`` that belongs to this slice; a view, unless rows are in another order."""
        if self.rows is None:
            return self._range(whole, 0)
        return self._range(whole, 1).index_select(0, self.rows.long().to(whole.device))

    def insert(self, whole: Tensor, values: Tensor) -> None:
        """Writes ``values``, shaped as the slice, to their position in ``whole``."""
        if self.rows is None:
            self._range(whole, 0).copy_(values)
        else:
            self._range(whole, 1).index_copy_(0, self.rows.long(), values.to(whole.device))

    def _range(self, whole: Tensor, dimensions_from: int) -> Tensor:
        """Narrows ``whole`` to the slice in all dimensions from ``dimensions_from`` on."""
        places = list(enumerate(zip(self.first, self.tensor.shape, strict=True)))
        for dimension, (begin, size) in places[dimensions_from:]:
            whole = whole.narrow(dimension, begin, size)
        return whole


@torch.no_grad()
def fill(tensor_slices: Iterable[TensorSlice], wholes: Mapping[str, Tensor]) -> None:
    """Copies into each slice its part of the whole tensor with its name."""
    for tensor_slice in tensor_slices:
        if tensor_slice.sink is not None:
            tensor_slice.sink.put(
                torch.arange(tensor_slice.tensor.shape[0]), 0, tensor_slice.extract(wholes[tensor_slice.name])
            )
            tensor_slice.sink.flush()
        elif tensor_slice.tensor.numel():
            tensor_slice.tensor.copy_(tensor_slice.extract(wholes[tensor_slice.name]))


@torch.no_grad()
def gather(tensor_slices: Sequence[TensorSlice]) -> dict[str, Tensor] | None:
    """Assembles whole tensors on the CPU of rank 0 and returns None on other ranks; a collective call.

    A slice that several ranks hold is sent by the lowest of them. A tensor that rank 0 holds whole is not copied.
    """
    if dist.get_world_size() == 1:
        assert all(tuple(tensor_slice.tensor.shape) == tensor_slice.shape for tensor_slice in tensor_slices)
        return {
            tensor_slice.name: tensor_slice.tensor if tensor_slice.is_whole else _in_id_order(tensor_slice)
            for tensor_slice in tensor_slices
        }
    rank = dist.get_rank()
    headers: list[list[_SliceHeader]] = [[]] * dist.get_world_size()
    dist.all_gather_object(headers, [_SliceHeader.of(tensor_slice) for tensor_slice in tensor_slices])
    wholes = {tensor_slice.name: tensor_slice.tensor for tensor_slice in tensor_slices if tensor_slice.is_whole}
    seen: set[tuple[Any, ...]] = set()
    for owner, items in enumerate(headers):
        for number, item in enumerate(items):
            if item.place in seen or not all(item.size):
                continue
            seen.add(item.place)
            if owner == rank != 0:
                _send(tensor_slices[number])
            elif rank == 0 and not (owner == 0 and tensor_slices[number].is_whole):
                if item.name not in wholes:
                    wholes[item.name] = torch.empty(item.shape, dtype=item.dtype)
                tensor_slice = tensor_slices[number] if owner == 0 else _receive(item, owner)
                tensor_slice.insert(wholes[item.name], tensor_slice.tensor.detach())
    return wholes if rank == 0 else None


def _in_id_order(tensor_slice: TensorSlice) -> Tensor:
    """Returns the whole tensor from a slice that holds all of its rows in another order."""
    whole = torch.empty_like(tensor_slice.tensor, device="cpu")
    tensor_slice.insert(whole, tensor_slice.tensor.detach())
    return whole


def _send(tensor_slice: TensorSlice) -> None:
    """Sends a slice to rank 0; first the ids of its rows if it has any."""
    if tensor_slice.rows is not None:
        dist.send(tensor_slice.rows.contiguous(), 0)
    dist.send(tensor_slice.tensor.detach().cpu().contiguous(), 0)


def _receive(item: _SliceHeader, owner: int) -> TensorSlice:
    """Receives a slice from :func:`_send`."""
    rows = None
    if item.rows is not None:
        rows = torch.empty(item.size[0], dtype=item.rows)
        dist.recv(rows, owner)
    values = torch.empty(item.size, dtype=item.dtype)
    dist.recv(values, owner)
    return TensorSlice(item.name, values, item.shape, item.first, rows)


@dataclass(frozen=True, slots=True)
class _SliceHeader:
    """The description of a slice, without its values."""

    name: str
    shape: tuple[int, ...]
    first: tuple[int, ...]
    size: tuple[int, ...]
    dtype: torch.dtype
    rows: torch.dtype | None

    @classmethod
    def of(cls, tensor_slice: TensorSlice) -> _SliceHeader:
        rows = None if tensor_slice.rows is None else tensor_slice.rows.dtype
        return cls(
            tensor_slice.name,
            tensor_slice.shape,
            tensor_slice.first,
            tuple(tensor_slice.tensor.shape),
            tensor_slice.tensor.dtype,
            rows,
        )

    @property
    def place(self) -> tuple[Any, ...]:
        return (self.name, self.first, self.size)
