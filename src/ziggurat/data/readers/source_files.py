"""Resolves the paths, URLs, folders and globs of a source against one folder, in a fixed order."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

import pyarrow as pa

from ziggurat.core.errors import DataError, nearest
from ziggurat.core.remote.remote_file import RemoteFile
from ziggurat.data.readers.archives import ZIP_SUFFIX, matching_members, member_names, only_member, within_archive
from ziggurat.data.readers.suffixes import COMPRESSION, format_suffix, is_hidden, is_marker
from ziggurat.data.readers.urls import UrlPath, is_url, joined, resolve_url

UTF_8 = "utf-8"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as it was when the source was opened.

    Attributes:
        path: the path of the file, or its URL.
        name: its path relative to the source's folder, or its full path if it is elsewhere.
        size_bytes: its size, as stored.
        modified_ns: its modification time; of a file at a URL a number that depends on its version.
        archive: the zip archive that holds the file; ``path`` is then the archive, or leads on to the member.
        member: the name of the file in the archive.
        encoding: the encoding of its text.
        lone_returns: whether its lines end in carriage returns alone.
        records: ``lines``, or what is turned into lines: ``array`` or ``python``.
        remote: where the bytes are, if not on a disk of this machine.
    """

    path: PurePath
    name: str
    size_bytes: int
    modified_ns: int
    archive: PurePath | None = None
    member: str = ""
    encoding: str = UTF_8
    lone_returns: bool = False
    records: str = "lines"
    remote: RemoteFile | None = None

    @property
    def stored(self) -> PurePath:
        """The file that holds the bytes."""
        return self.archive or self.path

    @property
    def compression(self) -> str | None:
        """The format in which the text is compressed, by the name of the file; None for plain text."""
        return COMPRESSION.get(self.stored.suffix.lower())

    @property
    def is_plain(self) -> bool:
        """Whether the bytes on the disk are the text that is parsed, so that reading can begin anywhere in it."""
        return self.compression is None and self.encoding == UTF_8 and self.records == "lines"

    @property
    def format_suffix(self) -> str:
        """The suffix that indicates the format of the text, in lower case."""
        return format_suffix(Path(self.member) if self.member else self.path)

    @property
    def on_disk(self) -> Path:
        """The file on a disk of this machine that holds the bytes.

        Raises:
            DataError: it is elsewhere.
        """
        if self.remote is not None:
            raise DataError(f"{self.path}: a database is read from a disk, not over the network", "copy it to a disk")
        return Path(self.stored)

    def open(self) -> pa.NativeFile:
        """Opens the stored bytes, on a disk or elsewhere.

        Raises:
            DataError, OSError: they cannot be read.
        """
        return pa.OSFile(str(self.stored)) if self.remote is None else pa.PythonFile(self.remote.open(), "r")

    def check_unchanged(self) -> None:
        """Validates that the file still exists and is unchanged since the source was opened.

        Raises:
            DataError: the file vanished or changed.
        """
        if self.remote is not None:
            self.remote.check_unchanged()
            return
        try:
            now = self.on_disk.stat()
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


def resolve_files(names: Sequence[str], folder: PurePath, suffixes: Sequence[str]) -> tuple[SourceFile, ...]:
    """Resolves ``names`` to files, each listed once, in the order of ``names``.

    Args:
        names: paths, folders (all files below with one of ``suffixes``, sorted, hidden files skipped) and globs
            (sorted; ``**`` matches across folders), relative to ``folder``; or URLs of these.
        folder: the folder to which relative names refer, a path or a URL.
        suffixes: the format's suffixes, such as ``.csv``; a compression suffix may follow.

    Raises:
        DataError: a file is missing (the message names the nearest existing one) or empty, a folder or glob has no
            match, permission is denied, an entry vanishes or cannot be listed, or ``names`` is empty.
    """
    if not names:
        raise DataError("the source names no files", "list at least one file, folder or glob under `files`")
    found: dict[str, SourceFile] = {}
    for name in names:
        try:
            for file in _files_of(joined(name, folder), folder, suffixes):
                found.setdefault(str(file.path), file)
        except PermissionError as error:
            raise no_permission(Path(str(error.filename))) from error
        except OSError as error:
            entry = "an entry of it" if error.filename is None else error.filename
            raise DataError(
                f"{name}: {entry} vanished or cannot be read ({error.strerror or error})",
                "name a folder of logs that nothing changes meanwhile, or the files one by one",
            ) from error
    return tuple(found.values())


