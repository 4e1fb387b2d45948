"""Writes the rows of tables at the precision of an export, in the order of their ids, in bounded memory.

Rows that are in memory are encoded from there, also where a plan orders them by frequency. Rows that memory cannot hold
are read from the checkpoint, into a file of float32 that is deleted in the end: a checkpoint may have a row in several
parts, of which the last one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ziggurat.checkpoint.reader import CheckpointReader
from ziggurat.core.files import explained_writes
from ziggurat.core.progress import Progress
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.serving.artefact.manifest import TableEntry
from ziggurat.serving.artefact.row_codec import Precision, encode

CHUNK_BYTES = 16 << 20
"""Bytes of float32 rows that are encoded at a time."""
Floats = npt.NDArray[np.float32]
Rows = Callable[[int, int], Floats]
"""Returns the rows of a table from an id to before another."""


@dataclass(frozen=True, slots=True)
class LiveTable:
    """A table of a recommender that is exported.

    Attributes:
        entry: what it is in the export.
        live: its rows in the recommender, with its name there; on the meta device if they are not in memory.
        checkpoint: the checkpoint that the recommender was restored from.
    """

    entry: TableEntry
    live: TensorSlice
    checkpoint: CheckpointReader


def write_tables(folder: Path, tables: Sequence[LiveTable], precision: Precision, progress: Progress) -> None:
    """Writes a file for each table.

    Args:
        folder: the folder of the files, which exists and is empty.
        tables: the tables.
        precision: how rows are stored.
        progress: where to show progress.

    Raises:
        ConfigError: a number cannot be stored at this precision; the message names the table and the row.
        RunFolderError: the checkpoint is damaged.
        DataError: the disk is full.
    """
    progress.start("export", sum(table.entry.rows for table in tables), "rows")
    done = 0
    for table in tables:
        entry, scratch = table.entry, folder / f"{table.entry.file}.float32"
        rows = from_checkpoint(table, scratch) if table.live.tensor.is_meta else in_memory(table.live)
        packed, path = entry.layout(precision), folder / entry.file
        at_a_time = max(1, CHUNK_BYTES // (4 * entry.dim))
        step = -(-at_a_time // packed.per_block) * packed.per_block
        with explained_writes(path), path.open("wb") as file:
            for start in range(0, entry.rows, step):
                part = rows(start, min(start + step, entry.rows))
                packed.write(file, encode(part, precision, f"table {entry.name!r}", start))
                done += len(part)
                progress.advance(done)
        scratch.unlink(missing_ok=True)
    progress.finish()


def in_memory(tensor_slice: TensorSlice) -> Rows:
    """Returns the rows of a whole table in memory, which may be stored in another order."""
    table_RD = tensor_slice.tensor.detach()
    if tensor_slice.rows is None:
        return lambda start, stop: table_RD[start:stop].float().cpu().numpy()
    place_of = torch.empty_like(tensor_slice.rows)
    place_of[tensor_slice.rows.long()] = torch.arange(len(place_of), dtype=place_of.dtype)

    def rows(start: int, stop: int) -> Floats:
        places = place_of[start:stop].long().to(table_RD.device)
        return table_RD.index_select(0, places).float().cpu().numpy()

    return rows


def from_checkpoint(table: LiveTable, scratch: Path) -> Rows:
    """Returns the rows of a table of a checkpoint, which are written to a file first."""
    averaged = table.checkpoint.shapes("average") is not None
    group, name = ("average", f"tables/{table.live.name}") if averaged else ("tables", table.live.name)
    shape = (table.entry.rows, table.entry.dim)
    with explained_writes(scratch):
        mapped = np.lib.format.open_memmap(scratch, "w+", np.float32, shape)
    target = TensorSlice(name, torch.empty(shape, device="meta"), shape, (0, 0), sink=_MappedSink(mapped))
    table.checkpoint.fill({group: [target]})
    return lambda start, stop: np.array(mapped[start:stop])


class _MappedSink:
    """Receives rows of a checkpoint into a mapped file."""

    def __init__(self, mapped: Floats) -> None:
        self._mapped = mapped

    def put(self, rows_L: Tensor, first_column: int, values: Tensor) -> None:
        self._mapped[rows_L.numpy(), first_column : first_column + values.shape[1]] = values.float().cpu().numpy()

    def flush(self) -> None:
        pass
