"""What every source offers, and how text sources parse blocks in a few threads while yielding them in order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pydantic

from ziggurat.core.config import Config
from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.assemble import Parsed, join
from ziggurat.data.readers.blocks import FileRange, Position, RawBlock
from ziggurat.data.readers.cells.text import CellRules
from ziggurat.data.readers.source_files import COMPRESSION, SourceFile, fingerprint_files
from ziggurat.data.readers.text.blocks import TextBlock, cut_blocks, read_between
from ziggurat.data.readers.text.records import RecordRules, count_lines

BLOCK_BYTES = 16 * 2**20
"""Text per block. Larger blocks fall out of the processor's caches (a third slower at 64 MiB) and cost more memory."""

THREADS = 2
"""Blocks parsed at once; pyarrow parses without the interpreter lock."""

SMALL_BYTES = 64 * 2**10
"""A stretch this small is parsed record by record when the vectorised parsers refuse it; larger ones are cut first."""

STRETCH_BYTES = 64 * 2**20
"""Text, or decoded Parquet, of a stretch; a smaller file is one by itself."""

_PIECES = 8


class FilesConfig(Config):
    """What the configs of all sources share."""

    files: list[str]
    """Paths, folders and globs, relative to the data folder. ``.gz`` and ``.zst`` text files are decompressed."""


class CellsConfig(FilesConfig):
    """What the configs of sources with missing values share."""

    null_values: list[str] = pydantic.Field(default=[""])
    """Text that means missing, beside the empty cell, which always does."""
    nan_is_missing: bool = False
    """Read NaN as a missing value instead of refusing the row."""

    @property
    def cell_rules(self) -> CellRules:
        return CellRules(tuple(self.null_values), self.nan_is_missing)


class RawSource(ABC):
    """Files of raw logs, read as blocks of typed rows.

    Attributes:
        files: what the config's ``files`` stand for, as they were when the source was opened.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self.files = tuple(files)

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(file.path for file in self.files)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files as stored."""
        return sum(file.size_bytes for file in self.files)

    def fingerprint(self) -> str:
        """Changes when a file is added, renamed, resized or modified."""
        return fingerprint_files(self.files)

    @abstractmethod
    def blocks(self, start: Position = Position(), end: Position | None = None) -> Iterator[RawBlock]:  # noqa: B008 (frozen)
        """The rows from ``start`` on, which is a block's ``end`` or the beginning.

        Args:
            end: where to stop, as a stretch says; default: behind the last file.

        Raises:
            DataError: a file vanished, changed, is truncated or corrupt, or is not laid out as its source says.
        """

    @abstractmethod
    def file_ranges(self, start: Position = Position()) -> Iterator[FileRange]:  # noqa: B008 (frozen)
        """The rows from ``start`` on as stretches that :meth:`blocks` reads one by one, each on its own, in any order.

        Text that is larger than a stretch is read here, not parsed, for its lines have to be counted; compressed text
        is one stretch a file, and Parquet is cut between row groups.

        Raises:
            DataError: as :meth:`blocks`.
        """

    @abstractmethod
    def between(self, start: Position, end: Position) -> RawBlock:
        """One block of :meth:`blocks` read again, from where it began to its ``end``. Thread-safe.

        Reading compressed text begins at the head of its file; reading Parquet, at that of a row group.

        Raises:
            DataError: as :meth:`blocks`.
        """


