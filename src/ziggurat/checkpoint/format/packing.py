"""Packs codes of 2, 3, 4, 8 or 16 bits into the bytes of a row, and unpacks them.

A row's bytes are a little-endian stream of bits: code i of n bits occupies bits [i·n, (i+1)·n), where bit b is bit
b mod 8 of byte b div 8, counted from the least significant. A row is padded with zeros to whole bytes,
``code_bytes`` = ⌈D·n/8⌉, so that no byte belongs to two rows. For 16 bits these are little-endian 16-bit integers.

The pattern of bytes and codes repeats where both end together: after 4 codes of 2 bits, 8 of 3, 2 of 4. Byte k of such
a group receives the bits of code i that fall into it, shifted by i·n − 8·k. That is done for many rows at a time, on
transposed arrays with a row's codes in a column, so that every operation runs along contiguous memory.

Shape legend: U rows, D dim, K bytes of a row's codes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

CodeBits = Literal[2, 3, 4, 8, 16]

Bytes = NDArray[np.uint8]
Codes = NDArray[Any]
"""uint8, or uint16 for 16 bits."""

_CHUNK_NUMBERS = 9 * 2**12
"""How many numbers are processed at once. They and three temporaries of their size fit into a core's cache. The factor
9 keeps the length of a column from being a power of two, as D often is: transposing would then use only a few of the
cache's sets."""


def code_bytes(dim: int, bits: CodeBits) -> int:
    """Returns the bytes of a row's codes, ⌈D·bits/8⌉."""
    return (dim * bits + 7) // 8


def pack(codes_UD: Tensor, bits: CodeBits) -> Tensor:
    """Packs codes 0 … 2ⁿ−1 of any integer dtype into bytes, uint8 (U, K)."""
    assert not codes_UD.numel() or (int(codes_UD.min()) >= 0 and int(codes_UD.max()) < 2**bits), "codes beyond bits"
    rows, dim = codes_UD.shape
    bytes_UK = np.empty((rows, code_bytes(dim, bits)), np.uint8)
    for chunk in chunks(rows, dim):
        bytes_UK[chunk] = pack_columns(np.ascontiguousarray(codes_UD[chunk].numpy().T, code_type(bits)), bits).T
    return torch.from_numpy(bytes_UK)


def unpack(bytes_UK: Tensor, bits: CodeBits, dim: int) -> Tensor:
    """Returns the codes (U, ``dim``) that :func:`pack` packed into ``bytes_UK``, uint8, or int32 for 16 bits."""
    rows = len(bytes_UK)
    codes_UD = np.empty((rows, dim), np.uint8 if bits <= 8 else np.int32)
    for chunk in chunks(rows, dim):
        codes_UD[chunk] = unpack_columns(np.ascontiguousarray(bytes_UK[chunk].numpy().T), bits, dim).T
    return torch.from_numpy(codes_UD)


def code_type(bits: CodeBits) -> np.dtype[Any]:
    """Returns the dtype of unpacked codes."""
    return np.dtype(np.uint8 if bits <= 8 else np.uint16)


def pack_columns(codes_DU: Codes, bits: CodeBits) -> Bytes:
    """Packs as :func:`pack` does, with transposed arrays: (D, U) -> (K, U)."""
    if bits == 8:
        return codes_DU
    dim, rows = codes_DU.shape
    codes, byte_count, overlaps = _group(bits)
    bytes_KU = np.zeros((code_bytes(dim, bits), rows), np.uint8)
    for byte, code, shift in overlaps:
        some_DU = codes_DU[code::codes]
        shifted_DU = some_DU << shift if shift >= 0 else some_DU >> -shift
        # The conversion to uint8 cuts off the bits that belong to the next byte.
        bytes_KU[byte::byte_count][: len(some_DU)] |= shifted_DU.astype(np.uint8, copy=False)
    return bytes_KU


def unpack_columns(bytes_KU: Bytes, bits: CodeBits, dim: int) -> Codes:
    """Unpacks as :func:`unpack` does, with transposed arrays: (K, U) -> (D, U), of dtype :func:`code_type`."""
    if bits == 8:
        return bytes_KU
    codes, byte_count, overlaps = _group(bits)
    codes_DU = np.zeros((dim, bytes_KU.shape[1]), code_type(bits))
    for byte, code, shift in overlaps:
        some_DU = codes_DU[code::codes]
        from_DU = bytes_KU[byte::byte_count][: len(some_DU)].astype(codes_DU.dtype, copy=False)
        some_DU |= from_DU >> shift if shift >= 0 else from_DU << -shift
    codes_DU &= 2**bits - 1
    return codes_DU


def chunks(rows: int, dim: int) -> Iterator[slice]:
    """Yields consecutive slices of ``rows`` rows, each of at most 36,864 numbers, or of one row if it has more."""
    size = max(1, _CHUNK_NUMBERS // dim)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def _group(bits: int) -> tuple[int, int, list[tuple[int, int, int]]]:
    """Returns codes and bytes per repeating group, and (byte, code, left shift) for each overlap of the two."""
    common = gcd(bits, 8)
    codes, byte_count = 8 // common, bits // common
    pairs = [(byte, code, code * bits - byte * 8) for byte in range(byte_count) for code in range(codes)]
    return codes, byte_count, [pair for pair in pairs if -bits < pair[2] < 8]
