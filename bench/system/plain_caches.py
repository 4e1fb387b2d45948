"""Simple alternatives to our row cache: least recently used, and no cache.

Both fetch the rows of a batch when its step begins. They replace :class:`~ziggurat.storage.row_cache.RowCache`, so that
everything else is the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ziggurat.storage.row_cache import NONE, CachePlan, RowCache
from ziggurat.storage.row_store import Ints, begin_writes


class LeastRecentlyUsed(RowCache):
    """A cache that evicts the least recently used rows, without knowledge of future batches."""

    def _evict(self, count: int, batch: int, oldest: int) -> npt.NDArray[np.int64]:
        idle = np.flatnonzero(self._last_planned_C[: self._filled] < oldest)
        count = max(0, min(count, len(idle)))
        if count in {0, len(idle)}:
            return idle[:count]
        return idle[np.argpartition(self._last_planned_C[idle], count - 1)[:count]]

    def _count_uses(self, ids_L: Ints) -> None:
        """Does nothing, as the number of uses of a row does not matter here."""


class OneBatch(RowCache):
    """No cache: the rows of each batch are read from the store, and written back before the next batch."""

    def plan(self, ids_L: Ints, batch: int, oldest: int) -> CachePlan:
        dirty = np.flatnonzero(self._dirty_C)
        dirty = dirty[np.argsort(self._id_of_C[dirty])]
        begin_writes([(self.store, self._id_of_C[dirty], self.gather(dirty))]).wait()
        self._slot_of_R[self._id_of_C[: self._filled]] = NONE
        self._id_of_C[:] = NONE
        self._dirty_C[:] = False
        self._filled = 0
        return super().plan(ids_L, batch, oldest)
