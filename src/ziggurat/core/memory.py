"""Turns failed allocations into errors that say so."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

import torch

from ziggurat.core.errors import OutOfMemory

_REQUESTED = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
GIB = 2**30


@contextlib.contextmanager
def explained_out_of_memory(hint: str) -> Generator[None]:
    """Turns a failed allocation of Python, numpy or torch in the ``with`` block into one kind of error.

    Args:
        hint: what the user can do about it.

    Raises:
        OutOfMemory: in place of the library's error; the message says how much was requested, if known.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        requested = _REQUESTED.search(str(error))
        if requested is None and not isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise
        details = f": {int(requested[1]) / GIB:,.2f} GiB more were asked for" if requested else f" ({error})"
        raise OutOfMemory(f"ran out of memory{details if str(error) else ''}", hint) from error
