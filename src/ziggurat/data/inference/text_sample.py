"""Reads samples of text files: finds their encoding, and takes whole lines from their beginnings and further on."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from ziggurat.data.inference.encoding import FoundEncoding, find_encoding
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.text.blocks import cut_blocks, read_head

SAMPLE_RANGES = 4
_ENCODING_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class TextPart:
    """Whole lines of a file, in UTF-8 and without a byte order mark; ``starts_file`` if they begin with its first."""

    data: bytes
    starts_file: bool
    file: PurePath


@dataclass(frozen=True, slots=True)
class TextParts:
    """Samples of some files.

    Attributes:
        parts: the samples.
        complete: whether they are all lines of all files.
        stored_bytes: bytes of the files, as stored, that the samples were made of.
    """

    parts: tuple[TextPart, ...]
    complete: bool
    stored_bytes: int


def chosen_files(files: Sequence[SourceFile]) -> list[SourceFile]:
    """Returns some of the files, spread over all of them."""
    if len(files) <= SAMPLE_RANGES:
        return list(files)
    return [files[len(files) * k // SAMPLE_RANGES] for k in range(SAMPLE_RANGES)]


def open_as_text(files: Sequence[SourceFile]) -> tuple[list[SourceFile], FoundEncoding]:
    """Returns the files with the encoding and the line ends that some of them have.

    Raises:
        DataError: a file cannot be read.
    """
    parts: list[bytes] = []
    for file in chosen_files(files):
        head = read_head(file, _ENCODING_BYTES, _some_line_end)
        parts.append(head.data)
        if file.is_plain and not head.last:
            for part in range(1, SAMPLE_RANGES):
                for block in cut_blocks(file, file.size_bytes * part // SAMPLE_RANGES, _ENCODING_BYTES, _some_line_end):
                    parts.append(block.data.partition(b"\n")[2])
                    break
    found = find_encoding(parts)
    return [replace(file, encoding=found.name, lone_returns=found.lone_returns) for file in files], found


def read_parts(files: Sequence[SourceFile], limit_bytes: int) -> TextParts:
    """Reads about ``limit_bytes`` of whole lines from some of the files."""
    share = max(1 << 16, limit_bytes // min(len(files), SAMPLE_RANGES))
    chosen = chosen_files(files)
    parts: list[TextPart] = []
    complete, stored = len(chosen) == len(files), 0
    for file in chosen:
        head = read_head(file, share, _last_line_end)
        data = head.data
        if file.is_plain and not head.last:  # the other ranges follow, none over another
            data = data[: _last_line_end(data[: share // SAMPLE_RANGES]) or None]
        stored += len(data) if file.is_plain else min(head.stored_bytes, file.size_bytes)
        data = data.removeprefix(codecs.BOM_UTF8)
        parts.append(TextPart(data if data.endswith(b"\n") else data + b"\n", starts_file=True, file=file.path))
        if head.last:
            continue
        complete = False
        if file.is_plain:
            for part in range(1, SAMPLE_RANGES):
                offset = file.size_bytes * part // SAMPLE_RANGES
                for block in cut_blocks(file, offset, share // SAMPLE_RANGES, _last_line_end):
                    data = block.data[block.data.find(b"\n") + 1 :]
                    whole = data if data.endswith(b"\n") else data + b"\n"
                    parts.append(TextPart(whole, starts_file=False, file=file.path))
                    stored += len(data)
                    break
    return TextParts(tuple(parts), complete, stored)


def _last_line_end(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _some_line_end(data: bytes) -> int:
    """Returns the offset after the last line end of any kind; the end if there is none, as in text of wide letters."""
    return max(data.rfind(b"\n"), data.rfind(b"\r")) + 1 or len(data)
