"""The rows of files with all that stands in them, beside the blocks that hold what the features need."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from ziggurat.data.readers.blocks import RawBlock
from ziggurat.data.readers.numbered_rows import Lines, NumberedRows, Stretch
from ziggurat.data.readers.reader import BLOCK_BYTES
from ziggurat.data.readers.rejection_reasons import as_text
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import cut_blocks
from ziggurat.data.readers.text.records import RecordRules, Records

LINE = "line"
"""The one column of :class:`LineRows`."""


class RawRows(ABC):
    """Rows as they stand in the files, for the blocks of a source that reads the same files.

    Attributes:
        schema: of the tables that :meth:`take` gives.
    """

    schema: pa.Schema

    @abstractmethod
    def take(self, block: RawBlock, kept: Lines, refused: Lines) -> tuple[pa.Table, list[str]]:
        """Rows of ``block``'s file; blocks come in order.

        Args:
            kept: positions in ``block.table``, ascending.
            refused: line or row numbers, ascending.

        Returns:
            The rows at ``kept``, and the text of each row in ``refused``, cut to 2,000 characters.
        """


class BlockRows(RawRows):
    """Only what the block holds, for formats whose rows hold no more.

    Args:
        schema: of the blocks' tables, decoded.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def take(self, block: RawBlock, kept: Lines, refused: Lines) -> tuple[pa.Table, list[str]]:
        texts = {row.line: row.text for row in block.bad}
        return block.table.take(pa.array(kept)).cast(self.schema), [texts.get(int(line), "") for line in refused]


class TextRows(RawRows):
    """The records of text files.

    Args:
        files: what to read.
        rules: where records end.
    """

    def __init__(self, files: Sequence[SourceFile], rules: RecordRules) -> None:
        self._numbered = NumberedRows(files, partial(read_records, rules=rules))

    def records(self, block: RawBlock, kept: Lines, refused: Lines) -> tuple[pa.Array, list[str]]:
        """The records at ``kept`` as a ``binary`` array, and the text of those in ``refused``."""
        lines = np.union1d(block.lines[kept], refused)
        parts = self._numbered.take(block.file, lines)
        found = pa.concat_arrays([part.column(0) for part in parts]) if parts else pa.array([], pa.binary())
        if not len(refused):
            return found, []
        apart = np.isin(lines, refused)
        texts = [as_text(record) for record in found.filter(pa.array(apart)).to_pylist()]
        return found.filter(pa.array(~apart)), texts


class LineRows(TextRows):
    """Whole records, byte for byte, without their line ends; see :class:`TextRows`."""

    schema = pa.schema([(LINE, pa.binary())])

    def take(self, block: RawBlock, kept: Lines, refused: Lines) -> tuple[pa.Table, list[str]]:
        records, texts = self.records(block, kept, refused)
        return pa.table([records], schema=self.schema), texts


def read_records(file: SourceFile, rules: RecordRules) -> Generator[Stretch]:
    """The records of a text file, a header among them, as one ``binary`` column."""
    line = 1
    for block in cut_blocks(file, 0, BLOCK_BYTES, rules.last_end):
        records = Records.of(block.data, line, rules)
        line = records.next_line
        if len(records):
            yield records.lines, pa.record_batch([_binary(records, block.offset == 0)], names=[LINE])


def _binary(records: Records, first: bool) -> pa.Array:
    """The records as slices of their text, of which each second one is the line end between two of them."""
    bounds = np.empty(2 * len(records) + 1, np.int32)
    bounds[:-1:2], bounds[1::2] = records.starts, records.stops
    bounds[-1] = records.stops[-1]
    if first and records.data.startswith(codecs.BOM_UTF8):
        bounds[0] = max(bounds[0], len(codecs.BOM_UTF8))
    slices = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(records.data)]
    )
    return slices.take(pa.array(np.arange(0, len(bounds) - 1, 2)))
