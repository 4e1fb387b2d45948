"""Parts of tensors that lie on several ranks, and the whole tensors that they make up.

A checkpoint holds whole tensors, so that it can be used by any number of ranks: :func:`gathered` makes them, and
:func:`fill` cuts them up again.
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
    """Where numbers go that lie in no tensor."""

    def put(self, rows_L: Tensor, first_column: int, numbers: Tensor) -> None:
        """Rows of the part, distinct, become these numbers, (L, some) or (L,), from a column of the part on."""
        ...

    def settle(self) -> None:
        """All was put that belongs together."""
        ...


@dataclass(frozen=True, slots=True)
class TensorSlice:
    """What this rank holds of a tensor.

    Attributes:
        name: of the whole tensor.
        tensor: the part, live: writing in place changes it.
        shape: of the whole.
        first: index of the part's first number in the whole, a coordinate for each dimension.
        rows: where rows lie in another order than in the whole: the whole's row that each of the part's is, integers of
            its first dimension, on the CPU. ``first`` then counts rows as they lie.
        sink: where the part lies if in no tensor: ``tensor`` is on the meta device then.
    """

    name: str
    tensor: Tensor
    shape: tuple[int, ...]
    first: tuple[int, ...]
    rows: Tensor | None = None
    sink: RowSink | None = None

    @classmethod
    def of_tensor(cls, name: str, tensor: Tensor) -> TensorSlice:
        """A tensor that is not divided, or this rank's part of a DTensor."""
        if isinstance(tensor, DTensor):
            _, first = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            return cls(name, tensor.to_local(), tuple(tensor.shape), tuple(first))
        return cls(name, tensor, tuple(tensor.shape), (0,) * tensor.ndim)

    @property
    def is_whole(self) -> bool:
        return self.rows is None and tuple(self.tensor.shape) == self.shape

    @property
    def key(self) -> str:
        """The name, and where in the tensor this is if it is not all of it; unique on a rank."""
        if self.is_whole:
            return self.name
        return f"{self.name}[{','.join(f'{a}:{a + n}' for a, n in zip(self.first, self.tensor.shape, strict=True))}]"

    def of(self, whole: Tensor) -> Tensor:
        """What of ``whole`` this piece is; a view of it, unless its rows lie in another order."""
        if self.rows is None:
            return self._range(whole, 0)
        return self._range(whole, 1).index_select(0, self.rows.long().to(whole.device))

    def put(self, whole: Tensor, numbers: Tensor) -> None:
        """Write ``numbers``, shaped as the piece, where they belong in ``whole``."""
        if self.rows is None:
            self._range(whole, 0).copy_(numbers)
        else:
            self._range(whole, 1).index_copy_(0, self.rows.long(), numbers.to(whole.device))

    def _range(self, whole: Tensor, dimensions_from: int) -> Tensor:
        """``whole``, narrowed to the piece in these dimensions."""
        places = list(enumerate(zip(self.first, self.tensor.shape, strict=True)))
        for dimension, (begin, size) in places[dimensions_from:]:
            whole = whole.narrow(dimension, begin, size)
        return whole


@torch.no_grad()
def fill(tensor_slices: Iterable[TensorSlice], wholes: Mapping[str, Tensor]) -> None:
    """Copy into each piece what it is of the whole of its name."""
    for tensor_slice in tensor_slices:
        if tensor_slice.sink is not None:
            tensor_slice.sink.put(
                torch.arange(tensor_slice.tensor.shape[0]), 0, tensor_slice.of(wholes[tensor_slice.name])
            )
            tensor_slice.sink.settle()
        elif tensor_slice.tensor.numel():
            tensor_slice.tensor.copy_(tensor_slice.of(wholes[tensor_slice.name]))


@torch.no_grad()
def gathered(tensor_slices: Sequence[TensorSlice]) -> dict[str, Tensor] | None:
    """The whole tensors on the CPU of rank 0, None on the others; all ranks call it together.

    What several ranks hold is sent by the lowest of them. A tensor that lies whole on rank 0 is not copied.
    """
    if dist.get_world_size() == 1:
        assert all(tuple(tensor_slice.tensor.shape) == tensor_slice.shape for tensor_slice in tensor_slices)
        return {
            tensor_slice.name: tensor_slice.tensor if tensor_slice.is_whole else _in_order(tensor_slice)
            for tensor_slice in tensor_slices
        }
    rank = dist.get_rank()
    held: list[list[_Held]] = [[]] * dist.get_world_size()
    dist.all_gather_object(held, [_Held.of(tensor_slice) for tensor_slice in tensor_slices])
    wholes = {tensor_slice.name: tensor_slice.tensor for tensor_slice in tensor_slices if tensor_slice.is_whole}
    seen: set[tuple[Any, ...]] = set()
    for owner, items in enumerate(held):
        for number, item in enumerate(items):
            if item.place in seen or not all(item.size):
                continue
            seen.add(item.place)
            if owner == rank != 0:
                _send(tensor_slices[number])
            elif rank == 0 and not (owner == 0 and tensor_slices[number].is_whole):
                if item.name not in wholes:
                    wholes[item.name] = torch.empty(item.shape, dtype=item.dtype)
                tensor_slice = tensor_slices[number] if owner == 0 else _received(item, owner)
                tensor_slice.put(wholes[item.name], tensor_slice.tensor.detach())
    return wholes if rank == 0 else None


def _in_order(tensor_slice: TensorSlice) -> Tensor:
    """The whole tensor, of a piece that is all of it in another order."""
    whole = torch.empty_like(tensor_slice.tensor, device="cpu")
    tensor_slice.put(whole, tensor_slice.tensor.detach())
    return whole


def _send(tensor_slice: TensorSlice) -> None:
    """To rank 0, the order of its rows first, where it has one."""
    if tensor_slice.rows is not None:
        dist.send(tensor_slice.rows.contiguous(), 0)
    dist.send(tensor_slice.tensor.detach().cpu().contiguous(), 0)


def _received(item: _Held, owner: int) -> TensorSlice:
    """What :func:`_send` sent."""
    rows = None
    if item.rows is not None:
        rows = torch.empty(item.size[0], dtype=item.rows)
        dist.recv(rows, owner)
    numbers = torch.empty(item.size, dtype=item.dtype)
    dist.recv(numbers, owner)
    return TensorSlice(item.name, numbers, item.shape, item.first, rows)


@dataclass(frozen=True, slots=True)
class _Held:
    """A piece without its numbers."""

    name: str
    shape: tuple[int, ...]
    first: tuple[int, ...]
    size: tuple[int, ...]
    dtype: torch.dtype
    rows: torch.dtype | None

    @classmethod
    def of(cls, tensor_slice: TensorSlice) -> _Held:
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
