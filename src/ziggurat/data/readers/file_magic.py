"""Detects by its first bytes that a file is not the text its name or source claims."""

from __future__ import annotations

import re

from ziggurat.core.errors import DataError
from ziggurat.data.readers.source_files import SourceFile
from ziggurat.data.readers.suffixes import COMPRESSION
from ziggurat.data.readers.urls import UrlPath

HEAD_BYTES = 512
"""Enough for the mark of a tar archive, which follows the name and the rights of its first file."""

_CODECS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
}
_EXPORT = "export its table as CSV, and name that file"
_IMAGE = ("an image, no text", "name the files of the log")
_BINARY = {
    b"PAR1": ("a Parquet file", "name it .parquet and set `name: parquet` on its source, or convert it"),
    b"ARROW1\x00": ("an Arrow IPC file", "write it as Parquet or CSV"),
    b"SQLite format 3": ("an SQLite database", "export the table as CSV"),
    b"7z\xbc\xaf\x27\x1c": ("a 7z archive", "unpack it, and name the files in it: 7z x '{path}'"),
    b"Rar!": ("a RAR archive", "unpack it, and name the files in it: unrar x '{path}'"),
    b"Obj\x01": ("an Avro file", "write it as Parquet or CSV"),
    b"\x89PNG\r\n\x1a\n": _IMAGE,
    b"\xff\xd8\xff": _IMAGE,
    b"GIF87a": _IMAGE,
    b"GIF89a": _IMAGE,
    b"BM": _IMAGE,
    b"II*\x00": _IMAGE,
    b"MM\x00*": _IMAGE,
    b"%PDF-": ("a PDF document", "export its table as CSV"),
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": (
        "a spreadsheet of old Excel, no text",
        "export its table as CSV, and name that file",
    ),
    b"ORC": ("an ORC file", "write it as Parquet or CSV"),
}
_TAR, _TAR_AT = b"ustar", 257
_SHEETS = {".xlsx", ".xlsm", ".xltx", ".xlsb", ".ods"}
_IN_SHEETS = (b"[Content_Types].xml", b"mimetypeapplication/vnd.oasis.opendocument")
_PAGE = re.compile(rb"(?i)(?:\xef\xbb\xbf)?\s*(?:<!--[^>]*-->\s*)?<(?:!doctype\s+html|html[\s>])")


def check_magic(file: SourceFile, head: bytes) -> None:
    """Rejects a file that is about to be read as text but whose first bytes show that it is something else.

    Args:
        file: the file; its suffix indicates whether it should be compressed.
        head: its first :data:`HEAD_BYTES` bytes as stored, fewer if the file is shorter.

    Raises:
        DataError: the file is of another kind; the message says which, with a hint.
    """
    named_codec = file.compression
    found_codec = _codec(head)
    if found_codec is not None and found_codec != named_codec:
        suffix = next(suffix for suffix, codec in COMPRESSION.items() if codec == found_codec)
        stem = file.path.with_suffix("") if named_codec else file.path
        if found_codec == "zip" and (file.path.suffix.lower() in _SHEETS or any(mark in head for mark in _IN_SHEETS)):
            raise DataError(f"{file.path}: is a spreadsheet, no text", _EXPORT)
        as_sheet = "; if it is a spreadsheet, export it as CSV" if found_codec == "zip" else ""
        raise DataError(
            f"{file.path}: is {found_codec} data, which its name does not say",
            f"rename it, so that it is decompressed: mv '{file.path}' '{stem}{suffix}'{as_sheet}",
        )
    _check_binary(file, head, "")
    _check_page(file, head)
    if named_codec is not None and found_codec is None:
        raise DataError(
            f"{file.path}: is no {named_codec} data, though its name ends in {file.stored.suffix}",
            f"rename it if it is plain text: mv '{file.path}' '{file.path.with_suffix('')}'; else write it again",
        )


def check_content(file: SourceFile, head: bytes) -> None:
    """Rejects compressed data that holds something else than text.

    Args:
        file: the compressed file.
        head: the first :data:`HEAD_BYTES` bytes that were compressed.

    Raises:
        DataError: it holds another archive, or a file of a binary format; the message says which, with a hint.
    """
    codec = _codec(head)
    if codec is not None:
        raise DataError(
            f"{file.path}: holds {codec} data within {file.compression} data",
            f"unpack it once: {_unpacking(file)}",
        )
    _check_binary(file, head, f" within {file.compression} data")


def _check_binary(file: SourceFile, head: bytes, within: str) -> None:
    if head[_TAR_AT:].startswith(_TAR):
        raise DataError(
            f"{file.path}: is a tar archive{within}", f"unpack it, and name the files in it: tar -xf '{file.stored}'"
        )
    for magic, (what, hint) in _BINARY.items():
        if head.startswith(magic) and (len(magic) > 4 or b"\x00" in head):  # a column of text may be called ORC
            way = f"unpack it: {_unpacking(file)}" if within else hint.format(path=file.path)
            read = "" if what.endswith("no text") else ", it is being read as text"
            raise DataError(f"{file.path}: is {what}{within}{read}", way)


def _check_page(file: SourceFile, head: bytes) -> None:
    """Rejects a web page, which servers send in place of a folder, or of a file that they do not give to everyone."""
    if not _PAGE.match(head):
        return
    if not isinstance(file.path, UrlPath):
        hint = "it may be what a web server sent in place of the file: get the file again"
    elif file.format_suffix:
        hint = "open the URL in a browser: the server may ask to log in; name a file that it gives to everyone"
    else:
        hint = (
            f"web servers do not list folders: name each file of the log, as in {str(file.path).rstrip('/')}/FILE.csv"
        )
    raise DataError(f"{file.path}: is a web page (HTML), no log", hint)


def _codec(head: bytes) -> str | None:
    found = next((codec for magic, codec in _CODECS.items() if head.startswith(magic)), None)
    if found == "bzip2" and not (head[3:4].isdigit() and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90")):
        return None  # text may begin with BZh
    return found


def _unpacking(file: SourceFile) -> str:
    command = {"gzip": "gunzip", "zstd": "unzstd", "bzip2": "bunzip2", "xz": "unxz", "zip": "unzip"}
    return f"{command.get(file.compression or '', 'unzip')} '{file.stored}'"
