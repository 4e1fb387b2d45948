"""Complete rows of files, with every column, to accompany blocks that hold only the columns the features need."""

from __future__ import annotations

import codecs
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.blocks import RawBlock
from ziggurat.data.readers.numbered_rows import LineNumbers, NumberedBatch, NumberedRows
from ziggurat.data.readers.reader import BLOCK_BYTES
from ziggurat.data.readers.rejection_reasons import as_text
from ziggurat.data.readers.source_files import UTF_8, SourceFile
from ziggurat.data.readers.text.blocks import cut_blocks, first_record_at
from ziggurat.data.readers.text.decode import shown, stored_bytes
from ziggurat.data.readers.text.records import RecordRules, Records

LINE = "line"
"""The name of the only column of :class:`LineRows`."""


class RawRows(ABC):
    """Complete rows of the files, looked up for the blocks of a source that reads the same files.

    Attributes:
        schema: the schema of the tables that :meth:`take` returns.
    """

    schema: pa.Schema

    @abstractmethod
    def take(self, block: RawBlock, kept: LineNumbers, rejected: LineNumbers) -> tuple[pa.Table, list[str]]:
        """Returns complete rows of the file of ``block``. Blocks must be passed in the order in which they are read.

        Args:
            block: the block whose rows are wanted.
            kept: row indices into ``block.table``, ascending.
            rejected: line or row numbers in the file, ascending.

        Returns:
            The rows at ``kept``, and the text of each row in ``rejected``, truncated to 2,000 characters.
        """


def all_lines(block: RawBlock, kept: LineNumbers, rejected: LineNumbers) -> LineNumbers:
    """Returns the numbers of the rows at ``kept`` and of those in ``rejected``, ascending."""
    return np.union1d(block.lines[kept], rejected) if len(rejected) else block.lines[kept]


class BlockRows(RawRows):
    """The rows of the block itself, for formats whose rows hold nothing else.

    Args:
        schema: the schema of the blocks' tables, with dictionaries decoded.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    def take(self, block: RawBlock, kept: LineNumbers, rejected: LineNumbers) -> tuple[pa.Table, list[str]]:
        texts = {row.line: row.text for row in block.bad}
        return block.table.take(pa.array(kept)).cast(self.schema), [texts.get(int(line), "") for line in rejected]


class TextRows(RawRows):
    """The records of text files.

    Args:
        files: the files to read.
        rules: the rules that determine where records end.
    """

    def __init__(self, files: Sequence[SourceFile], rules: RecordRules) -> None:
        self._numbered = NumberedRows(files, partial(read_records, rules=rules))
        self._encoded = any(file.encoding != UTF_8 for file in files)

    def records(self, block: RawBlock, kept: LineNumbers, rejected: LineNumbers) -> tuple[pa.Array, list[str]]:
        """Returns the records at ``kept`` as a ``binary`` array, and the text of the records in ``rejected``."""
        lines = all_lines(block, kept, rejected)
        parts = self._numbered.take(block.file, lines)
        found = pa.concat_arrays([part.column(0) for part in parts]) if parts else pa.array([], pa.binary())
        if not len(rejected):
            return found, []
        is_rejected = np.isin(lines, rejected)
        texts = [shown(as_text(record)) for record in found.filter(pa.array(is_rejected)).to_pylist()]
        return found.filter(pa.array(~is_rejected)), texts


class LineRows(TextRows):
    """Whole records, byte for byte, without line ends; see :class:`TextRows`."""

    schema = pa.schema([(LINE, pa.binary())])

    def take(self, block: RawBlock, kept: LineNumbers, rejected: LineNumbers) -> tuple[pa.Table, list[str]]:
        records, texts = self.records(block, kept, rejected)
        if self._encoded and pc.any(pc.match_substring(records, b"\xff")).as_py():
            records = pa.array([stored_bytes(record) for record in records.to_pylist()], pa.binary())
        return pa.table([records], schema=self.schema), texts


def read_records(file: SourceFile, rules: RecordRules) -> Generator[NumberedBatch]:
    """Yields the records of a text file, including a header, as one ``binary`` column."""
    offset, line = first_record_at(file, rules)
    for block in cut_blocks(file, offset, BLOCK_BYTES, rules.last_record_end):
        records = Records.of(block.data, line, rules)
        line = records.next_line
        if len(records):
            yield records.lines, pa.record_batch([_binary_records(records, block.offset == 0)], names=[LINE])


def _binary_records(records: Records, at_file_start: bool) -> pa.Array:
    """Returns the records as slices of the text, in which records alternate with line ends; line ends are dropped."""
    bounds = np.empty(2 * len(records) + 1, np.int32)
    bounds[:-1:2], bounds[1::2] = records.starts, records.stops
    bounds[-1] = records.stops[-1]
    if at_file_start and records.data.startswith(codecs.BOM_UTF8):
        bounds[0] = max(bounds[0], len(codecs.BOM_UTF8))
    slices = pa.Array.from_buffers(
        pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(records.data)]
    )
    return slices.take(pa.array(np.arange(0, len(bounds) - 1, 2)))
