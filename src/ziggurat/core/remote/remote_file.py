"""A file at a URL: its version when it was found, and a reader of it that reads ahead within bounds.

A file is requested in blocks: small ones at its beginning, as many readers need only the head, and larger ones after.
While a reader goes forward, the next blocks are requested at the same time as it works. fsspec's own caches read on
demand, or one block ahead, and keep the failure of a block that was read ahead, so that it cannot be tried again.
"""

from __future__ import annotations

import io
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ziggurat.core.errors import DataError, ZigguratError
from ziggurat.core.remote.errors import explained, is_missing, is_temporary
from ziggurat.core.remote.file_system import open_file_system

_Answer = TypeVar("_Answer")

BLOCK_BYTES = 4 * 2**20
FIRST_BOUNDS = (2**18, 2**20)
"""Where the first blocks end, which are smaller."""
AHEAD, KEPT = 3, 6
"""Blocks requested beyond the one being read, and blocks held at once: at most 24 MiB for each open file."""

ATTEMPTS, FIRST_PAUSE_S = 4, 0.25
"""How often a block is requested while the failure may pass, and the first pause between, which doubles each time. The
library of an object store tries again itself, each time."""

VERSION_FIELDS = (
    "ETag", "etag", "generation", "content_md5", "Content-MD5", "md5Hash", "Digest",
    "Last-Modified", "LastModified", "last_modified", "updated", "mtime",
)  # fmt: skip
"""What the file systems call the fields that change with a file's content, the safest first."""

_SETTLED = "wait until whatever writes the file is done, then run the same command again"
_ONWARDS = "run the same command again: it goes on where it stopped"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file at a URL, as it was when it was found.

    Attributes:
        url: its URL.
        size_bytes: its size.
        version: what changes with its content, as its server says it: an ETag, or the time of modification; empty if
            the server says nothing of the kind.
    """

    url: str
    size_bytes: int
    version: str

    def __str__(self) -> str:
        return self.url

    def open(self) -> RemoteStream:
        """Opens the file for reading.

        Raises:
            DataError: it vanished, changed, or may not be read.
        """
        return RemoteStream(self)

    def check_unchanged(self) -> None:
        """Validates that the file still exists and is unchanged since it was found.

        Raises:
            DataError: it vanished or changed, or its server does not answer.
        """
        try:
            now = find_remote(self.url)
        except FileNotFoundError as error:
            raise _vanished(self) from error
        if now != self:
            raise _changed(self, f"{self.size_bytes} bytes before, {now.size_bytes} now")


def find_remote(url: str) -> RemoteFile:
    """Returns the file at ``url``.

    Raises:
        FileNotFoundError: there is none.
        DataError: its server does not answer, refuses, or does not say its size.
    """
    files, path = open_file_system(url)
    with explained_requests(url):
        info = _attempted(lambda: files.info(path))
    if info.get("type") == "directory":
        raise FileNotFoundError(url)
    return as_remote(url, info)


def as_remote(url: str, info: dict[str, Any]) -> RemoteFile:
    """Returns a file as its file system describes it.

    Raises:
        DataError: its size is not known, or its server sends no parts of files.
    """
    size = info.get("size")
    if not isinstance(size, int) or info.get("partial") is False:
        raise _no_parts(url)
    return RemoteFile(url, size, _version(info))


def _version(info: dict[str, Any]) -> str:
    """Returns what changes with a file's content, among what its file system says of it; empty if nothing does."""
    return next((str(info[field]) for field in VERSION_FIELDS if info.get(field)), "")


