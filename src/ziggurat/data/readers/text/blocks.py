"""Cuts a text file, in whichever form it is stored, into blocks of whole records, one block in memory at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ziggurat.core.errors import DataError
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.decode import ByteStream
from ziggurat.data.readers.text.records import RecordRules
from ziggurat.data.readers.text.stored import open_text

LONGEST_RECORD_BYTES = 64 * 2**20
"""A record longer than this indicates that the file is not of the declared format."""

_READ_BYTES = 2**24
_SKIPPED_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole records of one file.

    Attributes:
        data: the text, decompressed and in UTF-8; only a file's last block may lack the last line end.
        offset: start of the block in that text.
        stored_bytes: bytes of the file, as stored, read so far.
        last: whether the file, or the requested range, ends with this block.
    """

    data: bytes
    offset: int
    stored_bytes: int
    last: bool


def cut_blocks(
    file: SourceFile, offset: int, block_bytes: int, last_record_end: Callable[[bytes], int], stop: int | None = None
) -> Iterator[TextBlock]:
    """Yields the text of ``file`` from ``offset`` in blocks of about ``block_bytes``, larger only for a longer record.

    Args:
        file: the file; its suffix indicates whether it is compressed.
        offset: bytes of that text to skip; must be the start of a record. In a compressed or encoded file the skipped
            bytes are read.
        block_bytes: how many bytes to read at a time.
        last_record_end: returns, for text that begins at a record, the offset after the last whole record; 0 if there
            is none.
        stop: the offset to stop at; must be the start of a record. Default: the end of the file.

    Raises:
        DataError: the file vanished, changed, is truncated, corrupt or not text, a record exceeds 64 MiB, or a file is
            more than 200 times as large once decompressed.
    """
    with open_text(file, offset) as (text, stored):
        stream = text if stop is None else _LimitedStream(text, stop - offset)
        carry = b""
        while True:
            fresh = stream.read(block_bytes)
            last = len(fresh) < block_bytes
            data = carry + fresh if carry else fresh
            cut = len(data) if last else last_record_end(data)
            while cut == 0 and not last:
                more = min(len(data), LONGEST_RECORD_BYTES - len(data))
                _check_length(file, more, offset)
                fresh = stream.read(more)
                last = len(fresh) < more
                data += fresh
                cut = len(data) if last else last_record_end(data)
            file.check_unchanged()
            if data:
                yield TextBlock(data[:cut], offset, stored(), last)
            if last:
                return
            carry = data[cut:]
            offset += cut


def read_head(file: SourceFile, limit_bytes: int, last_record_end: Callable[[bytes], int]) -> TextBlock:
    """Reads about ``limit_bytes`` of whole records from the start of ``file``, to inspect its header and its layout.

    Raises:
        DataError: the file holds no text.
    """
    for block in cut_blocks(file, 0, limit_bytes, last_record_end):
        return block
    raise empty_text(file)


def empty_text(file: SourceFile) -> DataError:
    """Returns the error for a file that holds bytes, but no text."""
    return DataError(f"{file.path}: the file is empty once decompressed", "remove it from `files`, or write it anew")


def first_record_at(file: SourceFile, rules: RecordRules) -> tuple[int, int]:
    """Returns offset and number of the line at which the records of ``file`` begin.

    Raises:
        DataError: the lines to skip are the whole file, or longer than a mebibyte.
    """
    if not rules.skip_lines:
        return 0, 1
    head = read_head(file, _SKIPPED_BYTES, lambda data: data.rfind(b"\n") + 1).data
    ends = [match.end() for match in re.finditer(rb"\n", head)][: rules.skip_lines]
    if len(ends) < rules.skip_lines or ends[-1] == file.size_bytes:
        raise DataError(
            f"{file.path}: no row follows the first {rules.skip_lines} lines, which `skip_lines` leaves out",
            "correct `skip_lines` of the source",
        )
    return ends[-1], rules.skip_lines + 1


def read_byte_range(file: SourceFile, start: int, end: int | None) -> bytes:
    """Reads the (decompressed) text of ``file`` from byte ``start`` to byte ``end``, or to the end of the file if None.

    Raises:
        DataError: the file vanished or changed, is truncated or corrupt.
    """
    with open_text(file, start) as (stream, _):
        parts: list[bytes] = []
        remaining = 2**62 if end is None else end - start
        while remaining and (part := stream.read(min(remaining, _READ_BYTES))):
            parts.append(part)
            remaining -= len(part)
        file.check_unchanged()
        return b"".join(parts)


class _LimitedStream:
    """A stream that ends after the first ``count`` bytes of another."""

    def __init__(self, stream: ByteStream, count: int) -> None:
        self._stream, self._remaining = stream, count

    def read(self, nbytes: int) -> bytes:
        data = self._stream.read(min(nbytes, self._remaining))
        self._remaining -= len(data)
        return data


def _check_length(file: SourceFile, more_bytes: int, offset: int) -> None:
    if more_bytes <= 0:
        raise DataError(
            f"{file.path}: no record ends within {LONGEST_RECORD_BYTES >> 20} MiB after byte {offset} of its text",
            "check that this is a text file of the declared format, and that every quoted value is closed",
        )
