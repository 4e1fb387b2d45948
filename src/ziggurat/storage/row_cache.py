"""Rows of a store in the slots of a cache, and which of them make room for others.

The cache's memory is somebody else's: a training's kernels read and update it in place. What is here decides which row
lies in which slot. A row that any batch on its way needs stays; among the others, those leave that were used least.
Uses are counted of all rows, here or not, and halved from time to time, so that what was used long ago counts less
(TinyLFU, Einziger et al. 2017); and of some slots that a hand passes those are taken whose rows have fewest, which is
nearly as good as of all. Ids of Zipf's law with exponents 1.05 and 1.2, 4,096 a batch, slots for 23 % of the rows: 379
and 145 rows of a batch are missing; 450 and 163 with a clock that counts up to 3 uses of a slot (GCLOCK); 360 and 126
if the rows that are used most were known.

Shape legend: R rows, C slots, L ids of a batch, U distinct rows, W float32 numbers of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.storage.row_store import Floats, Ints, PendingTransfer, RowStore, begin_reading, begin_writing

PASSED = 16
"""Slots that the hand passes for each that is wanted."""
HALVED = 64
"""Times as many ids as there are slots, after which uses count half."""
MOST_USES = 255
NOWHERE = -1


class CacheFull(Exception):
    """More rows are needed at a time than there are slots for.

    Attributes:
        missing: slots that are lacking.
    """

    def __init__(self, missing: int) -> None:
        super().__init__(missing)
        self.missing = missing


@dataclass(slots=True)
class Hits:
    """How often what was asked for was there.

    Attributes:
        ids: asked for.
        here: those whose rows were in their slots.
        missed: distinct rows, batch by batch, that had to be brought.
        evicted: rows that made room for others.
    """

    ids: int = 0
    here: int = 0
    missed: int = 0
    evicted: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """What a batch needs of a cache.

    Attributes:
        slots_L: of all that it looks up.
        missing_U: distinct rows that are not there.
        room_U: slots for them.
        leaving_U: ascending, rows that were there, have changed, and have to be written.
        left_U: slots of those, as long as nothing has arrived.
    """

    slots_L: npt.NDArray[np.int32]
    missing_U: Ints
    room_U: npt.NDArray[np.int64]
    leaving_U: Ints
    left_U: npt.NDArray[np.int64]


class RowCache:
    """Slots for rows of one store. For one thread, but for :meth:`copied` and :meth:`ids` of rows that stay.

    Args:
        store: of all rows.
        tensors: the slots' memory, side by side W numbers: each (C,) or (C, some), float32, C-contiguous.
        name: of the table, for messages.

    Attributes:
        hits: so far.
    """

    def __init__(self, store: RowStore, tensors: Sequence[Floats], name: str = "") -> None:
        self.store, self.name = store, name
        self._tensors = [tensor.reshape(len(tensor), -1) for tensor in tensors]
        assert all(np.shares_memory(mine, given) for mine, given in zip(self._tensors, tensors, strict=True))
        assert sum(tensor.shape[1] for tensor in self._tensors) == store.width
        self.slots = len(self._tensors[0])
        assert store.rows < 2**31, store.rows
        assert self.slots, "no slot"
        self._slot_of_R = np.full(store.rows, NOWHERE, np.int32)
        self._id_of_C = np.full(self.slots, NOWHERE, np.int64)
        self._held_C = np.zeros(self.slots, np.int32)
        """Number of the last batch that this row was brought for, or found."""
        self._expected_C = np.zeros(self.slots, np.int32)
        """Number of the last coming batch that needs it, as far as is known."""
        self._uses_R = np.zeros(store.rows, np.uint8)
        self._counted = 0
        self._dirty_C = np.zeros(self.slots, np.bool_)
        self._unused = 0
        self._hand = 0
        self.hits = Hits()

    def expect(self, ids_L: Ints, batch: int) -> None:
        """A coming batch needs these rows: of those that are here, none should leave before."""
        slots = self._slot_of_R[ids_L]
        slots = slots[slots >= 0]
        self._expected_C[slots] = np.maximum(self._expected_C[slots], batch)

    def bring(self, ids_L: Ints, batch: int, oldest: int) -> npt.NDArray[np.int32]:
        """:meth:`plan`, and what comes of it at once: the slots (L,) of the rows."""
        return begin_exchange([(self, self.plan(ids_L, batch, oldest))]).wait()[0]

    def plan(self, ids_L: Ints, batch: int, oldest: int) -> Move:
        """What has to be done so that all of these rows are there; until no batch on its way needs them, they stay.

        What has been planned counts as done: it is to be begun before the next plan is, and not one that needs a slot
        in which a row has not arrived.

        Args:
            ids_L: some of them repeatedly.
            batch: its number, above those before.
            oldest: of the batches on their way the first; what those before needed may leave, and has arrived.

        Raises:
            CacheFull: the batches on their way need more rows than there are slots; no row has come or left.
        """
        slots_L = self._slot_of_R[ids_L]
        here_L = slots_L >= 0
        missing_U = np.unique(ids_L[~here_L])
        slots = slots_L[here_L]
        held = self._held_C[slots]
        self._held_C[slots] = batch
        try:
            room_U = self._room_for(len(missing_U), batch, oldest)
        except CacheFull:
            self._held_C[slots] = held
            raise
        self._count(ids_L)
        self.hits.ids += len(ids_L)
        self.hits.here += len(slots)
        self.hits.missed += len(missing_U)
        left_U = room_U[self._dirty_C[room_U]]
        left_U = left_U[np.argsort(self._id_of_C[left_U])]
        leaving_U = self._id_of_C[left_U]
        self._replace(room_U, missing_U, batch)
        return Move(self._slot_of_R[ids_L], missing_U, room_U, leaving_U, left_U)

    def _replace(self, room_U: npt.NDArray[np.int64], ids_U: Ints, batch: int) -> None:
        """These slots are these rows' from now on."""
        before = self._id_of_C[room_U]
        before = before[before >= 0]
        self._slot_of_R[before] = NOWHERE
        self.hits.evicted += len(before)
        self._slot_of_R[ids_U] = room_U
        self._id_of_C[room_U] = ids_U
        self._dirty_C[room_U] = False
        self._held_C[room_U], self._expected_C[room_U] = batch, 0

    def changed(self, slots_L: npt.NDArray[np.integer]) -> None:
        """The rows in these slots were updated: what the store has of them matters no more."""
        slots = np.unique(slots_L[~self._dirty_C[slots_L]])
        self._dirty_C[slots] = True
        self.store.forget(self._id_of_C[slots])

    def ids(self, slots_L: npt.NDArray[np.integer]) -> Ints:
        """The rows in these slots, which stay there meanwhile."""
        return self._id_of_C[slots_L]

    def here(self, ids_L: Ints) -> npt.NDArray[np.bool_]:
        """Which of these rows are in the cache."""
        return self._slot_of_R[ids_L] >= 0

    def copied(self, ids_U: Ints) -> Floats:
        """Rows (U, W) that are in the cache and stay there meanwhile."""
        slots_U = self._slot_of_R[ids_U]
        assert (slots_U >= 0).all(), "not in the cache"
        return self.gathered(slots_U)

    def rows(self, ids_U: Ints) -> Floats:
        """Rows (U, W) as they are, wherever they lie, which they go on to do.

        Args:
            ids_U: ascending, distinct.
        """
        slots_U = self._slot_of_R[ids_U]
        here_U = slots_U >= 0
        found = np.empty((len(ids_U), self.store.width), np.float32)
        found[here_U] = self.gathered(slots_U[here_U])
        if not here_U.all():
            found[~here_U] = self.store.read(ids_U[~here_U])
        return found

    def put(self, ids_U: Ints, rows_UW: Floats) -> None:
        """Replace rows, wherever they lie; between batches, for a restore.

        Args:
            ids_U: ascending, distinct.
            rows_UW: what they become.
        """
        slots_U = self._slot_of_R[ids_U]
        here_U = slots_U >= 0
        self.scatter(slots_U[here_U], rows_UW[here_U])
        self.changed(slots_U[here_U])
        self.store.write(ids_U[~here_U], rows_UW[~here_U])

    def touched(self, ids_U: Ints) -> npt.NDArray[np.bool_]:
        """Which of these rows are, or may be, no longer as they began."""
        slots_U = self._slot_of_R[ids_U]
        found = self.store.written(ids_U)
        here_U = slots_U >= 0
        found[here_U] |= self._dirty_C[slots_U[here_U]]
        return found

    def _room_for(self, count: int, batch: int, oldest: int) -> npt.NDArray[np.int64]:
        """So many slots: unused ones, then those of rows that no known batch needs; last, those that a batch behind
        this one will need, and would have to be brought again for it."""
        unused = np.arange(self._unused, min(self._unused + count, self.slots))
        found = [unused, self._taken(count - len(unused), batch, oldest)]
        lacking = count - sum(map(len, found))
        if lacking:
            later = (self._held_C < oldest) & (self._expected_C > batch)
            found.append(np.flatnonzero(later[: self._unused])[:lacking])
            lacking -= len(found[-1])
        if lacking:
            raise CacheFull(lacking)
        self._unused += len(unused)
        return np.concatenate(found)

    def _taken(self, wanted: int, batch: int, oldest: int) -> npt.NDArray[np.int64]:
        """Up to so many slots whose rows no known batch needs: of each stretch that the hand passes, those of the rows
        that were used least. It goes round once at most."""
        found = [np.zeros(0, np.int64)]
        passed, used = 0, self._unused
        while wanted > 0 and passed < used:
            stretch = (self._hand + np.arange(min(PASSED * wanted, used - passed))) % used
            idle = stretch[(self._held_C[stretch] < oldest) & (self._expected_C[stretch] <= batch)]
            if len(idle) > wanted:
                idle = idle[np.argpartition(self._uses_R[self._id_of_C[idle]], wanted - 1)[:wanted]]
            found.append(idle)
            wanted -= len(idle)
            passed += len(stretch)
            self._hand = (self._hand + len(stretch)) % used
        return np.concatenate(found)

    def _count(self, ids_L: Ints) -> None:
        """A use of each of these rows, however often the batch has it."""
        self._uses_R[ids_L] = np.minimum(self._uses_R[ids_L], MOST_USES - 1) + 1
        self._counted += len(ids_L)
        if self._counted > HALVED * self.slots:
            self._uses_R >>= 1
            self._counted = 0

    def gathered(self, slots_U: npt.NDArray[np.integer]) -> Floats:
        """A copy (U, W) of what lies in these slots."""
        return np.concatenate([tensor[slots_U] for tensor in self._tensors], axis=1)

    def scatter(self, slots_U: npt.NDArray[np.integer], rows_UW: Floats) -> None:
        """Have these numbers lie in these slots."""
        column = 0
        for tensor in self._tensors:
            tensor[slots_U] = rows_UW[:, column : column + tensor.shape[1]]
            column += tensor.shape[1]


def begin_exchange(moves: Sequence[tuple[RowCache, Move]]) -> PendingTransfer[list[npt.NDArray[np.int32]]]:
    """Begin to write what leaves, and behind it to read what is missing, side by side for all caches. What comes of it
    are the slots (L,) of each move's rows, where they are then."""
    writing = begin_writing([(cache.store, move.leaving_U, cache.gathered(move.left_U)) for cache, move in moves])
    reading = begin_reading([(cache.store, move.missing_U) for cache, move in moves])

    def end() -> list[npt.NDArray[np.int32]]:
        writing.wait()
        for (cache, move), rows_UW in zip(moves, reading.wait(), strict=True):
            cache.scatter(move.room_U, rows_UW)
        return [move.slots_L for _, move in moves]

    return PendingTransfer(end)
