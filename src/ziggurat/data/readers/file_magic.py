"""Detects by its first bytes that a file is not the text its name or source claims."""

from __future__ import annotations

from ziggurat.core.errors import DataError
from ziggurat.data.readers.source_files import COMPRESSION, SourceFile

HEAD_BYTES = 16

_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_BINARY = {
    b"PAR1\x15": ("a Parquet file", "name it .parquet and set `name: parquet` on its source, or convert it"),
    b"ARROW1\x00": ("an Arrow IPC file", "write it as Parquet or CSV"),
    b"PK\x03\x04": ("a zip archive, as .zip and .xlsx files are", "unpack it, or export the sheet as CSV"),
    b"BZh91AY&SY": ("bzip2 data", "decompress it, or compress it with gzip or zstd"),
    b"\xfd7zXZ": ("xz data", "decompress it, or compress it with gzip or zstd"),
    b"SQLite format 3": ("an SQLite database", "export the table as CSV"),
}


def check_magic(file: SourceFile, head: bytes) -> None:
    """Rejects a file that is about to be read as text but whose first bytes show that it is something else.

    Args:
        file: the file; its suffix indicates whether it should be compressed.
        head: its first :data:`HEAD_BYTES` bytes as stored, fewer if the file is shorter.

    Raises:
        DataError: the file is of another kind; the message says which, with a hint.
    """
    named_codec = COMPRESSION.get(file.path.suffix)
    found_codec = next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)
    if found_codec is not None and found_codec != named_codec:
        suffix = next(suffix for suffix, codec in COMPRESSION.items() if codec == found_codec)
        stem = file.path.with_suffix("") if named_codec else file.path
        raise DataError(
            f"{file.path}: is {found_codec} data, which its name does not say",
            f"rename it, so that it is decompressed: mv '{file.path}' '{stem}{suffix}'",
        )
    for magic, (what, hint) in _BINARY.items():
        if head.startswith(magic):
            raise DataError(f"{file.path}: is {what}, it is being read as text", hint)
    if named_codec is not None and found_codec is None:
        raise DataError(
            f"{file.path}: is no {named_codec} data, though its name ends in {file.path.suffix}",
            f"rename it if it is plain text: mv '{file.path}' '{file.path.with_suffix('')}'; else write it again",
        )
