"""Stores of checkpoints: named folders with files, each of which is either complete or absent."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Protocol

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import sync
from ziggurat.core.untrusted import MAX_TEXT_BYTES, Damage, opened, read_opened
from ziggurat.core.write_errors import explained_writes

MANIFESTS = ("manifest.json", "state.json")
"""Names of the files that make a folder a checkpoint."""
LINK_HINT = "put the folder or file itself there in place of the link, or delete the link"
_UNREADABLE = Damage(RunFolderError, "check the disk, or copy the run elsewhere")
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class Unreachable(RunFolderError):
    """The store gives no answer or denies access. What it holds may be intact."""


class TooLarge(RunFolderError):
    """A file is larger than it may be, and was not read."""


class Store(Protocol):
    """Folders of files below one root."""

    def where(self, folder: str, name: str = "") -> str:
        """Returns the path or URL of a folder or file, for messages."""
        ...

    def folders(self) -> list[str]:
        """Returns the names of the folders directly below the root; none if the root does not exist yet."""
        ...

    def files(self, folder: str = "") -> list[str]:
        """Returns the names of what is in a folder (``""``: the root) besides folders; none if it does not exist."""
        ...

    def read(self, folder: str, name: str, limit: int = MAX_TEXT_BYTES) -> bytes:
        """Returns the content of a file of at most ``limit`` bytes.

        Raises:
            TooLarge: the file is larger.
            RunFolderError: it does not exist, cannot be read, or is no regular file.
            Unreachable: the store gives no answer, so that it is unknown whether the file exists.
        """
        ...

    def write(self, folder: str, name: str, data: bytes) -> None:
        """Writes a file, durable on return. A file of the same name is replaced atomically.

        Raises:
            DataError: the disk is full or permission is missing. An existing file of that name is unchanged.
        """
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Returns name -> bytes of the files in a folder."""
        ...

    def delete(self, folder: str, name: str | None = None) -> None:
        """Deletes a file, or the whole folder without ``name``, if it exists."""
        ...


class LocalStore:
    """A folder of the local file system, or of a file system that all hosts mount.

    Neither its folders nor its files are reached through symbolic links: links and special files are refused by name,
    and only a link itself is ever deleted, never what it names.

    Args:
        root: the folder.
        follow: whether ``root`` may itself be a symbolic link, as a place that the user names may be.
    """

    def __init__(self, root: Path, *, follow: bool = True) -> None:
        self.root, self._follow = root, follow

    def where(self, folder: str, name: str = "") -> str:
        return str(self.root / folder / name)

    def folders(self) -> list[str]:
        return [name for name, found in self._listed("") if stat.S_ISDIR(found.st_mode)]

    def files(self, folder: str = "") -> list[str]:
        return [name for name, found in self._listed(folder) if not stat.S_ISDIR(found.st_mode)]

    def links(self) -> list[str]:
        """Returns the names of symbolic links directly below the root."""
        return [name for name, found in self._listed("") if stat.S_ISLNK(found.st_mode)]

    def read(self, folder: str, name: str, limit: int = MAX_TEXT_BYTES) -> bytes:
        path = self.root / folder / name
        try:
            with self._entered(folder) as place, opened(path, _UNREADABLE, folder=place) as file:
                size = os.fstat(file.fileno()).st_size
                if size > limit:
                    raise TooLarge(f"{path}: has {size:,} bytes, at most {limit:,} are expected", _UNREADABLE.hint)
                return read_opened(file, path, _UNREADABLE, limit)
        except FileNotFoundError:
            raise RunFolderError(f"{path}: missing", "see `ziggurat checkpoint verify`") from None

    def write(self, folder: str, name: str, data: bytes) -> None:
        path = self.root / folder / name
        temporary = f".{name}.{os.getpid()}.part"
        with explained_writes(path):
            self._create(folder)
            with self._entered(folder) as place:
                try:
                    # `atomic_file` would also sweep remains of dead processes. Files of rows are many and have unique
                    # names, so that no dead process can have left one half-written under the same name.
                    _unlink(temporary, place)
                    with os.fdopen(os.open(temporary, _NEW_FILE, 0o666, dir_fd=place), "wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                    os.rename(temporary, name, src_dir_fd=place, dst_dir_fd=place)
                    os.fsync(place)
                finally:
                    _unlink(temporary, place)

    def sizes(self, folder: str) -> dict[str, int]:
        return {name: found.st_size for name, found in self._listed(folder) if stat.S_ISREG(found.st_mode)}

    def delete(self, folder: str, name: str | None = None) -> None:
        with contextlib.suppress(FileNotFoundError), self._entered(folder) as place:
            if name is not None:
                _unlink(name, place)
                return
            assert folder
            # The manifests go first, so that a half-deleted folder is not taken for a checkpoint.
            for each in sorted(self.files(folder), key=lambda each: each not in MANIFESTS):
                _unlink(each, place)
        self.delete_if_empty(folder)

    def delete_if_empty(self, folder: str) -> None:
        """Deletes a folder if it exists and nothing is in it."""
        with contextlib.suppress(OSError), self._entered("") as root:
            os.rmdir(folder, dir_fd=root)

    def _create(self, folder: str) -> None:
        """Creates the root and a folder in it if they are missing."""
        if not self.root.is_dir():
            self.root.mkdir(parents=True, exist_ok=True)
            sync(self.root.parent)
        if folder:
            with self._entered("") as root, contextlib.suppress(FileExistsError):
                os.mkdir(folder, dir_fd=root)
                os.fsync(root)

    @contextlib.contextmanager
    def _entered(self, folder: str) -> Generator[int]:
        """Yields a descriptor of a folder, which names of its files can be looked up in.

        Raises:
            FileNotFoundError: there is no such folder.
            RunFolderError: it, or the root if that may be none, is a symbolic link, or it is no folder.
        """
        with contextlib.ExitStack() as stack:
            place = _opened_folder(self.root, None, self._follow)
            stack.callback(os.close, place)
            if folder:
                place = _opened_folder(self.root / folder, place, follow=False)
                stack.callback(os.close, place)
            yield place

    def _listed(self, folder: str) -> list[tuple[str, os.stat_result]]:
        """Returns name and status of everything in a folder, links unfollowed; nothing if there is no such folder."""
        found: list[tuple[str, os.stat_result]] = []
        with contextlib.suppress(FileNotFoundError), self._entered(folder) as place, os.scandir(place) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.name, entry.stat(follow_symlinks=False)))
        return found


def _opened_folder(path: Path, parent: int | None, follow: bool) -> int:
    """Returns a descriptor of the folder ``path``, which is looked up in ``parent`` if that is given."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    name = path if parent is None else path.name
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno not in {errno.ELOOP, errno.ENOTDIR}:
            raise RunFolderError(f"{path}: cannot be opened: {error.strerror}", _UNREADABLE.hint) from None
        mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise RunFolderError(f"{path}: is a symbolic link, which is not followed", LINK_HINT) from None
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from None


def _unlink(name: str, folder: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
