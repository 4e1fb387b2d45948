"""The interface of every raw source, and the text source, which parses blocks in threads and yields them in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import ClassVar, Literal, Self

import pydantic

from ziggurat.core.config import Config
from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.assemble import Parsed, join
from ziggurat.data.readers.blocks import BadRow, FileRange, Position, RawBlock
from ziggurat.data.readers.cells.number_rules import NumberRules, check_number_rules
from ziggurat.data.readers.cells.text import NOT_UTF8, CellRules
from ziggurat.data.readers.rejection_reasons import rejection_reason, split_hint
from ziggurat.data.readers.source_files import UTF_8, SourceFile, fingerprint_files
from ziggurat.data.readers.text.blocks import TextBlock, cut_blocks, read_byte_range
from ziggurat.data.readers.text.decode import encoding_name, shown
from ziggurat.data.readers.text.records import RecordRules, count_lines

BLOCK_BYTES = 16 * 2**20
"""Bytes of text per block.

Larger blocks do not fit the processor's caches (a third slower at 64 MiB) and take more memory.
"""

THREADS = 2
"""Number of blocks parsed concurrently; pyarrow releases the interpreter lock while it parses."""

SLOW_PARSE_BYTES = 64 * 2**10
"""Text that the vectorised parser rejects is parsed record by record up to this size; larger text is divided first."""

FILE_RANGE_BYTES = 64 * 2**20
"""Bytes of text, or of decoded Parquet, in a file range; a smaller file is a single range."""

_PARTS = 8


class FilesConfig(Config):
    """Settings shared by the configs of all sources."""

    files: list[str]
    """Paths, folders and globs, relative to the data folder. Text files that end in .gz, .zst, .bz2, .xz or .zip are
    decompressed; ``logs.zip/clicks.csv`` names one file of several in an archive."""


class TextConfig(FilesConfig):
    """Settings shared by the configs of text sources."""

    NEWER: ClassVar[frozenset[str]] = frozenset({"encoding", "line_ends"})

    encoding: str = UTF_8
    """Encoding of the text, by a name that Python knows: utf-16, cp1252, cp1251, koi8-r, shift_jis, gb18030, big5 …"""
    line_ends: Literal["cr"] | None = None
    """``cr`` for files whose lines end in carriage returns alone; null for line feeds, also after carriage returns."""

    @pydantic.field_validator("encoding")
    @classmethod
    def _is_known(cls, value: str) -> str:
        return encoding_name(value)

    def opened_as(self, files: Iterable[SourceFile]) -> tuple[SourceFile, ...]:
        """Returns the files, each with how its bytes are to be read as text."""
        return tuple(replace(file, encoding=self.encoding, lone_returns=self.line_ends == "cr") for file in files)


class CellsConfig(FilesConfig):
    """Settings shared by the configs of sources that can hold missing values."""

    null_values: list[str] = pydantic.Field(default=[""])
    """Cells with one of these texts are missing values. Empty cells are always missing."""
    nan_is_missing: bool = False
    """Treat NaN as a missing value instead of rejecting the row."""
    decimal: str = "."
    """The decimal mark of numbers that are text, "," for one."""
    thousands: str = ""
    """The mark between thousands of numbers that are text: ",", ".", "'" or " "; empty: there is none."""
    symbols: list[str] = pydantic.Field(default=[])
    """Signs around numbers that are text: currencies, as in ["$", "EUR"], and "%", which divides by 100."""
    negative: Literal["sign", "parentheses"] = "sign"
    """``parentheses``: numbers that are text and stand in parentheses are negative, as in "($1,234.50)"."""
    infinity_is_missing: bool = False
    """Treat infinities as missing values instead of rejecting the row."""

    NEWER: ClassVar[frozenset[str]] = frozenset({"decimal", "thousands", "symbols", "negative", "infinity_is_missing"})

    @pydantic.model_validator(mode="after")
    def _numbers_can_be_read(self) -> Self:
        check_number_rules(self.number_rules)
        return self

    @property
    def number_rules(self) -> NumberRules:
        return NumberRules(self.decimal, self.thousands, tuple(self.symbols), self.negative == "parentheses")

    @property
    def cell_rules(self) -> CellRules:
        missing = tuple(self.null_values), self.nan_is_missing
        return CellRules(*missing, self.number_rules, self.infinity_is_missing)


class RawSource(ABC):
    """Files of raw logs, read as blocks of typed rows.

    Attributes:
        files: the files that the config's ``files`` resolve to, as they were when the source was opened.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.files = tuple(files)

    @property
    def paths(self) -> tuple[PurePath, ...]:
        return tuple(file.path for file in self.files)

    @property
    def total_bytes(self) -> int:
        """Total size of all files on disk (compressed files count as compressed)."""
        return sum(file.size_bytes for file in self.files)

    def fingerprint(self) -> str:
        """Returns a fingerprint that changes when a file is added, renamed, resized or modified."""
        return fingerprint_files(self.files)

    @abstractmethod
    def blocks(self, start: Position = Position(), end: Position | None = None) -> Iterator[RawBlock]:  # noqa: B008 (frozen)
        """Yields the rows from ``start`` to ``end`` as blocks, in order.

        Args:
            start: the beginning of the first file (default), the ``end`` of a block, or the ``start`` of a file range.
            end: where to stop: the ``end`` of a file range; default: the end of the last file.

        Raises:
            DataError: a file vanished, changed, is truncated or corrupt, or its layout differs from the config.
        """

    @abstractmethod
    def file_ranges(self, start: Position = Position()) -> Iterator[FileRange]:  # noqa: B008 (frozen)
        """Divides the rows from ``start`` on into file ranges that :meth:`blocks` can read independently, in any order.

        Uncompressed text larger than one range is read here (but not parsed), because its lines must be counted. A
        compressed text file is one range. Parquet is divided between row groups.

        Raises:
            DataError: as :meth:`blocks`.
        """

    @abstractmethod
    def read_block(self, start: Position, end: Position) -> RawBlock:
        """Reads one block of :meth:`blocks` again, from its start to its ``end``. Thread-safe.

        Compressed text is decompressed from the beginning of the file; Parquet is read from the beginning of a row
        group.

        Raises:
            DataError: as :meth:`blocks`.
        """


