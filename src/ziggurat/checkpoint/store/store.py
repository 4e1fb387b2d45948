"""Stores of checkpoints: named folders with files, each of which is either complete or absent."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import sync
from ziggurat.core.write_errors import explained_writes


class Unreachable(RunFolderError):
    """The store gives no answer or denies access. What it holds may be intact."""


class Store(Protocol):
    """Folders of files below one root."""

    def where(self, folder: str, name: str = "") -> str:
        """Returns the path or URL of a folder or file, for messages."""
        ...

    def folders(self) -> list[str]:
        """Returns the names of the folders directly below the root; none if the root does not exist yet."""
        ...

    def files(self, folder: str = "") -> list[str]:
        """Returns the names of the files in a folder (``""``: the root); none if there is no such folder."""
        ...

    def read(self, folder: str, name: str) -> bytes:
        """Returns a file's content.

        Raises:
            RunFolderError: the file does not exist or cannot be read.
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
    """A folder of the local file system, or of a file system that all hosts mount."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def where(self, folder: str, name: str = "") -> str:
        return str(self.root / folder / name)

    def folders(self) -> list[str]:
        return [path.name for path in self._listed("") if path.is_dir()]

    def files(self, folder: str = "") -> list[str]:
        return [path.name for path in self._listed(folder) if path.is_file()]

    def read(self, folder: str, name: str) -> bytes:
        path = self.root / folder / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise RunFolderError(f"{path}: missing", "see `ziggurat checkpoint verify`") from None
        except OSError as error:
            raise RunFolderError(
                f"{path}: cannot be read: {error.strerror}", "check the disk, or copy the run elsewhere"
            ) from error

    def write(self, folder: str, name: str, data: bytes) -> None:
        path = self.root / folder / name
        with explained_writes(path):
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                sync(path.parent.parent)
            # `atomic_file` would also sweep remains of dead processes. Files of rows are many and have unique names,
            # so that no dead process can have left one half-written under the same name.
            temporary = path.with_name(f".{name}.{os.getpid()}.part")
            try:
                with temporary.open("wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
                sync(path.parent)
            finally:
                temporary.unlink(missing_ok=True)

    def sizes(self, folder: str) -> dict[str, int]:
        found: dict[str, int] = {}
        for path in self._listed(folder):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    found[path.name] = path.stat().st_size
        return found

    def delete(self, folder: str, name: str | None = None) -> None:
        if name is not None:
            (self.root / folder / name).unlink(missing_ok=True)
            return
        assert folder
        path = self.root / folder
        if path.is_dir():
            # The manifests go first, so that a half-deleted folder is not taken for a checkpoint.
            for manifest in (*path.glob("manifest.json"), *path.glob("state.json")):
                manifest.unlink(missing_ok=True)
            for name in self.files(folder):
                (path / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody has put a folder into it
                path.rmdir()

    def _listed(self, folder: str) -> list[Path]:
        try:
            return [self.root / folder / entry.name for entry in os.scandir(self.root / folder)]
        except (FileNotFoundError, NotADirectoryError):
            return []
