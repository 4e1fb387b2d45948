"""Checksums of what is stored: XXH3 with 128 bits, from the library ``xxhash``.

They find damage, not forgery: anyone who can change a file can also change its checksum. XXH3 hashes faster than memory
delivers, so that every block can be checked when it is read. Checkpoints have SHA-256 instead, because their files
travel through object stores.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import xxhash

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
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            state.update(chunk)
    return state.hexdigest()
