"""Cut a text file, compressed or not, into blocks of whole records, holding one block at a time."""

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
"""A record longer than this is taken for a sign that the file is not what its source says."""

_READ_BYTES = 2**24


class ByteStream(Protocol):
    """What a file gives: bytes, as many as asked for save at its end."""

    def read(self, nbytes: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class TextBlock:
    """Whole records of one file.

    Attributes:
        data: the (decompressed) text; only a file's last block may lack the last line end.
        offset: where it begins in the decompressed text.
        stored_bytes: bytes of the file, as stored, that were read up to here.
        last: whether the file, or what was asked of it, ends here.
    """

    data: bytes
    offset: int
    stored_bytes: int
    last: bool


def cut_blocks(
    file: SourceFile, offset: int, block_bytes: int, last_end: Callable[[bytes], int], stop: int | None = None
) -> Iterator[TextBlock]:
    """The text of ``file`` from ``offset`` in blocks of about ``block_bytes``, more only where one record is longer.

    Args:
        file: its suffix says whether it is compressed.
        offset: bytes of decompressed text to skip; must be the start of a record. In a compressed file they are read.
        block_bytes: how much to read at a time.
        last_end: of some text that begins at a record, the offset after its last whole record; 0 when there is none.
        stop: where to end instead of at the file's end; must be the start of a record.

    Raises:
        DataError: the file vanished or changed, is truncated, corrupt or no text; a record of more than 64 MiB.
    """
    with _opened(file, offset) as (whole, stored):
        stream = whole if stop is None else _UpTo(whole, stop - offset)
        carry = b""
        while True:
            fresh = stream.read(block_bytes)
            last = len(fresh) < block_bytes
            data = carry + fresh if carry else fresh
            cut = len(data) if last else last_end(data)
            while cut == 0 and not last:
                more = min(len(data), LONGEST_RECORD_BYTES - len(data))
                _check_length(file, more, offset)
                fresh = stream.read(more)
                last = len(fresh) < more
                data += fresh
                cut = len(data) if last else last_end(data)
            file.check_unchanged()
            if data:
                yield TextBlock(data[:cut], offset, stored(), last)
            if last:
                return
            carry = data[cut:]
            offset += cut


def read_head(file: SourceFile, limit_bytes: int, last_end: Callable[[bytes], int]) -> TextBlock:
    """The first whole records of ``file``, about ``limit_bytes`` of them, for looking at its header and its manner.

    Raises:
        DataError: it holds no text.
    """
    for block in cut_blocks(file, 0, limit_bytes, last_end):
        return block
    raise DataError(f"{file.path}: the file is empty once decompressed", "remove it from `files`, or write it anew")


def read_between(file: SourceFile, start: int, end: int | None) -> bytes:
    """The (decompressed) text of ``file`` from byte ``start`` to byte ``end``, or to its last where that is None.

    Raises:
        DataError: the file vanished or changed, is truncated or corrupt.
    """
    with _opened(file, start) as (stream, _):
        parts: list[bytes] = []
        wanted = 2**62 if end is None else end - start
        while wanted and (part := stream.read(min(wanted, _READ_BYTES))):
            parts.append(part)
            wanted -= len(part)
        file.check_unchanged()
        return b"".join(parts)


class _UpTo:
    """The first ``count`` bytes of a stream."""

    def __init__(self, stream: ByteStream, count: int) -> None:
        self._stream, self._left = stream, count

    def read(self, nbytes: int) -> bytes:
        data = self._stream.read(min(nbytes, self._left))
        self._left -= len(data)
        return data


def _skip(stream: ByteStream, count: int) -> None:
    """Read and forget ``count`` bytes of ``stream``."""
    while count:
        got = len(stream.read(min(count, 2**20)))
        if not got:
            return
        count -= got


@contextmanager
def _opened(file: SourceFile, offset: int) -> Generator[tuple[ByteStream, Callable[[], int]]]:
    """The decompressed text from ``offset`` on, and how many stored bytes were read; errors name the file."""
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
                    _skip(cast("ByteStream", stream), offset)
                    yield cast("ByteStream", stream), raw.tell
    except PermissionError as error:
        raise no_permission(file.path) from error
    except OSError as error:
        file.check_unchanged()
        if codec is None:
            raise DataError(f"{file.path}: cannot be read ({error})", "check the disk or mount it lies on") from error
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
