"""Checksums of what is stored: XXH3 with 128 bits, from the library ``xxhash``.

They find damage, not forgery: anyone who can change a file can also change its checksum. XXH3 hashes faster than memory
delivers, so that every block can be checked when it is read. Checkpoints have SHA-256 instead, because their files
travel through object stores.

A :class:`FileChecksum` records a file in another, sealed file. The size is compared before anything is read, so that a
file many times as large is refused without allocating its memory.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy.typing as npt
import xxhash
from safetensors import SafetensorError, safe_open

from ziggurat.core.untrusted import Damage, opened, read_bytes

_CHUNK_BYTES = 1 << 22


def digest(data: Any) -> str:
    """Returns the checksum of ``data``, a bytes-like object, as 32 hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)


def digest_of_parts(parts: Iterable[Any]) -> str:
    """Returns the checksum of bytes-like objects. It also depends on where each of them ends."""
    state = xxhash.xxh3_128()
    for part in parts:
        view = memoryview(part)
        state.update(view.nbytes.to_bytes(8, "little"))
        state.update(view)
    return state.hexdigest()


def digest_of_file(path: Path) -> str:
    """Returns the checksum of a file's content."""
    with path.open("rb") as file:
        return _digest_of_stream(file)[1]


@dataclass(frozen=True, slots=True)
class FileChecksum:
    """The size of a file and the checksum of its content, as another file records them."""

    bytes: int
    xxh3_128: str

    @classmethod
    def of(cls, path: Path, damage: Damage) -> FileChecksum:
        """Computes them for a file.

        Raises:
            ZigguratError: of class ``damage.error``: it is no regular file, or cannot be read.
            FileNotFoundError: there is no such file.
        """
        with opened(path, damage) as file:
            try:
                return cls(*_digest_of_stream(file))
            except OSError as error:
                raise damage.of(path, f"cannot be read: {error.strerror}") from None

    def check(self, path: Path, damage: Damage) -> None:
        """Compares a file with them.

        Raises:
            ZigguratError: of class ``damage.error``: it is missing or another.
        """
        self._check_size(path, damage)
        if FileChecksum.of(path, damage) != self:
            raise damage.of(path, _DIFFERS)

    def read(self, path: Path, damage: Damage) -> bytes:
        """Returns the content of a file that equals them.

        Raises:
            ZigguratError: of class ``damage.error``: it is missing or another.
        """
        self._check_size(path, damage)
        data = read_bytes(path, damage, limit=self.bytes)
        self.check_digest(digest(data), path, damage)
        return data

    def check_digest(self, found: str, path: Path, damage: Damage) -> None:
        """Compares the digest of what was read of a file.

        Raises:
            ZigguratError: of class ``damage.error``: it is another.
        """
        if found != self.xxh3_128:
            raise damage.of(path, _DIFFERS)

    def _check_size(self, path: Path, damage: Damage) -> None:
        try:
            with opened(path, damage) as file:
                size = file.seek(0, os.SEEK_END)
        except FileNotFoundError:
            raise damage.of(path, "is missing") from None
        if size != self.bytes:
            raise damage.of(path, f"is damaged: it has {size:,} bytes, {self.bytes:,} were written")


def load_tensors(
    path: Path, recorded: FileChecksum | None, damage: Damage, *, limit: int | None = None
) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of a safetensors file; see :func:`each_tensor` for the errors.

    Args:
        path: the file.
        recorded: its size and checksum; None for a file of a version without checksums.
        damage: the errors to raise.
        limit: its greatest size in bytes if ``recorded`` is None; default: any.
    """
    return dict(each_tensor(path, recorded, damage, limit=limit))


def each_tensor(
    path: Path,
    recorded: FileChecksum | None,
    damage: Damage,
    *,
    names: Container[str] | None = None,
    limit: int | None = None,
) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Yields the arrays of a safetensors file, one at a time, so that no more need be in memory.

    Args:
        path, recorded, damage, limit: as of :func:`load_tensors`.
        names: those that are wanted; None: all.

    Raises:
        ZigguratError: of class ``damage.error``: it is another file, or no complete safetensors file.
        FileNotFoundError: there is no such file, and ``recorded`` is None.
    """
    if recorded is not None:
        recorded.check(path, damage)
    else:
        with opened(path, damage, limit=limit):
            pass
    try:
        with safe_open(path, "np") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                if names is None or name in names:
                    yield name, file.get_tensor(name)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise damage.of(path, f"is not a complete safetensors file: {str(error)[:200]}") from None


_DIFFERS = "is damaged: its content differs from its checksum"


def _digest_of_stream(file: IO[bytes]) -> tuple[int, str]:
    """Returns the number of bytes up to the end of ``file``, and their checksum."""
    state, size = xxhash.xxh3_128(), 0
    while chunk := file.read(_CHUNK_BYTES):
        state.update(chunk)
        size += len(chunk)
    return size, state.hexdigest()
