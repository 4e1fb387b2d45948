"""Initial embedding weights that depend on the seed, the table's name and the row alone: the same under every plan."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

_CHUNK_ROWS = 4096


def fill_initial(
    weight_RD: Tensor, table: str, std: float, seed: int, first_row: int = 0, first_column: int = 0, dim: int = 0
) -> None:
    """Fill a table, or its shard from ``first_row`` and ``first_column`` on, with N(0, std²), in place.

    ``dim`` is the whole table's; 0 where the shard has all columns.

    Rows are drawn in chunks of 4,096 from a generator seeded by (seed, table, chunk), so a shard that begins anywhere
    holds the same numbers as the whole table would. Chunks are drawn whole: torch's numbers depend on how many are
    asked for at once.
    """
    rows, columns = weight_RD.shape
    position = 0
    while position < rows:
        chunk, offset = divmod(first_row + position, _CHUNK_ROWS)
        take = min(_CHUNK_ROWS - offset, rows - position)
        drawn = _drawn(table, chunk, std, seed, dim or columns)
        mine = drawn[offset : offset + take, first_column : first_column + columns]
        weight_RD[position : position + take].copy_(mine)
        position += take


def fill_initial_rows(
    weight_RD: Tensor, ids_R: Tensor, table: str, std: float, seed: int, first_column: int, dim: int
) -> None:
    """As :func:`fill_initial`, of a shard that holds the rows of these ids, in this order.

    They may be of every chunk, so that this takes as long as filling the whole table.
    """
    columns = weight_RD.shape[1]
    rising_R, places_R = ids_R.long().sort()
    position = 0
    while position < len(rising_R):
        chunk = int(rising_R[position]) // _CHUNK_ROWS
        end = int(torch.searchsorted(rising_R, (chunk + 1) * _CHUNK_ROWS))
        drawn = _drawn(table, chunk, std, seed, dim)
        mine = drawn[rising_R[position:end] - chunk * _CHUNK_ROWS, first_column : first_column + columns]
        weight_RD[places_R[position:end].to(weight_RD.device)] = mine.to(weight_RD.device)
        position = end


def _drawn(table: str, chunk: int, std: float, seed: int, dim: int) -> Tensor:
    """A chunk of the whole table."""
    digest = hashlib.sha256(f"{seed}/{table}/{chunk}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    return torch.empty(_CHUNK_ROWS, dim).normal_(0.0, std, generator=generator)
