"""Finds the files within zip archives, which a source names like files in a folder: ``logs.zip/clicks.csv``."""

from __future__ import annotations

import zipfile
from fnmatch import fnmatch
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, cast

from ziggurat.core.errors import DataError, nearest
from ziggurat.core.remote.remote_file import RemoteFile

ZIP_SUFFIX = ".zip"
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
_LISTED = 12

Stored = Path | RemoteFile
"""What holds the bytes of an archive."""


def open_stored(stored: Stored) -> IO[bytes]:
    """Opens what holds the bytes.

    Raises:
        DataError, OSError: it cannot be read.
    """
    return cast("IO[bytes]", stored.open() if isinstance(stored, RemoteFile) else stored.open("rb"))


def within_archive(path: Path) -> tuple[Path, str] | None:
    """Returns the zip archive that ``path`` leads into, and the name or pattern after it; None if there is none."""
    for parent in path.parents:
        if parent.suffix.lower() == ZIP_SUFFIX and parent.is_file():
            return parent, path.relative_to(parent).as_posix()
    return None


def matching_members(archive: Stored, pattern: str) -> list[str]:
    """Returns the names of the files in ``archive`` that ``pattern`` names.

    Raises:
        DataError: it is no zip archive, or holds no such file; the message names the nearest.
    """
    names = member_names(archive)
    if pattern in names:
        return [pattern]
    found = [name for name in names if fnmatch(name, pattern)]
    if found:
        return found
    close = nearest(pattern, names)
    hint = f"did you mean {f'{archive}/{close}'!r}?" if close else f"it holds: {_listed(names)}"
    raise DataError(f"{archive}: holds no file {pattern!r}", hint)


def only_member(archive: Stored) -> str:
    """Returns the name of the one file in ``archive``; hidden files and those that macOS adds are ignored.

    Raises:
        DataError: it is no zip archive, or holds no file or several.
    """
    names = member_names(archive)
    if len(names) == 1:
        return names[0]
    if not names:
        raise DataError(f"{archive}: holds no files", "remove it from `files`, or write it anew")
    raise DataError(
        f"{archive}: holds {len(names):,} files: {_listed(names)}",
        f"name the one to read: {archive}/{names[0]}; or those of one log by a pattern: "
        f"{archive}/*{PurePosixPath(names[0]).suffix}",
    )


def member_info(archive: zipfile.ZipFile, name: str, path: PurePath) -> zipfile.ZipInfo:
    """Returns the entry of a file in an open archive, which can be read.

    Raises:
        DataError: there is no such file any more, or it is encrypted.
    """
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise DataError(f"{path}: holds no file {name!r} any more", "put it back, or correct `files`") from None
    if info.flag_bits & 1:
        raise DataError(f"{path}: {name!r} in it is encrypted", f"unpack it with its password: unzip '{path}'")
    if info.compress_type not in _METHODS:
        raise DataError(f"{path}: {name!r} in it is compressed in an unusual way", f"unpack it: unzip '{path}'")
    return info


def member_names(archive: Stored) -> list[str]:
    """Returns the names of all files in ``archive``, without hidden ones.

    Raises:
        DataError: it is no zip archive.
    """
    try:
        with open_stored(archive) as stored, zipfile.ZipFile(stored) as opened:
            infos = opened.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, UnicodeDecodeError) as error:
        if isinstance(error, PermissionError):
            raise
        raise DataError(
            f"{archive}: not a readable zip archive ({error})",
            "copy or download it again, whole, and run the same command again",
        ) from error
    names = dict.fromkeys(info.filename for info in infos if not info.is_dir())
    outside = next((name for name in names if name.startswith("/") or ".." in PurePosixPath(name).parts), None)
    if outside is not None:
        raise DataError(f"{archive}: holds a file that would lie outside it: {outside!r}", "write the archive anew")
    return [name for name in names if not _is_hidden(name)]


def _is_hidden(name: str) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_LISTED]) + (", …" if len(names) > _LISTED else "")
