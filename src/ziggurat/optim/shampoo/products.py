"""Stacks of equal blocks in one tensor, and batched products of each block with its own matrices.

Rows are padded by 1 to 16 zeros, so that every block starts at an aligned address and is never contiguous. Otherwise
the last bits would differ: MKL's product of a matrix that starts at another address, or that is alone and contiguous,
differs from the product of the same matrix in a stack. With the padding, a block gets the same numbers whichever rank
owns it and whichever blocks share its stack. Operands are padded. Outputs are contiguous, which makes MKL a third
faster, if each block then still starts at an aligned address and its rows are longer than one number.

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
"""Rows are padded to a multiple of this; 64 bytes in fp32."""


def padded_shape(count: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the padded shape (N, D1, …, P) of a stack of ``count`` blocks."""
    *rows, last = at_least_2d(shape)
    return (count, *rows, (last // ALIGNED + 1) * ALIGNED)


def padded(count: int, shape: Sequence[int], like: Tensor) -> Tensor:
    """Returns zeros of the padded shape, with the dtype and device of ``like``."""
    return like.new_zeros(padded_shape(count, shape))


def at_least_2d(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape, with a leading dimension of 1 if it has only one dimension."""
    return tuple(shape) if len(shape) > 1 else (1, *shape)


@dataclass(frozen=True, slots=True)
class _ProductViews:
    """The views for a product of a stack and matrices, kept because making them takes as long as a small product.

    Attributes:
        stack, matrices: the tensors that the views are of.
        found: the tensor that holds the result.
        left, right: the operands.
        into: the part of ``found`` that the product is written to; None if dimensions must be moved before and after.
    """

    stack: Tensor
    matrices: Tensor
    found: Tensor
    left: Tensor
    right: Tensor
    into: Tensor | None


class Products:
    """Products of a stack's blocks with matrices, with cached views and output buffers.

    Args:
        count: number of blocks.
        shape: shape of each block.
        like: a tensor with the dtype and device of the blocks.
    """

    def __init__(self, count: int, shape: Sequence[int], like: Tensor) -> None:
        self._count, self._inner, self._like = count, at_least_2d(shape), like
        self._product_views = dict[tuple[int, bool, bool], _ProductViews]()

    @cached_property
    def _outputs(self) -> tuple[Tensor, Tensor]:
        return self.output(self._count), self.output(self._count)

    def unpadded(self, stack: Tensor) -> Tensor:
        """Returns a view of the stack without padding, (N, D1, …, Dk)."""
        return stack[..., : self._inner[-1]]

    def output(self, count: int) -> Tensor:
        """Returns a new output buffer for products of ``count`` blocks, (N, D1, …, Dk or P)."""
        size = math.prod(self._inner)
        if size % ALIGNED or self._inner[-1] == 1:
            return padded(count, self._inner, self._like)
        return self._like.new_zeros(count, *self._inner)

    def _free_output(self, stack: Tensor) -> Tensor:
        """Returns an output buffer for as many blocks that is not ``stack`` itself."""
        first, second = self._outputs
        found = second if stack is first else first
        return found if found.shape[0] == stack.shape[0] else self.output(stack.shape[0])

    def unfolded(self, stack: Tensor, dimension: int) -> Tensor:
        """Returns the stack unfolded along a dimension: (N, D, product of the other dimensions)."""
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
        """Multiplies each block, along a dimension, from the left by its own matrix.

        Returns:
            An output buffer. It may be the input of the next call; later calls overwrite it.
        """
        key = (dimension, transposed, stack is self._outputs[0])
        plan = self._product_views.get(key)
        if plan is None or plan.stack is not stack or plan.matrices is not matrices:
            plan = self._make_views(stack, matrices, dimension, transposed)
            if len(stack) == self._count:  # a subset of blocks is a copy that does not come again
                self._product_views[key] = plan
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

    def _make_views(self, stack: Tensor, matrices: Tensor, dimension: int, transposed: bool) -> _ProductViews:
        count, last, size = stack.shape[0], self._inner[-1], self._inner[dimension]
        matrix = matrices[..., :size]
        left = matrix.mT if transposed else matrix
        found = self._free_output(stack)
        if dimension == len(self._inner) - 1:
            rows, into = (each.view(count, -1, each.shape[-1])[..., :last] for each in (stack, found))
            return _ProductViews(stack, matrices, found, rows, left.mT, into)
        if len(self._inner) == 2:
            return _ProductViews(stack, matrices, found, left, self.unfolded(stack, dimension), self.unpadded(found))
        return _ProductViews(stack, matrices, found, left, stack, None)
