"""Parts of tensors that lie on several ranks, and the whole tensors that they make up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


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
    def whole(cls, name: str, tensor: Tensor) -> Piece:
        """A tensor that is not divided."""
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
        piece.tensor.copy_(piece.of(wholes[piece.name]))
