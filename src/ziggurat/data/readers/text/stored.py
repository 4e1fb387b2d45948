"""Opens the text of a stored file: decompresses it, within bounds, and turns it into UTF-8 with line feeds."""

from __future__ import annotations

import bz2
import lzma
import zipfile
import zlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import IO, cast

import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.data.readers.archives import member_info
from ziggurat.data.readers.file_magic import HEAD_BYTES, check_content, check_magic
from ziggurat.data.readers.source_files import UTF_8, SourceFile, no_permission
from ziggurat.data.readers.text.decode import ByteStream, DecodedStream, LineFeeds
from ziggurat.data.readers.text.elements import ArrayElements, PythonLines

MOST_EXPANSION, FREE_BYTES = 200, 16 * 2**20
"""A compressed file that has become this many times as large, and more than these bytes, is not read any further. Logs
become 5 to 30 times as large."""

MOST_XZ_BYTES = 256 * 2**20
"""The memory that decompressing xz data may take; `xz -9` asks for 65 MiB."""

_STORED_BYTES = 2**16

_DAMAGE = (OSError, EOFError, lzma.LZMAError, zlib.error, zipfile.BadZipFile, ValueError, NotImplementedError)
"""What the decompressors raise for a file that is truncated, corrupt or of an unusual kind."""

Opened = tuple[ByteStream, Callable[[], int]]


@contextmanager
def open_text(file: SourceFile, offset: int) -> Generator[Opened]:
    """Opens the UTF-8 text at ``offset``, with a function that returns the number of stored bytes read.

    Raises:
        DataError: the file vanished, changed, is truncated, corrupt or not text.
    """
    file.check_unchanged()
    try:
        with file.open() as raw:
            check_magic(file, raw.read(HEAD_BYTES))
            raw.seek(0)
            if file.compression is None:
                if file.is_plain:
                    raw.seek(offset)
                yield _as_lines(file, cast("ByteStream", raw), offset), raw.tell
            else:
                with _decompressed(file, raw) as (stream, stored):
                    yield _as_lines(file, _Bounded(stream, stored, file), offset), stored
    except PermissionError as error:
        raise no_permission(file.path) from error
    except DataError:
        raise
    except _DAMAGE as error:
        file.check_unchanged()
        if isinstance(error, UnicodeError) and str(error).endswith("does not start with BOM"):
            raise DataError(
                f"{file.path}: does not begin with a byte order mark, from which `encoding: {file.encoding}` takes the "
                "order of bytes",
                f"set `encoding: {file.encoding}-le` or `{file.encoding}-be`; `ziggurat init` tells which",
            ) from error
        if file.compression is None:
            raise DataError(
                f"{file.path}: cannot be read ({error})", "check the disk or network mount of this file"
            ) from error
        raise DataError(
            f"{file.path}: truncated or corrupt {file.compression} data ({error})",
            "copy or download it again, whole, and run the same command again",
        ) from error


def _as_lines(file: SourceFile, stream: ByteStream, offset: int) -> ByteStream:
    """Returns UTF-8 text with line feeds, at ``offset``."""
    text = stream if file.encoding == UTF_8 else DecodedStream(stream, file.encoding)
    text = LineFeeds(text) if file.lone_returns else text
    if file.records == "array":
        text = ArrayElements(text, file.path)
    elif file.records == "python":
        text = PythonLines(text)
    if not file.is_plain:
        _skip(text, offset)
    return text


@contextmanager
def _decompressed(file: SourceFile, raw: pa.NativeFile) -> Generator[Opened]:
    match file.compression:
        case "zip":
            with zipfile.ZipFile(cast("IO[bytes]", raw)) as archive:
                info = member_info(archive, file.member, file.stored)
                with archive.open(info) as stream:
                    counted = _Counted(stream)
                    yield counted, lambda: min(info.compress_size, counted.size) if counted.size else 0
        case "bzip2":
            with bz2.BZ2File(cast("IO[bytes]", raw)) as stream:
                yield cast("ByteStream", stream), raw.tell
        case "xz":
            yield _XzStream(cast("ByteStream", raw)), raw.tell
        case _:
            with pa.CompressedInputStream(raw, file.compression) as stream:
                yield cast("ByteStream", stream), raw.tell


class _XzStream:
    """The content of xz data, whose header may ask for less memory than :data:`MOST_XZ_BYTES` alone."""

    def __init__(self, stored: ByteStream) -> None:
        self._stored = stored
        self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_XZ_BYTES)

    def read(self, nbytes: int) -> bytes:
        parts: list[bytes] = []
        while nbytes:
            if self._decoder.eof:  # xz files may be concatenated, with zeros between them
                rest = (self._decoder.unused_data or self._stored.read(_STORED_BYTES)).lstrip(b"\0")
                if not rest:
                    break
                self._decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_XZ_BYTES)
            else:
                rest = self._stored.read(_STORED_BYTES) if self._decoder.needs_input else b""
                if self._decoder.needs_input and not rest:
                    raise EOFError("it ends before its end mark")
            parts.append(self._decoder.decompress(rest, nbytes))
            nbytes -= len(parts[-1])
        return b"".join(parts)


class _Counted:
    """The content of a zip member, with the number of bytes read so far."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self.size = stream, 0

    def read(self, nbytes: int) -> bytes:
        data = self._stream.read(nbytes)
        self.size += len(data)
        return data


class _Bounded:
    """The text of a compressed file; refuses one that was made to become huge, or that holds no text.

    Args:
        stream: the decompressed text.
        stored: returns the number of stored bytes read so far.
        file: the file, for the message.
    """

    def __init__(self, stream: ByteStream, stored: Callable[[], int], file: SourceFile) -> None:
        self._stream, self._stored, self._file, self._size = stream, stored, file, 0

    def read(self, nbytes: int) -> bytes:
        data = self._stream.read(nbytes)
        if self._size == 0:
            check_content(self._file, data[:HEAD_BYTES])
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
