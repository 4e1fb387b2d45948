"""What a file is by its first bytes, where that is not the text its name or source says."""

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
    """Refuse a file that is about to be read as text and whose first bytes say that it is something else.

    Args:
        file: its suffix says whether it is compressed.
        head: its first bytes as stored, :data:`HEAD_BYTES` of them where there are as many.

    Raises:
        DataError: naming what it is, and the hint.
    """
    named = COMPRESSION.get(file.path.suffix)
    is_codec = next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)
    if is_codec is not None and is_codec != named:
        suffix = next(suffix for suffix, codec in COMPRESSION.items() if codec == is_codec)
        stem = file.path.with_suffix("") if named else file.path
        raise DataError(
            f"{file.path}: is {is_codec} data, which its name does not say",
            f"rename it, so that it is decompressed: mv '{file.path}' '{stem}{suffix}'",
        )
    for magic, (what, hint) in _BINARY.items():
        if head.startswith(magic):
            raise DataError(f"{file.path}: is {what}, it is being read as text", hint)
    if named is not None and is_codec is None:
        raise DataError(
            f"{file.path}: is no {named} data, though its name ends in {file.path.suffix}",
            f"rename it if it is plain text: mv '{file.path}' '{file.path.with_suffix('')}'; else write it again",
        )
