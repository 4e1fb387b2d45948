"""Resolves the paths, folders and globs of a source against one folder, in a fixed order."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ziggurat.core.errors import DataError, nearest

COMPRESSION = {".gz": "gzip", ".zst": "zstd"}
"""Suffix of a compressed text file -> pyarrow's name for the codec."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was when the source was opened.

    Attributes:
        path: the path of the file.
        name: its path relative to the source's folder, or its full path if it is elsewhere.
        size_bytes: its size on disk.
        modified_ns: its modification time.
    """

    path: Path
    name: str
    size_bytes: int
    modified_ns: int

    def check_unchanged(self) -> None:
        """Validates that the file still exists and is unchanged since the source was opened.

        Raises:
            DataError: the file vanished or changed.
        """
        try:
            now = self.path.stat()
        except OSError as error:
            raise DataError(
                f"{self.path}: vanished while it was being read ({error.strerror})",
                "put the file back, unchanged, and run the same command again: it goes on where it stopped",
            ) from error
        if (now.st_size, now.st_mtime_ns) != (self.size_bytes, self.modified_ns):
            raise DataError(
                f"{self.path}: changed while it was being read ({self.size_bytes} bytes before, {now.st_size} now)",
                "wait until whatever writes the file is done, then run the same command again",
            )


def resolve_files(names: Sequence[str], folder: Path, suffixes: Sequence[str]) -> tuple[SourceFile, ...]:
    """Resolves ``names`` to files, each listed once, in the order of ``names``.

    Args:
        names: paths, folders (all files below with one of ``suffixes``, sorted, hidden files skipped) and globs
            (sorted; ``**`` matches across folders), relative to ``folder``.
        folder: the folder to which relative names refer.
        suffixes: the format's suffixes, such as ``.csv``; a compression suffix may follow.

    Raises:
        DataError: a file is missing (the message names the nearest existing one) or empty, a folder or glob has no
            match, permission is denied, or ``names`` is empty.
    """
    if not names:
        raise DataError("the source names no files", "list at least one file, folder or glob under `files`")
    try:
        found = dict.fromkeys(path for name in names for path in _resolve(name, folder, suffixes))
        return tuple(_source_file(path, folder) for path in found)
    except PermissionError as error:
        raise no_permission(Path(str(error.filename))) from error


def fingerprint_files(files: Iterable[SourceFile]) -> str:
    """Returns 16 hexadecimal digits that change when a file's name, size or modification time changes."""
    text = "\n".join(f"{file.name}\t{file.size_bytes}\t{file.modified_ns}" for file in files)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def no_permission(path: Path) -> DataError:
    """Returns the error for a file or folder that the current user may not read."""
    return DataError(f"{path}: no permission to read", f"make it readable for this user: chmod +r '{path}'")


def _resolve(name: str, folder: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    path = folder / Path(name).expanduser()
    if path.is_dir():
        yield from _files_below(path, suffixes)
    elif path.exists():
        yield path
    elif any(mark in name for mark in "*?["):
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        matches = sorted(match for match in anchor.glob(str(path.relative_to(anchor))) if match.is_file())
        if not matches:
            raise DataError(f"{path}: no file matches this pattern", f"correct the pattern, or the folder {folder}")
        yield from matches
    else:
        raise _missing_file_error(path)


def _files_below(folder: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    next(folder.iterdir(), None)  # raises for a folder without read permission, which would otherwise look empty
    matches = [
        path
        for path in sorted(folder.rglob("*"))
        if not any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)
        and format_suffix(path) in suffixes
        and path.is_file()
    ]
    if not matches:
        raise DataError(f"{folder}: no file in this folder ends in {', '.join(suffixes)}", "name the files one by one")
    yield from matches


def format_suffix(path: Path) -> str:
    """Returns the suffix that indicates the file's format, in lower case, ignoring a compression suffix."""
    return (path.with_suffix("") if path.suffix in COMPRESSION else path).suffix.lower()


def _missing_file_error(path: Path) -> DataError:
    parent = next(parent for parent in path.parents if parent.is_dir())
    absent = path.relative_to(parent).parts[0]
    neighbours = sorted(entry.name for entry in parent.iterdir())
    close = nearest(absent, neighbours)
    if close is not None:
        hint = f"did you mean {str(parent / close)!r}?"
    else:
        shown = ", ".join(neighbours[:8]) + (", …" if len(neighbours) > 8 else "")
        hint = f"{parent} holds: {shown or 'nothing'}; name one of these, or another data folder"
    return DataError(f"{path}: no such file", hint)


def _source_file(path: Path, folder: Path) -> SourceFile:
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer, and a device may never end
        raise DataError(f"{path}: is a pipe, a socket or a device, not a file", "write its content to a file")
    path.open("rb").close()  # opening the file tests permission: access lists and mounts decide, not mode bits alone
    if status.st_size == 0:
        raise DataError(f"{path}: the file is empty (0 bytes)", "remove it from `files`, or write it anew")
    name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
    return SourceFile(path, name, status.st_size, status.st_mtime_ns)
