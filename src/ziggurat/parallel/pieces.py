"""Parts of tensors that lie on several ranks, and the whole tensors that they make up.

A checkpoint holds whole tensors, so that it can be used by any number of ranks: :func:`gathered` makes them, and
:func:`fill` cuts them up again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@dataclass(frozen=True, slots=True)
class Piece:
    """What this rank holds of a tensor.

    Attributes:
        name: of the whole tensor.
        tensor: the part, live: writing in place changes it.
        shape: of the whole.
        first: index of the part's first number in the whole, a coordinate for each dimension.
    """

    name: str
    tensor: Tensor
    shape: tuple[int, ...]
    first: tuple[int, ...]

    @classmethod
    def of_tensor(cls, name: str, tensor: Tensor) -> Piece:
        """A tensor that is not divided, or this rank's part of a DTensor."""
        if isinstance(tensor, DTensor):
            _, first = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            return cls(name, tensor.to_local(), tuple(tensor.shape), tuple(first))
        return cls(name, tensor, tuple(tensor.shape), (0,) * tensor.ndim)

    @property
    def is_whole(self) -> bool:
        return tuple(self.tensor.shape) == self.shape

    @property
    def key(self) -> str:
        """The name, and where in the tensor this is if it is not all of it; unique on a rank."""
        if self.is_whole:
            return self.name
        return f"{self.name}[{','.join(f'{a}:{a + n}' for a, n in zip(self.first, self.tensor.shape, strict=True))}]"

    def of(self, whole: Tensor) -> Tensor:
        """The view of ``whole`` that this piece is."""
        for dimension, (begin, size) in enumerate(zip(self.first, self.tensor.shape, strict=True)):
            whole = whole.narrow(dimension, begin, size)
        return whole


@torch.no_grad()
def fill(pieces: Iterable[Piece], wholes: Mapping[str, Tensor]) -> None:
    """Copy into each piece what it is of the whole of its name."""
    for piece in pieces:
        if piece.tensor.numel():
            piece.tensor.copy_(piece.of(wholes[piece.name]))


@torch.no_grad()
def gathered(pieces: Sequence[Piece]) -> dict[str, Tensor] | None:
    """The whole tensors on the CPU of rank 0, None on the others; all ranks call it together.

    What several ranks hold is sent by the lowest of them. A tensor that lies whole on rank 0 is not copied.
    """
    if dist.get_world_size() == 1:
        assert all(piece.is_whole for piece in pieces)
        return {piece.name: piece.tensor for piece in pieces}
    rank = dist.get_rank()
    held: list[list[_Held]] = [[]] * dist.get_world_size()
    dist.all_gather_object(held, [_Held.of(piece) for piece in pieces])
    wholes = {piece.name: piece.tensor for piece in pieces if piece.is_whole}
    seen: set[tuple[Any, ...]] = set()
    for owner, items in enumerate(held):
        for number, item in enumerate(items):
            if item.place in seen or not all(item.size):
                continue
            seen.add(item.place)
            if owner == rank != 0:
                dist.send(pieces[number].tensor.detach().cpu().contiguous(), 0)
            elif rank == 0 and not (owner == 0 and pieces[number].is_whole):
                if item.name not in wholes:
                    wholes[item.name] = torch.empty(item.shape, dtype=item.dtype)
                target = Piece(item.name, torch.empty(item.size, dtype=item.dtype), item.shape, item.first)
                if owner == 0:
                    target.tensor.copy_(pieces[number].tensor)
                else:
                    dist.recv(target.tensor, owner)
                target.of(wholes[item.name]).copy_(target.tensor)
    return wholes if rank == 0 else None


@dataclass(frozen=True, slots=True)
class _Held:
    """A piece without its numbers."""

    name: str
    shape: tuple[int, ...]
    first: tuple[int, ...]
    size: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, piece: Piece) -> _Held:
        return cls(piece.name, piece.shape, piece.first, tuple(piece.tensor.shape), piece.tensor.dtype)

    @property
    def place(self) -> tuple[Any, ...]:
        return (self.name, self.first, self.size)