class TextParser(ABC):
    """Parses whole records of one text file. Thread-safe: immutable after construction.

    Attributes:
        records: the rules that determine where records end.
        first_row: offset and line of the first row, after any header. ``first_row.file`` is unused.
    """

    records: RecordRules
    first_row: Position

    @abstractmethod
    def parse(self, data: bytes, line: int) -> Parsed | None:
        """Parses ``data``, whose first line number is ``line``, vectorised; None if a record is irregular."""

    @abstractmethod
    def parse_slowly(self, data: bytes, line: int) -> Parsed:
        """Parses ``data`` record by record and determines which records are bad and why.

        The reference for :meth:`parse`.
        """


@dataclass(frozen=True, slots=True)
class _PendingBlock:
    """A block of text that has been read but not parsed."""

    file: SourceFile
    parser: TextParser
    block: TextBlock
    line: int
    end: Position


class TextSource(RawSource):
    """Text files, each parsed by its own parser, which ``open_parser`` creates from the head of the file.

    Args:
        files: the files to read.
        open_parser: creates the parser of a file; raises DataError if the file's layout differs from the config. It is
            called for all files up front, so that an error in the last file does not surface after an hour of reading.
        schema: the columns to deliver.
        block_bytes: bytes of text per block.
        threads: number of blocks parsed concurrently.
    """

    def __init__(
        self,
        files: Sequence[SourceFile],
        open_parser: Callable[[SourceFile], TextParser],
        schema: RawSchema,
        block_bytes: int = BLOCK_BYTES,
        threads: int = THREADS,
    ) -> None:
        super().__init__(files)
        self._parsers = [open_parser(file) for file in files]
        self._schema = schema
        self._block_bytes = block_bytes
        self._threads = threads

    def blocks(self, start: Position = Position(), end: Position | None = None) -> Iterator[RawBlock]:  # noqa: B008 (frozen)
        pending: deque[Future[RawBlock]] = deque()
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="ziggurat-reader")
        try:
            for future in self._submit_blocks(start, end, pool):
                pending.append(future)
                if len(pending) > self._threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def file_ranges(self, start: Position = Position()) -> Iterator[FileRange]:  # noqa: B008 (frozen)
        for index in range(start.file, len(self.files)):
            file, range_start = self.files[index], start if index == start.file else Position(index)
            next_file = Position(index + 1)
            if file.is_plain and file.size_bytes - range_start.offset > FILE_RANGE_BYTES:
                offset, line = self._first_row_at(range_start)
                for block in cut_blocks(file, offset, FILE_RANGE_BYTES, self._parsers[index].records.last_record_end):
                    offset, line = offset + len(block.data), line + count_lines(block.data)
                    end = Position(index, offset, line) if offset < file.size_bytes else next_file
                    yield FileRange(range_start, end)
                    range_start = end
            if range_start != next_file:
                yield FileRange(range_start, next_file)

    def read_block(self, start: Position, end: Position) -> RawBlock:
        file, parser = self.files[start.file], self._parsers[start.file]
        offset, line = self._first_row_at(start)
        data = read_byte_range(file, offset, end.offset if end.file == start.file else None)
        return self._parse_block(
            _PendingBlock(file, parser, TextBlock(data, offset, 0, end.file > start.file), line, end)
        )

    def _first_row_at(self, start: Position) -> tuple[int, int]:
        """Returns offset and line of the row at ``start``; at the start of a file, after its header."""
        row = start if start.offset > 0 else self._parsers[start.file].first_row
        return row.offset, row.line

    def _submit_blocks(
        self, start: Position, end: Position | None, pool: ThreadPoolExecutor
    ) -> Iterator[Future[RawBlock]]:
        """Yields a future per block.

        An error while reading becomes the last future, so that earlier blocks are delivered.
        """
        try:
            for pending in self._pending_blocks(start, end):
                yield pool.submit(self._parse_block, pending)
        except DataError as error:
            failed: Future[RawBlock] = Future()
            failed.set_exception(error)
            yield failed

    def _pending_blocks(self, start: Position, end: Position | None) -> Iterator[_PendingBlock]:
        files = len(self.files) if end is None else end.file + (end.offset > 0)
        for index in range(start.file, files):
            file, parser = self.files[index], self._parsers[index]
            offset, line = self._first_row_at(start if index == start.file else Position(index))
            stop = end.offset if end is not None and index == end.file else None
            for block in cut_blocks(file, offset, self._block_bytes, parser.records.last_record_end, stop):
                next_line = line + count_lines(block.data)
                file_ends = block.last and stop is None
                block_stop = block.offset + len(block.data)
                block_end = Position(index + 1) if file_ends else Position(index, block_stop, next_line)
                yield _PendingBlock(file, parser, block, line, block_end)
                line = next_line

    def _parse_block(self, pending: _PendingBlock) -> RawBlock:
        file, block = str(pending.file.path), pending.block
        parsed = join(self._schema, parse_in_parts(pending.parser, block.data, pending.line))
        encoding = pending.file.encoding
        bad = parsed.bad if encoding == UTF_8 else [_in_encoding(row, encoding) for row in parsed.bad]
        return RawBlock(parsed.table, parsed.lines, file, bad, pending.end, block.stored_bytes)


