"""Memory that is not there, told as what it is."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator

import torch

from ziggurat.core.errors import OutOfMemory

_ASKED = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
GIB = 2**30


@contextlib.contextmanager
def out_of_memory_told(hint: str) -> Generator[None]:
    """Within, an allocation that fails, of Python, numpy or torch, is one error of ours.

    Args:
        hint: what to do about it.

    Raises:
        OutOfMemory: in place of theirs; how much was asked for is told where it is known.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        asked = _ASKED.search(str(error))
        if asked is None and not isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise
        how_much = f": {int(asked[1]) / GIB:,.2f} GiB more were asked for" if asked else f" ({error})"
        raise OutOfMemory(f"ran out of memory{how_much if str(error) else ''}", hint) from error