def fingerprint_files(files: Iterable[SourceFile]) -> str:
    """Returns 16 hexadecimal digits that change when a file's name, size or modification time changes."""
    text = "\n".join(f"{file.name}\t{file.size_bytes}\t{file.modified_ns}" for file in files)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def no_permission(path: PurePath) -> DataError:
    """Returns the error for a file or folder that the current user may not read."""
    return DataError(f"{path}: no permission to read", f"make it readable for this user: chmod +r '{path}'")


def _files_of(name: str, folder: PurePath, suffixes: Sequence[str]) -> Iterator[SourceFile]:
    """Yields the files that a path or a URL names."""
    if is_url(name):
        yield from (_remote_file(remote, member, folder) for remote, member in resolve_url(name, suffixes))
    else:
        path = name.partition("://")[2] if "://" in name else name
        yield from (_source_file(path, Path(folder)) for path in _resolve(path, Path(folder), suffixes))


def _resolve(name: str, folder: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    path = folder / Path(name).expanduser()
    if path.is_dir():
        yield from _files_below(path, suffixes)
    elif path.exists():
        yield path
    elif (inside := within_archive(path)) is not None:
        yield from (inside[0] / member for member in matching_members(*inside))
    elif any(mark in name for mark in "*?["):
        anchor = Path(path.anchor) if path.is_absolute() else Path()
        found = anchor.glob(str(path.relative_to(anchor)))
        matches = sorted(match for match in found if match.is_file() and not is_marker(match, suffixes))
        if not matches:
            raise DataError(f"{path}: no file matches this pattern", f"correct the pattern, or the folder {folder}")
        yield from matches
    else:
        raise _missing_file_error(path)


def _files_below(folder: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    next(folder.iterdir(), None)  # raises for a folder without read permission, which would otherwise look empty
    visible = (path for path in sorted(folder.rglob("*")) if not is_hidden(path.relative_to(folder)))
    matches = [match for path in visible for match in _of_format(path, suffixes) if path.is_file()]
    if not matches:
        raise DataError(f"{folder}: no file in this folder ends in {', '.join(suffixes)}", "name the files one by one")
    yield from matches


def _of_format(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """Returns the file, or those in a zip archive whose name does not say its format, if they have the suffixes."""
    if format_suffix(path) in suffixes:
        return [path]
    if path.suffix.lower() == ZIP_SUFFIX and format_suffix(path) == "" and path.is_file():
        return [path / name for name in member_names(path) if format_suffix(Path(name)) in suffixes]
    return []


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
    inside = None if path.exists() else within_archive(path)
    stored = path if inside is None else inside[0]
    status = stored.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for a writer, and a device may never end
        raise DataError(f"{path}: is a pipe, a socket or a device, not a file", "write its content to a file")
    stored.open("rb").close()  # opening the file tests permission: access lists and mounts decide, not mode bits alone
    if status.st_size == 0:
        raise DataError(f"{path}: the file is empty (0 bytes)", "remove it from `files`, or write it anew")
    name = path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()
    if stored.suffix.lower() != ZIP_SUFFIX:
        return SourceFile(path, name, status.st_size, status.st_mtime_ns)
    member = only_member(stored) if inside is None else inside[1]
    return SourceFile(path, name, status.st_size, status.st_mtime_ns, stored, member)


def _remote_file(remote: RemoteFile, member: str, folder: PurePath) -> SourceFile:
    stored = UrlPath.of(remote.url)
    if remote.size_bytes == 0:
        raise DataError(f"{stored}: the file is empty (0 bytes)", "remove it from `files`, or write it anew")
    path = stored / member if member else stored
    if not member and stored.suffix.lower() == ZIP_SUFFIX:
        member = only_member(remote)
    return SourceFile(
        path,
        path.name_in(folder),
        remote.size_bytes,
        int.from_bytes(hashlib.sha256(remote.version.encode()).digest()[:7]),
        archive=stored if member else None,
        member=member,
        remote=remote,
    )
