"""Returns a checkpoint's content by table and by file, from its manifest.

Column-wise shards write parts of rows. Here they are counted as whole rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ziggurat.checkpoint.format.manifest import WEIGHT, Manifest, RowBlock, TableShape
from ziggurat.checkpoint.format.quantise import row_bytes
from ziggurat.checkpoint.inspect.catalogue import LegacyCheckpoint
from ziggurat.checkpoint.reader import TABLES


@dataclass(frozen=True, slots=True)
class TableContents:
    """The rows of a table in a checkpoint.

    Attributes:
        name: name of the table.
        shape: shape of the whole table.
        rows: number of rows in this checkpoint.
        bits: tensor name -> bits per value; several if some rows could not be quantised.
        bytes: size of the rows, their optimizer states and their ids.
    """

    name: str
    shape: TableShape
    rows: int
    bits: dict[str, tuple[int, ...]]
    bytes: int


@dataclass(frozen=True, slots=True)
class FileContents:
    """A file of a checkpoint.

    Attributes:
        name: name in the checkpoint's folder.
        bytes: size of the file.
        rank: the rank that wrote it; None for format 1, which does not record it.
        tables: names of the tables of which it has rows; empty: it holds all other tensors.
    """

    name: str
    bytes: int
    rank: int | None
    tables: tuple[str, ...]


def tables_in(found: Manifest | LegacyCheckpoint) -> list[TableContents]:
    """Returns a checkpoint's content by table, in the manifest's order."""
    if isinstance(found, LegacyCheckpoint):
        return [_whole(name, shape) for name, shape in found.tables.items()]
    blocks: dict[str, list[RowBlock]] = defaultdict(list)
    for file in found.files:
        for block in file.blocks:
            blocks[block.table].append(block)
    return [_part(name, shape, blocks[name]) for name, shape in found.tables.items()]


def files_in(found: Manifest | LegacyCheckpoint) -> list[FileContents]:
    """Returns a checkpoint's files in the order of writing."""
    if isinstance(found, LegacyCheckpoint):
        tables = {name: tuple(found.shapes[Path(name).stem]) for name in found.sizes if Path(name).stem == TABLES}
        return [FileContents(name, size, None, tables.get(name, ())) for name, size in found.sizes.items()]
    return [
        FileContents(file.name, file.bytes, file.rank, tuple(dict.fromkeys(block.table for block in file.blocks)))
        for file in found.files
    ]


def _part(name: str, shape: TableShape, blocks: Iterable[RowBlock]) -> TableContents:
    numbers, size = 0, 0
    bits: dict[str, set[int]] = {tensor: set() for tensor in (WEIGHT, *shape.states)}
    for block in blocks:
        numbers += block.rows * block.columns[1]
        size += 0 if block.first is not None else block.rows * (4 if block.high < 2**31 else 8)
        for tensor, each in block.bits.items():
            bits.setdefault(tensor, set()).add(each)
            wide = tensor == WEIGHT or shape.states.get(tensor, 0) > 0
            size += block.rows * row_bytes(block.columns[1] if wide else 1, each)
    rows = -(-numbers // max(1, shape.dim))
    return TableContents(name, shape, rows, {tensor: tuple(sorted(each)) for tensor, each in bits.items()}, size)


def _whole(name: str, shape: TableShape) -> TableContents:
    tensors = (WEIGHT, *shape.states)
    width = shape.dim + sum(max(1, each) for each in shape.states.values())
    return TableContents(name, shape, shape.rows, dict.fromkeys(tensors, (32,)), 4 * width * shape.rows)
