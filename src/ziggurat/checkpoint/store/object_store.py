"""Checkpoints in an object store, through fsspec: ``s3://BUCKET/PREFIX`` and other URLs that fsspec supports.

An object is written by one request, completely or not at all, and is visible to all readers from then on: that is what
a store of checkpoints needs. Listings are never cached. The client library repeats requests that fail temporarily (5xx,
lost connections, timeouts), with growing pauses, a bounded number of times.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Generator
from pathlib import Path
from typing import Any

from ziggurat.checkpoint.store.store import MANIFESTS, LocalStore, Store, TooLarge, Unreachable
from ziggurat.core.errors import DataError, RunFolderError, ZigguratError
from ziggurat.core.remote.errors import (
    explained,
    is_empty_range,
    is_missing_bucket,
    is_refused_creation,
    is_unknown_request,
)
from ziggurat.core.remote.file_system import open_file_system
from ziggurat.core.remote.uri import local_folder
from ziggurat.core.untrusted import MAX_TEXT_BYTES


def open_store(place: str | Path) -> Store:
    """Returns the store at a path or a URL.

    Args:
        place: as a text, a place that a user named; as a path, a folder within a run, which may be no symbolic link.

    Raises:
        ConfigError: ``place`` is neither.
        EnvironmentMismatch: a package that the store needs is not installed.
    """
    if isinstance(place, Path):
        return LocalStore(place, follow=False)
    folder = local_folder(place)
    return ObjectStore(place) if folder is None else LocalStore(folder)


class ObjectStore:
    """Objects ``URL/FOLDER/NAME``; see :class:`~ziggurat.checkpoint.store.store.Store`.

    Args:
        url: the root. The store's client library takes endpoint and credentials from the environment.

    Raises:
        ConfigError: no store is known for this kind of URL.
        EnvironmentMismatch: a package that the store needs is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") if not url.endswith("://") else url
        self._files, self._root = open_file_system(self.url)

    def where(self, folder: str, name: str = "") -> str:
        return "/".join(part for part in (self.url, folder, name) if part)

    def folders(self) -> list[str]:
        return [_name(entry) for entry in self._listed("") if entry["type"] == "directory"]

    def files(self, folder: str = "") -> list[str]:
        return [_name(entry) for entry in self._listed(folder) if entry["type"] == "file"]

    def read(self, folder: str, name: str, limit: int = MAX_TEXT_BYTES) -> bytes:
        place = self.where(folder, name)
        with self._explained(f"{place}: cannot be read", Unreachable):
            try:
                data = self._files.cat_file(self._path(folder, name), start=0, end=limit + 1)
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise
                raise RunFolderError(f"{place}: missing", "see `ziggurat checkpoint verify`") from None
            except Exception as error:
                if not is_empty_range(error):
                    raise
                data = b""
        if len(data) > limit:
            raise TooLarge(f"{place}: has more than {limit:,} bytes", "see `ziggurat checkpoint verify`")
        return data

    def write(self, folder: str, name: str, data: bytes) -> None:
        with self._explained(f"{self.where(folder, name)}: cannot be written", DataError):
            self._files.pipe_file(self._path(folder, name), data)

    def sizes(self, folder: str) -> dict[str, int]:
        return {_name(entry): int(entry["size"] or 0) for entry in self._listed(folder) if entry["type"] == "file"}

    def delete(self, folder: str, name: str | None = None) -> None:
        if name is not None:
            self._remove(folder, [name])
            return
        assert folder
        names = self.files(folder)
        # The manifests go first, so that a half-deleted folder is not taken for a checkpoint.
        self._remove(folder, [each for each in MANIFESTS if each in names])
        self._remove(folder, [each for each in names if each not in MANIFESTS])
        remaining = self.files(folder)
        if remaining:
            raise DataError(
                f"{self.where(folder)}: {len(remaining)} of {len(names)} objects could not be deleted, {remaining[0]} "
                "first",
                "allow these credentials to delete objects, or delete them by hand",
            )

    def create(self, folder: str, name: str, data: bytes) -> bool:
        """Creates a file unless it exists. If several processes create it at once, exactly one succeeds.

        Returns:
            Whether the file has this content now.

        Raises:
            DataError: as :meth:`write`; or the store does not support conditional writes.
        """
        path, place = self._path(folder, name), self.where(folder, name)
        if not _supports_creation(self._files):
            raise _no_conditional_writes(place)
        with self._explained(f"{place}: cannot be written", DataError):
            if not self._create(path, place, data):
                # If the response to a first attempt got lost, the repeated request finds the object of the first.
                with contextlib.suppress(FileNotFoundError):
                    return self._files.cat_file(path) == data
                return False
            if self._create(path, place, data):  # a store that ignores the condition writes it again
                raise _no_conditional_writes(place)
        return True

    def _create(self, path: str, place: str, data: bytes) -> bool:
        try:
            self._files.pipe_file(path, data, mode="create")
        except Exception as error:
            if is_refused_creation(error):
                return False
            if is_unknown_request(error):
                raise _no_conditional_writes(place) from error
            raise
        return True

    def _listed(self, folder: str) -> list[dict[str, Any]]:
        path = self._path(folder)
        with self._explained(f"{self.where(folder)}: cannot be listed", Unreachable):
            try:
                found = self._files.ls(path, detail=True)
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise
                return []
        # Some tools leave an empty object under a folder's own name.
        return [entry for entry in found if entry["name"].strip("/") != path.strip("/")]

    def _remove(self, folder: str, names: list[str]) -> None:
        if not names:
            return
        with self._explained(f"{self.where(folder, names[0])}: cannot be deleted", DataError):
            paths = [self._path(folder, name) for name in names]
            try:
                self._files.rm_file(paths[0]) if len(paths) == 1 else self._files.rm(paths)
            except FileNotFoundError as error:
                if is_missing_bucket(error):
                    raise

    def _path(self, *parts: str) -> str:
        return "/".join(part for part in (self._root, *parts) if part)

    @contextlib.contextmanager
    def _explained(self, problem: str, kind: type[ZigguratError]) -> Generator[None]:
        """Turns the client library's errors into errors of type ``kind`` with an explanation and a hint."""
        try:
            yield
        except (ZigguratError, AssertionError):
            raise
        except Exception as error:
            what, hint = explained(error, self.url)
            raise kind(f"{problem}: {what}", hint) from error


def _supports_creation(files: Any) -> bool:
    """Returns whether the file system implements atomic creation itself.

    fsspec's default first checks whether the file exists and then writes it, which is not atomic.
    """
    from fsspec import AbstractFileSystem

    own = getattr(type(files), "_pipe_file", None) or type(files).pipe_file
    return own is not AbstractFileSystem.pipe_file and "mode" in inspect.signature(own).parameters


def _no_conditional_writes(place: str) -> DataError:
    return DataError(
        f"{place}: this store, or its library, does not support conditional writes (If-None-Match), so that nothing "
        "would keep two trainings from writing here at once",
        "use a store that supports them, as Amazon S3 and MinIO do, or a folder",
    )


def _name(entry: dict[str, Any]) -> str:
    return str(entry["name"]).rstrip("/").rpartition("/")[2]
