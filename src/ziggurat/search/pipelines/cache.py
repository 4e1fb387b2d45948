"""Transformed blocks by content: a column, a pipeline and the rows of a fold always give the same block.

An evaluation looks its blocks up and fits the downstream model alone. The cache is memory of one process, and forgets
what was not used for longest when it is full.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from ziggurat.search.pipelines.table import Floats

Block = tuple[Floats, Floats]
"""The training rows and the other rows of a fold, transformed."""
Key = TypeVar("Key", bound=tuple[str, ...])


class BlockCache:
    """Keeps blocks, up to a number of bytes.

    Args:
        limit_bytes: how many bytes of blocks are kept.
    """

    def __init__(self, limit_bytes: int = 1 << 29) -> None:
        self.limit_bytes, self.bytes, self.hits, self.misses = limit_bytes, 0, 0, 0
        self._blocks: OrderedDict[tuple[str, ...], Block | str] = OrderedDict()

    def get(self, key: tuple[str, ...], make: Callable[[], Block]) -> Block:
        """Returns the block of ``key``, made by ``make`` if it is not there.

        Raises:
            ValueError: the block cannot be made, now or when it was tried before.
        """
        found = self._blocks.get(key)
        if found is None:
            self.misses += 1
            try:
                found = make()
            except (ValueError, ArithmeticError) as error:
                found = str(error) or type(error).__name__
            self._blocks[key] = found
            self.bytes += _size(found)
            while self.bytes > self.limit_bytes and len(self._blocks) > 1:
                self.bytes -= _size(self._blocks.popitem(last=False)[1])
        else:
            self.hits += 1
            self._blocks.move_to_end(key)
        if isinstance(found, str):
            raise ValueError(found)
        return found


def _size(block: Block | str) -> int:
    return 0 if isinstance(block, str) else block[0].nbytes + block[1].nbytes
