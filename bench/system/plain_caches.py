"""What one would have without ours: a cache of the rows that were used last, and none at all.

Both bring what a batch needs when its turn comes. They stand in for :class:`~ziggurat.storage.row_cache.RowCache`, so
that all else, kernels and steps, is the same.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ziggurat.storage.row_cache import NOWHERE, Move, RowCache
from ziggurat.storage.row_store import Ints, begin_writing


class LeastRecentlyUsed(RowCache):
    """Those rows leave that were needed longest ago; which batches come, nobody says."""

    def _taken(self, wanted: int, batch: int, oldest: int) -> npt.NDArray[np.int64]:
        idle = np.flatnonzero(self._held_C[: self._unused] < oldest)
        wanted = max(0, min(wanted, len(idle)))
        if wanted in {0, len(idle)}:
            return idle[:wanted]
        return idle[np.argpartition(self._held_C[idle], wanted - 1)[:wanted]]

    def _count(self, ids_L: Ints) -> None:
        """Nothing: how often a row is used does not matter here."""


class OneBatch(RowCache):
    """No cache: each batch's rows come from the store, and go back before the next one's."""

    def plan(self, ids_L: Ints, batch: int, oldest: int) -> Move:
        dirty = np.flatnonzero(self._dirty_C)
        dirty = dirty[np.argsort(self._id_of_C[dirty])]
        begin_writing([(self.store, self._id_of_C[dirty], self.gathered(dirty))]).wait()
        self._slot_of_R[self._id_of_C[: self._unused]] = NOWHERE
        self._id_of_C[:] = NOWHERE
        self._dirty_C[:] = False
        self._unused = 0
        return super().plan(ids_L, batch, oldest)