def _in_encoding(row: BadRow, encoding: str) -> BadRow:
    """Returns a bad row of a file in another encoding, with its undecodable bytes and the reason as they were."""
    reason = shown(row.reason)
    if reason.startswith(f"{NOT_UTF8}:"):
        problem, _ = split_hint(reason)
        hint = f"correct the row, or the `encoding: {encoding}` of the source"
        reason = rejection_reason(f"not {encoding}", problem.partition(": ")[2], hint)
    return replace(row, reason=reason, text=shown(row.text))


def parse_in_parts(parser: TextParser, data: bytes, line: int) -> list[Parsed]:
    """Parses ``data`` at once if possible, else in ever smaller parts, so that a bad record slows down few others."""
    whole = parser.parse(data, line)
    if whole is not None:
        return [whole]
    if len(data) <= SLOW_PARSE_BYTES:
        return [parser.parse_slowly(data, line)]
    parsed: list[Parsed] = []
    offset, size = 0, max(len(data) // _PARTS, SLOW_PARSE_BYTES // 2)
    while offset < len(data):
        part = data[offset : offset + size]
        if offset + size < len(data):
            part = part[: parser.records.last_record_end(part)] or data[offset:]
        smaller = len(part) < len(data)
        parsed.extend(parse_in_parts(parser, part, line) if smaller else [parser.parse_slowly(part, line)])
        offset += len(part)
        line += count_lines(part)
    return parsed
