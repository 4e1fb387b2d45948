"""Cuts a text file, compressed or not, into blocks of whole records, holding one block in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, cast

import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.data.readers.file_magic import HEAD_BYTES, check_magic
from ziggurat.data.readers.source_files import COMPRESSION, SourceFile, no_permission

LONGEST_RECORD_BYTES = 64 * 2**20
"""A record longer than this indicates that the file is not of the declared format."""

MOST_EXPANSION, FREE_BYTES = 200, 16 * 2**20
"""A compressed file that has become this many times as large, and more than these bytes, is not read any further. Logs
become 5 to 30 times as large."""

_READ_BYTES = 2**24


class ByteStream(Protocol):
    """A readable stream; ``read`` returns fewer bytes than requested only at the end."""

    def read(self, nbytes: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole records of one file.

    Attributes:
        data: the (decompressed) text; only a file's last block may lack the last line end.
        offset: start of the block in the decompressed text.
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
        offset: bytes of decompressed text to skip; must be the start of a record. In a compressed file the skipped
            bytes are read.
        block_bytes: how many bytes to read at a time.
        last_record_end: returns, for text that begins at a record, the offset after the last whole record; 0 if there
            is none.
        stop: the offset to stop at; must be the start of a record. Default: the end of the file.

    Raises:
        DataError: the file vanished, changed, is truncated, corrupt or not text, a record exceeds 64 MiB, or a file is
            more than 200 times as large once decompressed.
    """
    with _open_text(file, offset) as (text, stored):
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
    raise DataError(f"{file.path}: the file is empty once decompressed", "remove it from `files`, or write it anew")


def read_byte_range(file: SourceFile, start: int, end: int | None) -> bytes:
    """Reads the (decompressed) text of ``file`` from byte ``start`` to byte ``end``, or to the end of the file if None.

    Raises:
        DataError: the file vanished or changed, is truncated or corrupt.
    """
    with _open_text(file, start) as (stream, _):
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


class _DecompressedStream:
    """The text of a compressed file; refuses one that was made to become huge.

    Args:
        stream: the decompressed text.
        stored: returns the number of stored bytes read so far.
        file: the file, for the message.
    """

    def __init__(self, stream: ByteStream, stored: Callable[[], int], file: SourceFile) -> None:
        self._stream, self._stored, self._file, self._size = stream, stored, file, 0

    def read(self, nbytes: int) -> bytes:
        data = self._stream.read(nbytes)
        self._size += len(data)
        if self._size > FREE_BYTES and self._size > MOST_EXPANSION * self._stored():
            raise DataError(
                f"{self._file.path}: {self._stored():,} bytes of it have become {self._size:,}, and at most "
                f"{MOST_EXPANSION} times as many are read: such a file can be made to fill any memory or disk",
                "if its content is right, decompress it yourself and name the decompressed file",
            )
        return data


def _skip(stream: ByteStream, count: int) -> None:
    """Reads and discards ``count`` bytes of ``stream``."""
    while count:
        skipped = len(stream.read(min(count, 2**20)))
        if not skipped:
            return
        count -= skipped


@contextmanager
def _open_text(file: SourceFile, offset: int) -> Generator[tuple[ByteStream, Callable[[], int]]]:
    """Opens the decompressed text at ``offset``, with a function that returns the number of stored bytes read."""
    file.check_unchanged()
    codec = COMPRESSION.get(file.path.suffix)
    try:
        with pa.OSFile(str(file.path)) as raw:
            check_magic(file, raw.read(HEAD_BYTES))
            raw.seek(0)
            if codec is None:
                raw.seek(offset)
                yield cast("ByteStream", raw), raw.tell
            else:
                with pa.CompressedInputStream(raw, codec) as stream:
                    text = _DecompressedStream(cast("ByteStream", stream), raw.tell, file)
                    _skip(text, offset)
                    yield text, raw.tell
    except PermissionError as error:
        raise no_permission(file.path) from error
    except OSError as error:
        file.check_unchanged()
        if codec is None:
            raise DataError(
                f"{file.path}: cannot be read ({error})", "check the disk or network mount of this file"
            ) from error
        raise DataError(
            f"{file.path}: truncated or corrupt {codec} data ({error})",
            "copy or download it again, whole, and run the same command again",
        ) from error


def _check_length(file: SourceFile, more_bytes: int, offset: int) -> None:
    if more_bytes <= 0:
        raise DataError(
            f"{file.path}: no record ends within {LONGEST_RECORD_BYTES >> 20} MiB after byte {offset} of its text",
            "check that this is a text file of the declared format, and that every quoted value is closed",
        )
