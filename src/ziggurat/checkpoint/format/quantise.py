"""Quantises rows of a table to 2, 3, 4, 8 or 16 bits per value, for checkpoints only; training never uses them.

The values of a row are mapped to a grid of 2ⁿ evenly spaced values, x ≈ low + step·code. low and step are stored in
float32, next to the packed codes (``packing``). There are three methods to choose the grid, after Check-N-Run
(Eisenman et al., NSDI 2022):

- *symmetric*: low = −max|x|, step = 2·max|x| / (2ⁿ−1);
- *asymmetric*: low = min x, step = (max x − min x) / (2ⁿ−1);
- *adaptive*: with few codes it pays to clip outliers. Beginning with min and max, a greedy search takes 1/25 of the
  range off the lower or the upper end, whichever leaves the smaller L2 error, 15 times, and keeps the best grid found.
  With 8 bits and more it equals *asymmetric*.

16 bits are codes of a grid too, not float16. The grid's spacing is about max|x|·2⁻¹⁵ or less over the whole row.
float16's spacing is up to max|x|·2⁻¹⁰ (it is finer only below a thirty-second of max|x|); it overflows at 65,520, and
loses digits below 6·10⁻⁵, where optimizers' sums of squares may be.

For any finite values: |error| ≤ step/2, up to float32's rounding, for values that the search did not clip; a constant
row is restored exactly; the adaptive grid of a row is never worse than the asymmetric one; a row's bytes depend on that
row alone. For the last property, sums are taken in a fixed order, and no product is fused with a sum.

The code uses NumPy rather than torch: it never takes the threads that train meanwhile, and its operations on arrays
that fit into a core's cache cost less. Shape legend: U rows, D dim. Inside, arrays are transposed, (D, U), so that
operations run along contiguous memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ziggurat.checkpoint.format.packing import CodeBits, chunks, code_bytes, code_type, pack_columns, unpack_columns
from ziggurat.core.errors import DataError

Bits = Literal[2, 3, 4, 8, 16, 32]
Method = Literal["symmetric", "asymmetric", "adaptive"]
Floats = NDArray[np.float32]

_SEARCHED_BITS = 4
"""With up to this many bits, *adaptive* searches for a narrower range."""
_BINS = 25
"""Number of bins into which a row's range is divided. This and the next constant are the paper's."""
_MAX_BINS_REMOVED = 15
"""The search takes off at most this many bins: 0.6 of the range."""
_MAX_UNSCALED = float(np.finfo(np.float32).max) / 4
"""For values up to this magnitude, their differences and the end of their grid fit into float32."""


def row_bytes(dim: int, bits: Bits) -> int:
    """Returns the stored bytes of a row, low and step included; for D = 64: 24, 32, 40, 72, 136 and 256."""
    return 4 * dim if bits == 32 else code_bytes(dim, bits) + 8


def quantise(rows_UD: Tensor, bits: Bits, method: Method = "adaptive") -> dict[str, Tensor]:
    """Quantises rows to ``bits`` bits per value.

    Args:
        rows_UD: float32 on the CPU, D ≥ 1; not changed.
        bits: bits per value.
        method: how the grid of a row is chosen.

    Returns:
        ``codes`` uint8 (U, ⌈D·bits/8⌉), ``low`` and ``step`` float32 (U,): a value is low + step·code. For 32 bits
        only ``rows``: ``rows_UD`` itself, not copied, NaN and infinities included.

    Raises:
        DataError: a row has NaN or an infinity, for which there is no grid; the message names the first. Find such rows
            with :func:`finite_rows` before.
    """
    assert rows_UD.dtype == torch.float32, rows_UD.dtype
    assert rows_UD.dim() == 2, rows_UD.shape
    assert rows_UD.shape[1] >= 1, rows_UD.shape
    if bits == 32:
        return {"rows": rows_UD.detach()}
    rows, dim = rows_UD.shape
    codes_UK = np.empty((rows, code_bytes(dim, bits)), np.uint8)
    low_U, step_U = np.empty(rows, np.float32), np.empty(rows, np.float32)
    for chunk in chunks(rows, dim):
        values_DU = rows_UD[chunk].detach().numpy().T.copy()
        least_U, most_U = values_DU.min(0) + 0.0, values_DU.max(0) + 0.0  # + 0 turns −0 into 0
        _check_finite(least_U, most_U, chunk.start, bits)
        wide_U = np.maximum(-least_U, most_U) > _MAX_UNSCALED
        shrink_U = np.where(wide_U, np.float32(0.25), np.float32(1))
        if wide_U.any():
            values_DU, least_U, most_U = values_DU * shrink_U, least_U * shrink_U, most_U * shrink_U
        low_U[chunk], step_U[chunk] = _grid(values_DU, least_U, most_U, bits, method)
        codes_DU = _to_codes(values_DU, low_U[chunk], step_U[chunk], bits, out=values_DU).astype(code_type(bits))
        codes_UK[chunk] = pack_columns(codes_DU, bits).T
        if wide_U.any():
            low_U[chunk] /= shrink_U
            step_U[chunk] /= shrink_U
    return {name: torch.from_numpy(part) for name, part in (("codes", codes_UK), ("low", low_U), ("step", step_U))}


def dequantise(parts: Mapping[str, Tensor], bits: Bits, dim: int) -> Tensor:
    """Restores the rows, float32 (U, ``dim``), from the tensors that :func:`quantise` returned.

    Raises:
        DataError: a tensor is missing, or of another dtype or shape than ``bits`` and ``dim`` require; the message
            names it.
    """
    _check_parts(parts, bits, dim)
    if bits == 32:
        return parts["rows"]
    codes_UK, all_low_U, all_step_U = (parts[name].numpy() for name in ("codes", "low", "step"))
    rows_UD = np.empty((len(codes_UK), dim), np.float32)
    for chunk in chunks(len(rows_UD), dim):
        low_U, step_U = all_low_U[chunk], all_step_U[chunk]
        values_DU = unpack_columns(np.ascontiguousarray(codes_UK[chunk].T), bits, dim).astype(np.float32)
        with np.errstate(over="ignore"):
            shrink_U = np.where(np.isfinite(step_U * np.float32(2**bits - 1) + low_U), np.float32(1), np.float32(0.25))
        values_DU *= step_U * shrink_U
        values_DU += low_U * shrink_U
        if (shrink_U < 1).any():
            values_DU = np.where(shrink_U < 1, values_DU.clip(-_MAX_UNSCALED, _MAX_UNSCALED), values_DU) / shrink_U
        rows_UD[chunk] = values_DU.T
    return torch.from_numpy(rows_UD)


def finite_rows(rows_UD: Tensor) -> Tensor:
    """Returns which rows have neither NaN nor infinities and so can be quantised, bool (U,)."""
    finite_U = np.empty(len(rows_UD), np.bool_)
    for chunk in chunks(*rows_UD.shape):
        np.isfinite(rows_UD[chunk].detach().numpy()).all(axis=1, out=finite_U[chunk])
    return torch.from_numpy(finite_U)


def _grid(values_DU: Floats, least_U: Floats, most_U: Floats, bits: CodeBits, method: Method) -> tuple[Floats, Floats]:
    """Returns low and step of each column."""
    levels = 2**bits - 1
    if method == "symmetric":
        top_U = np.maximum(-least_U, most_U)
        varied_U = least_U < most_U  # a constant row is represented exactly without a grid around zero
        least_U, most_U = np.where(varied_U, -top_U, least_U), np.where(varied_U, top_U, most_U)
    step_U = _step(least_U, most_U, levels)
    if method != "adaptive" or bits > _SEARCHED_BITS:
        return least_U, step_U
    search = _Search(values_DU, least_U, most_U, bits)
    low_U, high_U = search.narrower()
    narrow_step_U = _step(low_U, high_U, levels)
    # The search did not round the ends to float32, so the error of the values that will be restored decides.
    better_U = search.error(low_U, narrow_step_U) < search.error(least_U, step_U)
    return np.where(better_U, low_U, least_U), np.where(better_U, narrow_step_U, step_U)


def _step(low_U: Floats, high_U: Floats, levels: int) -> Floats:
    """Returns the least float32 with low + levels·step ≥ high.

    For tiny ranges the float32 nearest to the exact step may fall short by a large factor.
    """
    range_U = high_U.astype(np.float64) - low_U
    step_U = (range_U / levels).astype(np.float32)
    too_small_U = step_U.astype(np.float64) * levels < range_U
    return np.where(too_small_U, np.nextafter(step_U, np.float32(np.inf)), step_U)


def _to_codes(values_DU: Floats, low_U: Floats, step_U: Floats, bits: int, out: Floats) -> Floats:
    """Returns the nearest codes, as whole numbers in float32."""
    np.subtract(values_DU, low_U, out=out)
    np.divide(out, _divisor(step_U), out=out)
    np.rint(out, out=out)
    return out.clip(0, 2**bits - 1, out=out)


def _divisor(range_U: Floats) -> Floats:
    """Returns ``range_U`` with 0 replaced by 1, so that it can be divided by."""
    return np.where(range_U > 0, range_U, np.float32(1))


class _Search:
    """The greedy search for a narrower range, for all columns at once, with its working memory.

    After a turn every column has lost the same number of bins, so that a code has the same width in units of a bin in
    all of them. Columns differ only in how many of the bins were taken off at the lower end.
    """

    def __init__(self, values_DU: Floats, least_U: Floats, most_U: Floats, bits: int) -> None:
        self._values_DU, self._least_U, self._most_U, self._bits = values_DU, least_U, most_U, bits
        self._range_U = _divisor(most_U - least_U)
        self._scaled_DU, self._errors_DU = np.empty_like(values_DU), np.empty_like(values_DU)
        self._halves = _halves(self._errors_DU)

    def narrower(self) -> tuple[Floats, Floats]:
        """Returns the ends of the best range found."""
        binned_DU = self._values_DU - self._least_U
        binned_DU /= self._range_U
        binned_DU *= _BINS
        columns = len(self._least_U)
        below_TU, losses_TU = (
            np.zeros((_MAX_BINS_REMOVED + 1, columns), np.float32),
            np.empty((_MAX_BINS_REMOVED + 1, columns), np.float32),
        )
        for turn in range(_MAX_BINS_REMOVED + 1):
            spacing = np.float32((2**self._bits - 1) / (_BINS - turn))  # codes per bin
            below_U = below_TU[turn]
            below_U += below_TU[max(turn - 1, 0)]
            np.multiply(binned_DU, spacing, out=self._scaled_DU)
            self._scaled_DU -= below_U * spacing
            losses_TU[turn] = self._loss()  # turn 0: of the whole range; later: with one more bin off the upper end
            if turn:
                self._scaled_DU -= spacing
                raised_U = self._loss()  # with one more bin off the lower end instead
                below_U += raised_U < losses_TU[turn]
                np.minimum(losses_TU[turn], raised_U, out=losses_TU[turn])
        width_T = np.arange(_BINS, _BINS - _MAX_BINS_REMOVED - 1, -1, dtype=np.float32)
        turn_U = (losses_TU * np.square(width_T)[:, None]).argmin(0)
        bin_U = (self._most_U.astype(np.float64) - self._least_U) / _BINS
        low_U = self._least_U + below_TU[turn_U, np.arange(columns)] * bin_U
        return low_U.astype(np.float32), (low_U + width_T[turn_U] * bin_U).astype(np.float32)

    def error(self, low_U: Floats, step_U: Floats) -> Floats:
        """Returns Σ (restored value − value)² of each column, in units of its range²."""
        restored_DU = _to_codes(self._values_DU, low_U, step_U, self._bits, out=self._errors_DU)
        restored_DU *= step_U
        restored_DU += low_U
        restored_DU -= self._values_DU
        restored_DU /= self._range_U
        return self._sum_of_squares()

    def _loss(self) -> Floats:
        """Returns Σ error² of each column, in units of a code, if the scaled values are rounded to codes."""
        np.rint(self._scaled_DU, out=self._errors_DU)
        self._errors_DU.clip(0, 2**self._bits - 1, out=self._errors_DU)
        self._errors_DU -= self._scaled_DU
        return self._sum_of_squares()

    def _sum_of_squares(self) -> Floats:
        """Returns Σ error² of each column; overwrites the errors."""
        np.multiply(self._errors_DU, self._errors_DU, out=self._errors_DU)
        for upper_DU, lower_DU in self._halves:
            np.add(upper_DU, lower_DU, out=upper_DU)
        return self._errors_DU[0].copy()


def _halves(values_DU: Floats) -> list[tuple[Floats, Floats]]:
    """Returns pairs of slices. Adding the second of each pair to the first, in order, leaves the sums in row 0."""
    pairs: list[tuple[Floats, Floats]] = []
    remaining = len(values_DU)
    while remaining > 1:
        half = remaining // 2
        pairs.append((values_DU[:half], values_DU[remaining - half : remaining]))
        remaining -= half
    return pairs


def _check_finite(least_U: Floats, most_U: Floats, start: int, bits: int) -> None:
    bad_U = ~(np.isfinite(least_U) & np.isfinite(most_U))  # a NaN in a row is both its minimum and its maximum
    if bad_U.any():
        index = int(bad_U.argmax())
        raise DataError(
            f"row {start + index}: its numbers lie between {least_U[index]} and {most_U[index]}, but only finite ones "
            f"can be written in {bits} bits",
            "write such rows in 32 bits",
        )


def _check_parts(parts: Mapping[str, Tensor], bits: Bits, dim: int) -> None:
    expected = {"rows": (torch.float32, (dim,))}
    if bits != 32:
        one_number = (torch.float32, ())
        expected = {"codes": (torch.uint8, (code_bytes(dim, bits),)), "low": one_number, "step": one_number}
    rows = next((len(parts[name]) for name in expected if name in parts), 0)
    for name, (dtype, shape) in expected.items():
        part = parts.get(name)
        if part is None or part.dtype != dtype or part.shape != (rows, *shape):
            found = "none" if part is None else f"{part.dtype} {tuple(part.shape)}"
            raise DataError(
                f"part {name!r} of {rows} rows of {dim} numbers in {bits} bits: got {found}, not {dtype} "
                f"{(rows, *shape)}",
                "take the parts that `quantise` made, with the bits and the dim they were made with",
            )