class TextParser(ABC):
    """Parses whole records of one text file. Thread-safe: it changes nothing after it was made.

    Attributes:
        records: where records end.
        first: where the file's rows begin: offset and line, behind its header. ``first.file`` is unused.
    """

    records: RecordRules
    first: Position

    @abstractmethod
    def parse(self, data: bytes, line: int) -> Parsed | None:
        """The rows of ``data``, whose first line is ``line``, vectorised; None when a record has to be looked at."""

    @abstractmethod
    def parse_slowly(self, data: bytes, line: int) -> Parsed:
        """The same, record by record: the reference, which finds out which records are bad and why."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """A block of text on its way to a parser."""

    file: SourceFile
    parser: TextParser
    block: TextBlock
    line: int
    end: Position


class TextSource(RawSource):
    """Text files, each parsed by the parser that ``open_parser`` makes after a look at its head.

    Args:
        files: what to read.
        open_parser: raises DataError where a file is not laid out as declared; called for every file at once, so that
            an error in the last file is not met after an hour of reading.
        schema: the columns to deliver.
        block_bytes: text per block.
        threads: blocks parsed at once.
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
            for future in self._submitted(start, end, pool):
                pending.append(future)
                if len(pending) > self._threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def file_ranges(self, start: Position = Position()) -> Iterator[FileRange]:  # noqa: B008 (frozen)
        for index in range(start.file, len(self.files)):
            file, place = self.files[index], start if index == start.file else Position(index)
            following = Position(index + 1)
            if file.path.suffix not in COMPRESSION and file.size_bytes - place.offset > STRETCH_BYTES:
                offset, line = self._first_of(place)
                for block in cut_blocks(file, offset, STRETCH_BYTES, self._parsers[index].records.last_end):
                    offset, line = offset + len(block.data), line + count_lines(block.data)
                    end = Position(index, offset, line) if offset < file.size_bytes else following
                    yield FileRange(place, end)
                    place = end
            if place != following:
                yield FileRange(place, following)

    def between(self, start: Position, end: Position) -> RawBlock:
        file, parser = self.files[start.file], self._parsers[start.file]
        offset, line = self._first_of(start)
        data = read_between(file, offset, end.offset if end.file == start.file else None)
        return self._block_of(_Cut(file, parser, TextBlock(data, offset, 0, end.file > start.file), line, end))

    def _first_of(self, start: Position) -> tuple[int, int]:
        """Offset and line of the first row at ``start``: behind the header where that is the head of a file."""
        first = start if start.offset > 0 else self._parsers[start.file].first
        return first.offset, first.line

    def _submitted(self, start: Position, end: Position | None, pool: ThreadPoolExecutor) -> Iterator[Future[RawBlock]]:
        """A future per block. An error in cutting becomes the last one, so that the blocks before it are delivered."""
        try:
            for cut in self._cuts(start, end):
                yield pool.submit(self._block_of, cut)
        except DataError as error:
            failed: Future[RawBlock] = Future()
            failed.set_exception(error)
            yield failed

    def _cuts(self, start: Position, end: Position | None) -> Iterator[_Cut]:
        files = len(self.files) if end is None else end.file + (end.offset > 0)
        for index in range(start.file, files):
            file, parser = self.files[index], self._parsers[index]
            offset, line = self._first_of(start if index == start.file else Position(index))
            stop = end.offset if end is not None and index == end.file else None
            for block in cut_blocks(file, offset, self._block_bytes, parser.records.last_end, stop):
                next_line = line + count_lines(block.data)
                whole = block.last and stop is None
                reached = Position(index + 1) if whole else Position(index, block.offset + len(block.data), next_line)
                yield _Cut(file, parser, block, line, reached)
                line = next_line

    def _block_of(self, cut: _Cut) -> RawBlock:
        parsed = join(self._schema, parse_pieces(cut.parser, cut.block.data, cut.line))
        return RawBlock(parsed.table, parsed.lines, str(cut.file.path), parsed.bad, cut.end, cut.block.stored_bytes)


def parse_pieces(parser: TextParser, data: bytes, line: int) -> list[Parsed]:
    """Parse ``data`` whole if the parser can, else in ever smaller pieces: a bad record slows down few others."""
    whole = parser.parse(data, line)
    if whole is not None:
        return [whole]
    if len(data) <= SMALL_BYTES:
        return [parser.parse_slowly(data, line)]
    parsed: list[Parsed] = []
    place, size = 0, max(len(data) // _PIECES, SMALL_BYTES // 2)
    while place < len(data):
        piece = data[place : place + size]
        if place + size < len(data):
            piece = piece[: parser.records.last_end(piece)] or data[place:]
        smaller = len(piece) < len(data)
        parsed.extend(parse_pieces(parser, piece, line) if smaller else [parser.parse_slowly(piece, line)])
        place += len(piece)
        line += count_lines(piece)
    return parsed
