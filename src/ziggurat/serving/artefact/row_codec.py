"""The bytes of a table's row in an export, at each precision.

| Precision | Bytes of a row of D numbers | What they are |
|---|---|---|
| ``fp32`` | 4 D | float32, little-endian, as trained |
| ``fp16`` | 2 D | IEEE half precision, little-endian, rounded to even |
| ``int8`` | 8 + D | ``low`` and ``step`` in float32, then a code a byte: x = low + step · code |
| ``int4`` | 8 + ⌈D/2⌉ | the same with two codes a byte, the first in the lower half |

The grid of ``int8`` goes from the least to the greatest number of the row, that of ``int4`` clips outliers where that
lessens the squared error (:mod:`ziggurat.checkpoint.format.quantise`). Shape legend: U rows, D dim, W bytes of a row.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch

from ziggurat.checkpoint.format.quantise import quantise
from ziggurat.core.errors import ConfigError

Precision = Literal["fp32", "fp16", "int8", "int4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_HEAD = 8
_LARGEST_HALF = float(np.finfo(np.float16).max)


def row_bytes(dim: int, precision: Precision) -> int:
    """Returns W."""
    return {"fp32": 4 * dim, "fp16": 2 * dim, "int8": _HEAD + dim, "int4": _HEAD + (dim + 1) // 2}[precision]


def encode(rows_UD: Floats, precision: Precision, where: str, first: int = 0) -> Bytes:
    """Returns the bytes of rows, (U, W).

    Args:
        rows_UD: finite numbers.
        precision: how they are stored.
        where: the table, for messages.
        first: the id of the first row, for messages.

    Raises:
        ConfigError: a number is not finite, or beyond what ``fp16`` can hold; the message names the row.
    """
    rows_UD = np.ascontiguousarray(rows_UD, "<f4")
    limit = _LARGEST_HALF if precision == "fp16" else np.inf
    with np.errstate(invalid="ignore"):
        fits_U = (np.abs(rows_UD) <= limit).all(axis=1) & np.isfinite(rows_UD).all(axis=1)
    if not fits_U.all():
        row = int(np.argmin(fits_U))
        worst = rows_UD[row][np.argmax(np.where(np.isnan(rows_UD[row]), np.inf, np.abs(rows_UD[row])))]
        raise ConfigError(
            f"{where}, row {first + row:,}: holds {worst:g}, which {precision} cannot store",
            "choose fp32 or int8" if np.isfinite(worst) else "choose another checkpoint",
        )
    if precision == "fp32":
        return rows_UD.view(np.uint8)
    if precision == "fp16":
        return rows_UD.astype("<f2").view(np.uint8)
    found = quantise(torch.from_numpy(rows_UD), 8 if precision == "int8" else 4)
    low, step, codes = (found[name].numpy() for name in ("low", "step", "codes"))
    heads = np.stack([low, step], axis=1).astype("<f4").view(np.uint8)
    return np.concatenate([heads, codes], axis=1)


def decode(stored_UW: Bytes, dim: int, precision: Precision) -> Floats:
    """Returns the numbers of stored rows, (U, D); of ``fp32`` without a copy if the rows are contiguous."""
    if precision == "fp32":
        return np.ascontiguousarray(stored_UW).view("<f4").astype(np.float32, copy=False)
    if precision == "fp16":
        return np.ascontiguousarray(stored_UW).view("<f2").astype(np.float32)
    heads = np.ascontiguousarray(stored_UW[:, :_HEAD]).view("<f4")
    codes = stored_UW[:, _HEAD:]
    if precision == "int4":
        halves = np.empty((len(codes), 2 * codes.shape[1]), np.uint8)
        halves[:, ::2], halves[:, 1::2] = codes & 15, codes >> 4
        codes = halves[:, :dim]
    rows_UD = codes.astype(np.float32)
    rows_UD *= heads[:, 1:]
    rows_UD += heads[:, :1]
    return rows_UD
