"""Draws items for sampled negatives: reproducible by row, never a known positive of the row's user.

Legend: P known positives, I items that may be drawn, R rows, K negatives of a row.

A draw depends on the seed, the number of its row and its place in the row alone, so it is the same however rows are
divided into parts. Items that a user already has, or that the row already holds, are drawn again. Where that does not
end soon, as for a user with nearly all items, the row is drawn from the remaining items instead, without replacement
and with the same weights (Efraimidis & Spirakis 2006: the smallest of ``-log(u) / weight``).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ziggurat.core.hashing import hash_integers, to_unit_interval

NO_ITEM = -1
"""Stands for a negative that does not exist: its user has positives among all other items."""
_ROUNDS = 24
_CHUNK_DRAWS = 2**20

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


class NegativeSampler:
    """Draws items for the rows of users.

    Args:
        users_P: keys of the users of all known positives, of every split.
        items_P: keys of their items.
        pool_I: distinct keys of the items that may be drawn, ascending.
        weights_I: their weights, positive; None draws uniformly.
        seed: seed of the draws.
    """

    def __init__(
        self, users_P: Int64Array, items_P: Int64Array, pool_I: Int64Array, weights_I: Float64Array | None, seed: int
    ) -> None:
        self._users = np.unique(users_P)
        self._items = len(pool_I)
        self._seed = seed
        self._weights = np.ones(self._items) if weights_I is None else weights_I
        self._bounds = None if weights_I is None else np.cumsum(weights_I) / weights_I.sum()
        place_P = np.searchsorted(pool_I, items_P)
        inside_P = (place_P < self._items) & (pool_I[np.minimum(place_P, self._items - 1)] == items_P)
        self._known = np.unique(self._pairs(self._user_numbers(users_P[inside_P]), place_P[inside_P]))

    def draw(self, users_R: Int64Array, rows_R: Int64Array, count: int) -> Int64Array:
        """Draws ``count`` different items for each row.

        Args:
            users_R: keys of the rows' users, all of whom have a known positive.
            rows_R: a number for each row, which no other row has.
            count: K, the number of items of a row.

        Returns:
            int64 (R, K): positions in the pool; :data:`NO_ITEM` at the end of rows whose user has too few other items.
        """
        step = max(1, _CHUNK_DRAWS // max(count, 1))
        chunks = [
            self._draw(self._user_numbers(users_R[start : start + step]), rows_R[start : start + step], count)
            for start in range(0, len(rows_R), step)
        ]
        return np.concatenate(chunks) if chunks else np.empty((0, count), np.int64)

    def _draw(self, users_R: Int64Array, rows_R: Int64Array, count: int) -> Int64Array:
        drawn_RK = np.empty((len(rows_R), count), np.int64)
        wrong_RK = np.ones(drawn_RK.shape, np.bool_)
        for attempt in range(_ROUNDS):
            rows, places = np.nonzero(wrong_RK)
            drawn_RK[rows, places] = self._items_at(self._uniform(rows_R[rows] * count + places, attempt))
            touched = np.unique(rows)
            wrong_RK[touched] = self._is_known(users_R[touched], drawn_RK[touched]) | _repeats(drawn_RK[touched])
            if not wrong_RK.any():
                return drawn_RK
        for row in np.flatnonzero(wrong_RK.any(axis=1)).tolist():
            drawn_RK[row] = self._exact(int(users_R[row]), int(rows_R[row]), count)
        return drawn_RK

    def _exact(self, user: int, row: int, count: int) -> Int64Array:
        first, last = np.searchsorted(self._known, [user * self._items, (user + 1) * self._items])
        free = np.setdiff1d(np.arange(self._items), self._known[first:last] - user * self._items, assume_unique=True)
        uniform = self._uniform(row * np.int64(self._items) + free, _ROUNDS)
        order = np.argsort(-np.log1p(-uniform) / self._weights[free], kind="stable")
        found = np.full(count, NO_ITEM, np.int64)
        found[: min(count, len(free))] = free[order[:count]]
        return found

    def _uniform(self, keys: Int64Array, attempt: int) -> Float64Array:
        with np.errstate(over="ignore"):
            return to_unit_interval(hash_integers(hash_integers(keys, self._seed).view(np.int64), attempt))

    def _items_at(self, uniform: Float64Array) -> Int64Array:
        if self._bounds is None:
            return (uniform * self._items).astype(np.int64)
        return np.minimum(np.searchsorted(self._bounds, uniform, side="right"), self._items - 1)

    def _is_known(self, users_R: Int64Array, items_RK: Int64Array) -> npt.NDArray[np.bool_]:
        pairs = self._pairs(users_R[:, None], items_RK)
        if not len(self._known):
            return np.zeros(pairs.shape, np.bool_)
        place = np.minimum(np.searchsorted(self._known, pairs), len(self._known) - 1)
        return self._known[place] == pairs

    def _user_numbers(self, users: Int64Array) -> Int64Array:
        return np.searchsorted(self._users, users)

    def _pairs(self, users: Int64Array, items: Int64Array) -> Int64Array:
        return users * np.int64(self._items) + items


def _repeats(items_RK: Int64Array) -> npt.NDArray[np.bool_]:
    """Returns whether an item stands at an earlier place of the same row, too."""
    order = np.argsort(items_RK, axis=1, kind="stable")
    ordered = np.take_along_axis(items_RK, order, axis=1)
    repeated = np.zeros(items_RK.shape, np.bool_)
    np.put_along_axis(repeated, order[:, 1:], ordered[:, 1:] == ordered[:, :-1], axis=1)
    return repeated
