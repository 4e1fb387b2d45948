"""Batched products of blocks: correct, and bit-identical for a block in any stack at any position."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from ziggurat.optim.shampoo.products import Products, padded

SMALL_SHAPES = list(itertools.product(range(2, 41), repeat=2))
LARGE_SHAPES = [
    *((2, 119), (119, 2), (3, 64), (64, 3), (33, 48), (48, 33), (41, 5), (93, 5), (5, 93), (128, 45), (128, 103)),
    *((104, 104), (107, 103), (103, 107), (96, 80), (128, 128)),
]
DEEP_SHAPES = [(3, 4, 5), (8, 3, 9), (16, 16, 9), (7, 11, 2, 3), (33, 10, 3)]


def products(blocks: Tensor, matrices: list[Tensor], numbers: list[int]) -> Tensor:
    """Multiplies the chosen blocks along each dimension by their transposed matrices, then by the matrices."""
    shape = tuple(blocks.shape[1:])
    stack = padded(len(numbers), shape, blocks)
    stack[..., : shape[-1]] = blocks[numbers]
    batched = Products(len(numbers), shape, blocks)
    padded_matrices: list[Tensor] = []
    for every, size in zip(matrices, shape, strict=True):
        padded_matrices.append(padded(len(numbers), (size, size), blocks))
        padded_matrices[-1][..., :size] = every[numbers]
    for transposed in (True, False):
        for dimension, each in enumerate(padded_matrices):
            stack = batched.along(stack, each, dimension, transposed)
    return batched.unpadded(stack).clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_block_gets_the_same_bits_in_any_stack(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    differing: list[tuple[int, ...]] = []
    for shape in [*SMALL_SHAPES, *LARGE_SHAPES, *DEEP_SHAPES]:
        blocks = torch.randn(5, *shape, generator=generator, dtype=dtype)
        matrices = [torch.randn(5, size, size, generator=generator, dtype=dtype) for size in shape]
        every = products(blocks, matrices, [0, 1, 2, 3, 4])
        some = [products(blocks, matrices, numbers) for numbers in ([0, 2, 4], [1], [3])]
        if not torch.equal(torch.cat(some), every[[0, 2, 4, 1, 3]]):
            differing.append(shape)
    assert not differing


@pytest.mark.parametrize("shape", [(6, 5), (128, 45), *DEEP_SHAPES], ids=str)
def test_products_equal_those_along_each_dimension(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    blocks = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    matrices = [torch.randn(2, size, size, generator=generator, dtype=torch.float64) for size in shape]
    expected = blocks
    for transposed in (True, False):
        for dimension, each in enumerate(matrices, 1):
            left = each.mT if transposed else each
            moved = expected.movedim(dimension, 1)
            expected = (left @ moved.flatten(2)).view(moved.shape).movedim(1, dimension)
    torch.testing.assert_close(products(blocks, matrices, [0, 1]), expected)
