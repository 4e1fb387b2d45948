"""Turns text of any encoding into UTF-8, without changing its lines.

Bytes that are no text in the encoding become marks that are not UTF-8, so that the cell, and with it the row, is
rejected like any other that is not UTF-8: each byte becomes 0xFF and its two hexadecimal digits.
"""

from __future__ import annotations

import codecs
import re
from typing import Protocol

from ziggurat.data.readers.source_files import UTF_8

_MARK = "\udcff"
_MARKED = re.compile(rb"\xff([0-9a-f]{2})")
_SHOWN = re.compile(r"\\xff([0-9a-f]{2})")
_HANDLER = "ziggurat-mark"
_NOT_FOR_FILES = frozenset({"idna", "punycode", "undefined", "unicode-escape", "raw-unicode-escape", "mbcs", "oem"})


class ByteStream(Protocol):
    """A readable stream; ``read`` returns fewer bytes than requested only at the end."""

    def read(self, nbytes: int) -> bytes: ...


def encoding_name(name: str) -> str:
    """Returns Python's own name of an encoding; that of UTF-8 is ``utf-8``, also with a byte order mark.

    Raises:
        ValueError: it is no encoding of text.
    """
    try:
        found = codecs.lookup(name)
        is_text = getattr(found, "_is_text_encoding", True)  # Python's own mark of codecs such as base64 and zip
    except (LookupError, ValueError, UnicodeError):
        found, is_text = None, False
    if found is None or not is_text or found.name in _NOT_FOR_FILES:
        raise ValueError(
            f"no encoding of text is called {name!r}; examples: utf-8, utf-16, cp1252, cp1251, shift_jis, gb18030, big5"
        )
    return UTF_8 if found.name in ("utf-8", "utf-8-sig") else found.name


class DecodedStream:
    """The UTF-8 text of a stream in another encoding.

    Args:
        stream: the stored (decompressed) bytes.
        encoding: the name that :func:`encoding_name` returns.
    """

    def __init__(self, stream: ByteStream, encoding: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(_HANDLER)
        self._ready = b""
        self._ended = False

    def read(self, nbytes: int) -> bytes:
        parts, size = [self._ready], len(self._ready)
        while size < nbytes and not self._ended:
            data = self._stream.read(nbytes)
            self._ended = len(data) < nbytes
            text = self._decoder.decode(data, self._ended)
            parts.append(text.encode("utf-8", "surrogateescape"))
            size += len(parts[-1])
        whole = b"".join(parts)
        self._ready = whole[nbytes:]
        return whole[:nbytes]


class LineFeeds:
    """A stream in which carriage returns end lines, with line feeds in their places."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def read(self, nbytes: int) -> bytes:
        return self._stream.read(nbytes).replace(b"\r", b"\n")


def stored_bytes(marked: bytes) -> bytes:
    """Returns text with the undecodable bytes themselves in the places of their marks."""
    return _MARKED.sub(lambda mark: bytes.fromhex(mark[1].decode()), marked)


def shown(message: str) -> str:
    """Returns a message in which marks appear as the bytes that they stand for, as in ``\\x81``."""
    return _SHOWN.sub(r"\\x\1", message)


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Marks one undecodable byte (or unit of UTF-16 and UTF-32), so that no line end after it is swallowed."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    wide = error.encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32", "utf16", "utf32"))
    end = error.end if wide else error.start + 1
    marks = "".join(f"{_MARK}{byte:02x}" for byte in error.object[error.start : end])
    return marks, end


codecs.register_error(_HANDLER, _mark)
