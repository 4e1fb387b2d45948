"""What the name of a file says: its format, how it is compressed, and whether it is data at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from ziggurat.data.readers.archives import ZIP_SUFFIX

COMPRESSION = {".gz": "gzip", ".zst": "zstd", ".bz2": "bzip2", ".xz": "xz", ZIP_SUFFIX: "zip"}
"""Suffix of a compressed text file, in lower case -> the name of its format."""


def format_suffix(path: PurePath) -> str:
    """Returns the suffix that indicates the file's format, in lower case, ignoring a compression suffix."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSION else path).suffix.lower()


def is_marker(path: PurePath, suffixes: Sequence[str]) -> bool:
    """Whether a file that a pattern matches is one that writers leave beside data, such as ``_SUCCESS``."""
    return path.name.startswith((".", "_")) and format_suffix(path) not in suffixes


def is_hidden(path: PurePath) -> bool:
    """Whether a part of a path below a folder shows that the file is no data, such as ``_temporary``."""
    return any(part.startswith((".", "_")) for part in path.parts)
