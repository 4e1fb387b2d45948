"""Which rows of a tier a rank has touched, as one bit a row.

Rows are copied because most batches touch them, so that a bit a row is shorter than a list of those touched: four bytes
a number pay only where fewer than one row in 32 is touched. And its size is known, so no sizes are sent before it.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def padded(size: int) -> int:
    """Returns ``size`` rounded up to whole bytes of flags."""
    return -(-size // 8) * 8


def packed(flags: Tensor) -> Tensor:
    """Returns flags (…, 8·n), of bool, as bytes (…, n), the first flag in a byte's highest bit."""
    if flags.device.type == "cpu":
        return torch.from_numpy(np.packbits(flags.numpy(), axis=-1))
    return packed_by_torch(flags)


def unpacked(bits: Tensor) -> Tensor:
    """Returns bytes (…, n) as flags (…, 8·n), of bool: the inverse of :func:`packed`."""
    if bits.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(bits.numpy(), axis=-1).view(np.bool_))
    return unpacked_by_torch(bits)


def either(bits: Tensor) -> Tensor:
    """Returns bytes (n, …) of flags as bytes (…): which flags any of the n have set."""
    found = bits[0].clone()
    for each in bits[1:]:
        found |= each
    return found


def packed_by_torch(flags: Tensor) -> Tensor:
    """Is :func:`packed` on any device."""
    places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=flags.device)
    return (flags.unflatten(-1, (-1, 8)).to(torch.uint8) * places).sum(dim=-1, dtype=torch.uint8)


def unpacked_by_torch(bits: Tensor) -> Tensor:
    """Is :func:`unpacked` on any device."""
    places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=bits.device)
    return (bits.unsqueeze(-1) & places).ne(0).flatten(-2)
