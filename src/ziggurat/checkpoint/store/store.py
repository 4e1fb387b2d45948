"""Where checkpoints lie: folders by name, files in them, each whole or not there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Protocol

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import sync
from ziggurat.core.write_errors import explained_writes


class Unreachable(RunFolderError):
    """A store that gives no answer, or refuses one: what lies there may be whole."""


class Store(Protocol):
    """Folders of files below one root."""

    def where(self, folder: str, name: str = "") -> str:
        """As it is told to people."""
        ...

    def folders(self) -> list[str]:
        """Names of the folders below the root, and of nothing else; none where the root is not there yet."""
        ...

    def files(self, folder: str = "") -> list[str]:
        """Names of the files in a folder, ``""`` for the root; none where there is no such folder."""
        ...

    def read(self, folder: str, name: str) -> bytes:
        """A file's content.

        Raises:
            RunFolderError: it is not there, or cannot be read; :class:`Unreachable` where that says nothing of it.
        """
        ...

    def write(self, folder: str, name: str, data: bytes) -> None:
        """A file of that content, durable on return, replacing one of that name at once.

        Raises:
            DataError: a full disk, or no permission; a file of that name is as it was.
        """
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Name -> bytes of the files in a folder."""
        ...

    def delete(self, folder: str, name: str | None = None) -> None:
        """A file, or the whole folder; what is not there is none either."""
        ...


class LocalStore:
    """A folder of this machine's file system, or of one that all hosts mount."""

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
                f"{path}: cannot be read: {error.strerror}", "see to the disk, or copy the run elsewhere"
            ) from error

    def write(self, folder: str, name: str, data: bytes) -> None:
        path = self.root / folder / name
        with explained_writes(path):
            if not path.parent.is_dir():
                path.parent.mkdir(parents=True, exist_ok=True)
                sync(path.parent.parent)
            # Files of rows are many, and their names are new: nobody who died can have left one half-written.
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
            # Its manifests go first: a folder that is half deleted is no checkpoint.
            for manifest in (*path.glob("manifest.json"), *path.glob("state.json")):
                manifest.unlink(missing_ok=True)
            for name in self.files(folder):
                (path / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # somebody has put a folder there
                path.rmdir()

    def _listed(self, folder: str) -> list[Path]:
        try:
            return [self.root / folder / entry.name for entry in os.scandir(self.root / folder)]
        except (FileNotFoundError, NotADirectoryError):
            return []
