"""A parameter cut into blocks: dimensions merged where that is small enough, cut where they are too large.

(32, 3, 64, 64) is (96, 4096) with up to 8,192, and (32, 192, 64) with up to 1,024. Shi et al. 2023, section 3.2; a
dimension is cut into parts of even sizes, where theirs are as large as may be and a smaller last one: equal blocks are
worked on together, and 1,000 in fours of 250 makes one kind of block, not two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MatrixBlock:
    """A part of a parameter that is preconditioned by itself.

    Attributes:
        first: index of its first number in the parameter's merged shape.
        shape: of it, with as many dimensions.
    """

    first: tuple[int, ...]
    shape: tuple[int, ...]


def merged(shape: Sequence[int], most: int) -> tuple[int, ...]:
    """Without dimensions of 1, and with neighbours, from the last on, made one while that is no larger than ``most``.

    Args:
        shape: of a parameter.
        most: greatest size of a merged dimension; larger ones stay as they are.

    Returns:
        At least one dimension; of a single number (1,).
    """
    sizes: list[int] = []
    for size in reversed([size for size in shape if size != 1]):
        if sizes and sizes[-1] * size <= most:
            sizes[-1] *= size
        else:
            sizes.append(size)
    return tuple(reversed(sizes)) or (1,)


def blocks(shape: Sequence[int], most: int) -> list[MatrixBlock]:
    """Of a merged shape: none of an empty one.

    Args:
        shape: merged.
        most: greatest size of a block's dimension.
    """
    if not math.prod(shape):
        return []
    return [
        MatrixBlock(tuple(first for first, _ in parts), tuple(size for _, size in parts))
        for parts in itertools.product(*(_parts(size, most) for size in shape))
    ]


def _parts(size: int, most: int) -> list[tuple[int, int]]:
    """(first, size) of as few parts as there can be; their sizes differ by at most 1."""
    count = -(-size // most)
    edges = [size * part // count for part in range(count + 1)]
    return [(first, last - first) for first, last in itertools.pairwise(edges)]
