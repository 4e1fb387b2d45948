"""Initial embedding weights that depend only on the seed, the table's name, the row and the column.

So they are the same under every plan, and a row that was never updated need not be stored, as it can be recomputed
independently of all others.

A weight takes 16 bits of its table's SplitMix64 stream, whose n-th word can be computed directly. These bits choose one
of 65,536 quantiles of the normal distribution: the midpoints of equally likely parts, scaled to unit variance. The
outermost are at 4.3 standard deviations.

Shape legend: R, U rows, D columns, N words of 64 bits, each of four weights.
"""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ziggurat.core.hashing import split_mix

_LEVELS = 2**16
_PER_WORD = 4
_CHUNK = 2**18
"""Weights that are computed together; few enough to stay in a core's caches."""


def fill_initial(
    weight_RD: Tensor, table: str, std: float, seed: int, first_row: int = 0, first_column: int = 0, dim: int = 0
) -> None:
    """Fills a table, or its shard that starts at ``first_row`` and ``first_column``, with N(0, std²), in place.

    ``dim`` is that of the whole table; 0 if the shard has all columns.
    """
    step = max(1, _CHUNK // (dim or weight_RD.shape[1]))
    for first in range(0, len(weight_RD), step):
        some_RD = weight_RD[first : first + step]
        ids_R = torch.arange(first_row + first, first_row + first + len(some_RD))
        fill_initial_rows(some_RD, ids_R, table, std, seed, first_column, dim or weight_RD.shape[1])


def fill_initial_rows(
    weight_RD: Tensor, ids_R: Tensor, table: str, std: float, seed: int, first_column: int, dim: int
) -> None:
    """Like :func:`fill_initial`, for a shard that holds the rows ``ids_R`` in this order."""
    columns = slice(first_column, first_column + weight_RD.shape[1])
    step = max(1, _CHUNK // dim)
    for first in range(0, len(ids_R), step):
        ids_U = ids_R[first : first + step].numpy().astype(np.int64)
        rows_UD = initial_rows(ids_U, table, std, seed, dim)[:, columns]
        weight_RD[first : first + step] = torch.from_numpy(rows_UD).to(weight_RD.device)


def initial_rows(ids_U: npt.NDArray[np.int64], table: str, std: float, seed: int, dim: int) -> npt.NDArray[np.float32]:
    """Returns the initial rows (U, D) of a table with ``dim`` columns."""
    words = -(-dim // _PER_WORD)
    places_UN = ids_U[:, None] * words + np.arange(words)
    levels_UD = split_mix(_key(table, seed), places_UN.astype(np.uint64)).astype("<u8", copy=False).view("<u2")
    return _quantiles()[levels_UD[:, :dim]] * np.float32(std)


def _key(table: str, seed: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{table}".encode()).digest()[:8], "little")


@cache
def _quantiles() -> npt.NDArray[np.float32]:
    """Returns the quantiles (65,536,), ascending."""
    middles = (torch.arange(_LEVELS, dtype=torch.float64) + 0.5) / _LEVELS
    quantiles = torch.special.ndtri(middles)
    return (quantiles / quantiles.square().mean().sqrt()).float().numpy()
