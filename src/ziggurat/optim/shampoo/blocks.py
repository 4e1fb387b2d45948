"""Cuts a parameter into blocks: small neighbouring dimensions are merged, large dimensions are cut.

With blocks of up to 8,192 a dimension, (32, 3, 64, 64) becomes (96, 4096); with up to 1,024, (32, 192, 64). See Shi et
al. 2023, section 3.2. They cut a dimension into parts of the maximal size and a smaller last one; we cut it into parts
of equal size, because equal blocks are processed together: 1,000 is cut into four parts of 250, one kind of block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MatrixBlock:
    """A part of a parameter that is preconditioned separately.

    Attributes:
        first: index of the block's first number in the parameter's merged shape.
        shape: shape of the block, with as many dimensions.
    """

    first: tuple[int, ...]
    shape: tuple[int, ...]


def merged(shape: Sequence[int], max_dim: int) -> tuple[int, ...]:
    """Removes dimensions of 1 and merges neighbours, starting from the last, as long as they are at most ``max_dim``.

    Args:
        shape: shape of a parameter.
        max_dim: greatest size of a merged dimension; single dimensions that are larger stay as they are.

    Returns:
        The merged shape, with at least one dimension; (1,) for a single number.
    """
    sizes: list[int] = []
    for size in reversed([size for size in shape if size != 1]):
        if sizes and sizes[-1] * size <= max_dim:
            sizes[-1] *= size
        else:
            sizes.append(size)
    return tuple(reversed(sizes)) or (1,)


def blocks(shape: Sequence[int], max_dim: int) -> list[MatrixBlock]:
    """Returns the blocks of a merged shape; none for a shape without numbers.

    Args:
        shape: the merged shape.
        max_dim: greatest size of a block's dimension.
    """
    if not math.prod(shape):
        return []
    return [
        MatrixBlock(tuple(first for first, _ in parts), tuple(size for _, size in parts))
        for parts in itertools.product(*(_parts(size, max_dim) for size in shape))
    ]


def _parts(size: int, max_dim: int) -> list[tuple[int, int]]:
    """Cuts a dimension into the fewest parts, with sizes that differ by at most 1; returns (first, size) of each."""
    count = -(-size // max_dim)
    edges = [size * part // count for part in range(count + 1)]
    return [(first, last - first) for first, last in itertools.pairwise(edges)]
