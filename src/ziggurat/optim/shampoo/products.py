"""Equal blocks in one tensor, and their products with matrices of their own.

Rows are padded by 1 to 16 zeros, so that every block begins where memory is aligned and none fills its place: MKL's
products of matrices that begin elsewhere, or that are alone and contiguous, differ in the last bits from the same ones
in a stack, and a block is to come to the same numbers whoever owns it, beside whatever others. What is multiplied lies
so; what comes of it is contiguous, which MKL is a third faster with, where each block begins where memory is aligned
so, too, unless its rows are single numbers.

Shape legend: N blocks, D1 … Dk their dimensions, P the last one padded; a block of one dimension has a first one of 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

ALIGNED = 16
"""Numbers to which rows are padded; 64 bytes in fp32."""


def padded_shape(count: int, shape: Sequence[int]) -> tuple[int, ...]:
    """(N, D1, …, P) of so many blocks."""
    *rows, last = inner(shape)
    return (count, *rows, (last // ALIGNED + 1) * ALIGNED)


def padded(count: int, shape: Sequence[int], like: Tensor) -> Tensor:
    """Zeros of such a shape, of the type and on the device of ``like``."""
    return like.new_zeros(padded_shape(count, shape))


def inner(shape: Sequence[int]) -> tuple[int, ...]:
    """Of at least two dimensions."""
    return tuple(shape) if len(shape) > 1 else (1, *shape)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A product of a stack and matrices, as views: of small blocks, making them would take as long as it.

    Attributes:
        stack, matrices: which.
        found: where it comes to lie.
        left, right: what is multiplied.
        into: what of ``found`` the product is; None: rows are to be moved before and after.
    """

    stack: Tensor
    matrices: Tensor
    found: Tensor
    left: Tensor
    right: Tensor
    into: Tensor | None


class Products:
    """What products of a stack's blocks with matrices need, and the memory that they are put into.

    Args:
        count: of the blocks.
        shape: of each.
        like: a tensor of their type and on their device.
    """

    def __init__(self, count: int, shape: Sequence[int], like: Tensor) -> None:
        self._count, self._inner, self._like = count, inner(shape), like
        self._plans = dict[tuple[int, bool, bool], _Plan]()

    @cached_property
    def _rooms(self) -> tuple[Tensor, Tensor]:
        return self.room(self._count), self.room(self._count)

    def unpadded(self, stack: Tensor) -> Tensor:
        """(N, D1, …, Dk), a view."""
        return stack[..., : self._inner[-1]]

    def room(self, count: int) -> Tensor:
        """For what comes of products of so many blocks, (N, D1, …, Dk or P)."""
        size = math.prod(self._inner)
        if size % ALIGNED or self._inner[-1] == 1:
            return padded(count, self._inner, self._like)
        return self._like.new_zeros(count, *self._inner)

    def _other_room(self, stack: Tensor) -> Tensor:
        """For as many blocks, which do not lie there."""
        first, second = self._rooms
        found = second if stack is first else first
        return found if found.shape[0] == stack.shape[0] else self.room(stack.shape[0])

    def unfolded(self, stack: Tensor, dimension: int) -> Tensor:
        """(N, D, the others): rows of a dimension."""
        count, last = stack.shape[0], self._inner[-1]
        if dimension == len(self._inner) - 1:
            return stack.view(count, -1, stack.shape[-1])[..., :last].mT
        if len(self._inner) == 2:
            return stack[..., :last]
        rows = stack[..., :last].movedim(dimension + 1, 1).reshape(count, self._inner[dimension], -1)
        found = padded(count, rows.shape[1:], stack)
        found[..., : rows.shape[-1]] = rows
        return found[..., : rows.shape[-1]]

    def along(self, stack: Tensor, matrices: Tensor, dimension: int, transposed: bool = False) -> Tensor:
        """Each block with a dimension multiplied from the left by a matrix of its own, for the next call."""
        key = (dimension, transposed, stack is self._rooms[0])
        plan = self._plans.get(key)
        if plan is None or plan.stack is not stack or plan.matrices is not matrices:
            plan = self._plan(stack, matrices, dimension, transposed)
            if len(stack) == self._count:  # of some blocks there are copies, another time others
                self._plans[key] = plan
        if plan.into is not None:
            torch.bmm(plan.left, plan.right, out=plan.into)
        else:
            rows = self.unfolded(stack, dimension)
            product = padded(len(stack), rows.shape[1:], stack)[..., : rows.shape[-1]]
            torch.bmm(plan.left, rows, out=product)
            others = [each for number, each in enumerate(self._inner) if number != dimension]
            moved = product.reshape(len(stack), -1, *others).movedim(1, dimension + 1)
            self.unpadded(plan.found).copy_(moved)
        return plan.found

    def _plan(self, stack: Tensor, matrices: Tensor, dimension: int, transposed: bool) -> _Plan:
        count, last, size = stack.shape[0], self._inner[-1], self._inner[dimension]
        matrix = matrices[..., :size]
        left = matrix.mT if transposed else matrix
        found = self._other_room(stack)
        if dimension == len(self._inner) - 1:
            rows, into = (each.view(count, -1, each.shape[-1])[..., :last] for each in (stack, found))
            return _Plan(stack, matrices, found, rows, left.mT, into)
        if len(self._inner) == 2:
            return _Plan(stack, matrices, found, left, self.unfolded(stack, dimension), self.unpadded(found))
        return _Plan(stack, matrices, found, left, stack, None)
