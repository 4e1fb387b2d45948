"""What of each table, and which files, a checkpoint has, told from its manifest.

Column-wise shards write parts of rows; rows are counted here as if they lay whole.
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
class TablePart:
    """What a checkpoint has of a table.

    Attributes:
        name: of the table.
        shape: of the whole table.
        rows: in this checkpoint.
        bits: name of a tensor -> bits of its numbers, several where some rows could not be quantised.
        bytes: of the rows, their optimizer's states and their ids.
    """

    name: str
    shape: TableShape
    rows: int
    bits: dict[str, tuple[int, ...]]
    bytes: int


@dataclass(frozen=True, slots=True)
class FilePart:
    """A file of a checkpoint.

    Attributes:
        name: in the checkpoint's folder.
        bytes: its size.
        rank: who wrote it; format 1 does not say.
        tables: of which it has rows; none: everything else.
    """

    name: str
    bytes: int
    rank: int | None
    tables: tuple[str, ...]


def tables_in(found: Manifest | LegacyCheckpoint) -> list[TablePart]:
    """By table, in the manifest's order."""
    if isinstance(found, LegacyCheckpoint):
        return [_whole(name, shape) for name, shape in found.tables.items()]
    blocks: dict[str, list[RowBlock]] = defaultdict(list)
    for file in found.files:
        for block in file.blocks:
            blocks[block.table].append(block)
    return [_part(name, shape, blocks[name]) for name, shape in found.tables.items()]


def files_in(found: Manifest | LegacyCheckpoint) -> list[FilePart]:
    """As they were written."""
    if isinstance(found, LegacyCheckpoint):
        tables = {name: tuple(found.shapes[Path(name).stem]) for name in found.sizes if Path(name).stem == TABLES}
        return [FilePart(name, size, None, tables.get(name, ())) for name, size in found.sizes.items()]
    return [
        FilePart(file.name, file.bytes, file.rank, tuple(dict.fromkeys(block.table for block in file.blocks)))
        for file in found.files
    ]


def _part(name: str, shape: TableShape, blocks: Iterable[RowBlock]) -> TablePart:
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
    return TablePart(name, shape, rows, {tensor: tuple(sorted(each)) for tensor, each in bits.items()}, size)


def _whole(name: str, shape: TableShape) -> TablePart:
    tensors = (WEIGHT, *shape.states)
    width = shape.dim + sum(max(1, each) for each in shape.states.values())
    return TablePart(name, shape, shape.rows, dict.fromkeys(tensors, (32,)), 4 * width * shape.rows)