class RemoteStream(io.RawIOBase):
    """Reads a :class:`RemoteFile`; several threads may read it, one at a time.

    Raises:
        DataError: a block cannot be read, in all attempts, or the file changed.
    """

    def __init__(self, file: RemoteFile) -> None:
        super().__init__()
        self._file, self._position, self._last_block = file, 0, -1
        files, path = open_file_system(file.url)
        try:
            with explained_requests(file.url):
                self._source = files.open(path, "rb", cache_type="none", size=file.size_bytes)
        except FileNotFoundError as error:
            raise _vanished(file) from error
        version = _version(getattr(self._source, "details", None) or {})
        if version and file.version and version != file.version:
            raise _changed(file, "its version is another")
        self._pool: ThreadPoolExecutor | None = None
        self._blocks: OrderedDict[int, Future[bytes]] = OrderedDict()
        self._lock = threading.RLock()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size_bytes}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        """Fills ``buffer`` from the current position, with fewer bytes only at the file's end."""
        view = memoryview(buffer).cast("B")
        with self._lock:
            filled = 0
            while filled < len(view) and self._position < self._file.size_bytes:
                number = block_at(self._position)
                start, _ = bounds(number, self._file.size_bytes)
                data = self._block(number)
                part = data[self._position - start : self._position - start + len(view) - filled]
                view[filled : filled + len(part)] = part
                filled += len(part)
                self._position += len(part)
            return filled

    def close(self) -> None:
        if not self.closed:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
            with suppress(Exception):  # nothing was written: a failure to close a reader loses nothing
                self._source.close()
        super().close()

    def _block(self, number: int) -> bytes:
        """Returns a block, and requests those after it if the reader goes forward."""
        forward = number in (self._last_block, self._last_block + 1)
        wanted = range(number, number + 1 + (AHEAD if forward and number else 0))
        for each in wanted:
            if bounds(each, self._file.size_bytes)[0] < self._file.size_bytes:
                self._request(each)
        self._last_block = number
        try:
            return self._blocks[number].result()
        except BaseException:
            self._blocks.pop(number, None)  # so that a later read tries again
            raise

    def _request(self, number: int) -> None:
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return
        while len(self._blocks) >= KEPT:
            self._blocks.popitem(last=False)[1].cancel()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1 + AHEAD, thread_name_prefix="read-ahead")
        self._blocks[number] = self._pool.submit(self._fetch, *bounds(number, self._file.size_bytes))

    def _fetch(self, start: int, end: int) -> bytes:
        try:
            with explained_requests(self._file.url):
                data = _attempted(lambda: self._source._fetch_range(start, end))
        except FileNotFoundError as error:
            raise _vanished(self._file) from error
        if len(data) != end - start:
            raise _changed(self._file, f"bytes {start} to {end} are {len(data)} bytes")
        return data


def block_at(position: int) -> int:
    """Returns the number of the block that holds a position."""
    for number, end in enumerate(FIRST_BOUNDS):
        if position < end:
            return number
    return len(FIRST_BOUNDS) + position // BLOCK_BYTES


def bounds(number: int, size: int) -> tuple[int, int]:
    """Returns where a block starts and ends in a file of ``size`` bytes."""
    first = len(FIRST_BOUNDS)
    edges = (0, *FIRST_BOUNDS)
    start = edges[number] if number <= first else (number - first) * BLOCK_BYTES
    end = edges[number + 1] if number < first else (number - first + 1) * BLOCK_BYTES
    return min(start, size), min(end, size)


@contextmanager
def explained_requests(url: str) -> Generator[None]:
    """Turns the client library's errors into errors that say what happened to ``url``, with a hint.

    Raises:
        FileNotFoundError: there is no such file.
        DataError: anything else.
    """
    try:
        yield
    except ZigguratError:
        raise
    except Exception as error:
        if is_missing(error):
            raise FileNotFoundError(url) from error
        if "range requests" in str(error):
            raise _no_parts(url) from error
        if type(error).__name__ == "FileExpired":
            raise DataError(f"{url}: changed while it was being read", _SETTLED) from error
        what, hint = explained(error, url, for_logs=True)
        raise DataError(f"{url}: cannot be read: {what}", hint) from error


def _attempted(request: Callable[[], _Answer]) -> _Answer:
    """Returns what ``request`` does, which is tried again while its failure may pass."""
    for attempt in range(ATTEMPTS):
        try:
            return request()
        except Exception as error:
            if attempt == ATTEMPTS - 1 or not is_temporary(error):
                raise
            time.sleep(FIRST_PAUSE_S * 2**attempt)
    raise AssertionError


def _vanished(file: RemoteFile) -> DataError:
    return DataError(f"{file.url}: vanished while it was being read", f"put the file back, unchanged, and {_ONWARDS}")


def _changed(file: RemoteFile, how: str) -> DataError:
    return DataError(f"{file.url}: changed while it was being read ({how})", _SETTLED)


def _no_parts(url: str) -> DataError:
    return DataError(
        f"{url}: its server does not say the size of a file, or sends no part of one, so it cannot be read in place",
        "download it, and name the file on disk",
    )
