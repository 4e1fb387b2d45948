"""A safetensors file whose tensors are filled in place, so that it may be larger than memory.

``safetensors.save_file`` wants all tensors at once. Here the header comes first, from names, types and shapes alone;
the file is then as long as it will be, and its tensors are views of it, which the system writes out as they fill.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types as the format calls them."""


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """A tensor without its numbers."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def create(path: Path, tensors: Mapping[str, TensorDescription], metadata: Mapping[str, str]) -> dict[str, Tensor]:
    """Make the file; what is written into the tensors returned is written into it, and is there once it is synced.

    Args:
        path: a new file.
        tensors: by name.
        metadata: kept in the header.

    Raises:
        OSError: the disk has no room for all of it.
    """
    # Wide types first, as the library does it: every tensor then begins at a multiple of its numbers' size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offsets: dict[str, int] = {}
    end = 0
    for name in order:
        each = tensors[name]
        offsets[name], end = end, end + each.bytes
        entries[name] = {"dtype": NAMES[each.dtype], "shape": each.shape, "data_offsets": (offsets[name], end)}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header = text + b" " * (-len(text) % 8)
    begin = 8 + len(header)
    with path.open("w+b") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, begin + end)  # a full disk is told here, not by a signal later on
        view = mmap.mmap(file.fileno(), begin + end)
    return {name: _view(view, begin + offsets[name], tensors[name]) for name in order}


def read_metadata(path: Path) -> dict[str, str] | None:
    """What :func:`create` was given to keep; None where the file is no safetensors file."""
    try:
        with path.open("rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            if size > min(path.stat().st_size, 10**8):  # the most that the format allows
                return None
            return dict(json.loads(file.read(size)).get("__metadata__", {}))
    except (struct.error, ValueError, AttributeError, TypeError):
        return None


def _view(memory: mmap.mmap, begin: int, described: TensorDescription) -> Tensor:
    count = math.prod(described.shape)
    if not count:
        return torch.empty(described.shape, dtype=described.dtype)
    return torch.frombuffer(memory, dtype=described.dtype, count=count, offset=begin).view(described.shape)
