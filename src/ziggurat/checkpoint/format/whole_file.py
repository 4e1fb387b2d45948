"""Creates a safetensors file whose tensors are filled in place, so that it may be larger than memory.

``safetensors.save_file`` needs all tensors at once. Here the header is written first, from names, dtypes and shapes
alone, and the file gets its final length. Its tensors are views of the memory-mapped file, which the operating system
writes out as they fill.
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

DTYPE_NAMES = {
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
"""Dtype -> its name in the safetensors format."""


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """Dtype and shape of a tensor."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


def mapped_safetensors(
    path: Path, tensors: Mapping[str, TensorDescription], metadata: Mapping[str, str]
) -> dict[str, Tensor]:
    """Creates the file and returns its tensors, which are views of it. Their content is durable once it is synced.

    Args:
        path: path of the new file.
        tensors: name -> dtype and shape.
        metadata: stored in the header.

    Raises:
        OSError: the disk has too little free space for the file.
    """
    # Wide dtypes first, as in the library, so that every tensor begins at a multiple of its element size.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    offsets: dict[str, int] = {}
    end = 0
    for name in order:
        each = tensors[name]
        offsets[name], end = end, end + each.bytes
        entries[name] = {"dtype": DTYPE_NAMES[each.dtype], "shape": each.shape, "data_offsets": (offsets[name], end)}
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header = text + b" " * (-len(text) % 8)
    begin = 8 + len(header)
    with path.open("w+b") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.flush()
        os.posix_fallocate(file.fileno(), 0, begin + end)  # a full disk raises here, instead of a signal later
        view = mmap.mmap(file.fileno(), begin + end)
    return {name: _view(view, begin + offsets[name], tensors[name]) for name in order}


def _view(memory: mmap.mmap, begin: int, description: TensorDescription) -> Tensor:
    count = math.prod(description.shape)
    if not count:
        return torch.empty(description.shape, dtype=description.dtype)
    return torch.frombuffer(memory, dtype=description.dtype, count=count, offset=begin).view(description.shape)
