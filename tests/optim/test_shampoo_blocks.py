"""How parameters are merged and cut into blocks."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from ziggurat.optim.shampoo.blocks import blocks, merged
from ziggurat.optim.shampoo.placement import owners

SHAPES = st.lists(st.integers(1, 12), min_size=0, max_size=5).map(tuple)


@pytest.mark.parametrize(
    ("shape", "max_dim", "expected"),
    [
        ((32, 3, 64, 64), 8192, (96, 4096)),  # Shi et al. 2023, section 3.2
        ((32, 3, 64, 64), 1024, (32, 192, 64)),
        ((32, 3, 64, 64), 96, (96, 64, 64)),
        ((5, 1, 7), 100, (35,)),
        ((5, 1, 7), 20, (5, 7)),
        ((300, 400), 128, (300, 400)),
        ((1, 1), 8, (1,)),
        ((), 8, (1,)),
        ((0, 4), 8, (0,)),
    ],
)
def test_neighbours_are_merged_while_small(shape: tuple[int, ...], max_dim: int, expected: tuple[int, ...]) -> None:
    assert merged(shape, max_dim) == expected


@given(SHAPES, st.integers(2, 40))
def test_merged_shapes_hold_as_many_numbers(shape: tuple[int, ...], max_dim: int) -> None:
    found = merged(shape, max_dim)
    assert math.prod(found) == math.prod(shape)
    assert all(size <= max(max_dim, *shape, 1) for size in found)


@given(SHAPES, st.integers(2, 5))
def test_blocks_cover_each_number_once_and_are_nearly_equal(shape: tuple[int, ...], max_dim: int) -> None:
    whole = torch.zeros(merged(shape, max_dim))
    found = blocks(whole.shape, max_dim)
    for block in found:
        part = whole
        for dimension, (first, size) in enumerate(zip(block.first, block.shape, strict=True)):
            assert 1 <= size <= max_dim
            part = part.narrow(dimension, first, size)
        part += 1
    assert (whole == 1).all()
    for dimension in range(whole.ndim):
        sizes = {block.shape[dimension] for block in found}
        assert max(sizes) - min(sizes) <= 1


def test_an_empty_parameter_has_no_blocks() -> None:
    assert blocks(merged((0, 4), 8), 8) == []


def test_costly_blocks_go_to_the_least_loaded_ranks() -> None:
    shapes = [(10, 10), (100, 100), (50, 50), (50, 50), (10,)]
    assert owners([(each, True) for each in shapes], 2) == [1, 0, 1, 1, 1]
    assert owners([(each, True) for each in shapes], 1) == [0] * 5
    assert set(owners([((8, 8), True)] * 8, 4)) == {0, 1, 2, 3}


def test_blocks_without_roots_cost_little() -> None:
    assert owners([((100,), False), ((10, 10), True), ((100,), False)], 2) == [1, 0, 1]
