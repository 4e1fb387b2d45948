"""The exact sum of floats: nothing is rounded until the sum is read, so the order of summation cannot matter.

Every finite float64 is an integer multiple of 2^-1074, so a sum of them is one integer in that unit. Python integers
have no fixed width and cannot overflow: the loss of a logit of 1e30 and that of a logit of -30 add up in one sum
without either being lost. (Demmel & Nguyen 2013, "Fast reproducible floating-point summation", reach
order-independence with a few floats; this costs a little more and is exact as well.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_SMALLEST_EXPONENT = -1074
_LOW_BITS = 27
_MAX_CHUNK_VALUES = 1 << 24  # 2^24 values below 2^27 sum to below 2^53, where float64 counts exactly


@dataclass(slots=True)
class ExactSum:
    """A running sum; ``units`` counts multiples of 2^-1074."""

    units: int = 0

    def add(self, values_B: npt.NDArray[np.float64]) -> None:
        """Add finite values, shape (B,)."""
        for start in range(0, len(values_B), _MAX_CHUNK_VALUES):
            self.units += _units(values_B[start : start + _MAX_CHUNK_VALUES])

    def merge(self, other: ExactSum) -> None:
        self.units += other.units

    @property
    def value(self) -> float:
        """The sum, correctly rounded to float64; infinite outside the range of float64."""
        try:
            return self.units / (1 << -_SMALLEST_EXPONENT)
        except OverflowError:
            return float("inf") if self.units > 0 else float("-inf")


def _units(values_B: npt.NDArray[np.float64]) -> int:
    """Returns the exact sum in units of 2^-1074.

    Sums the 53-bit integer mantissas per exponent, in two halves that a float64 bincount adds exactly.
    """
    fraction_B, exponent_B = np.frexp(values_B)
    mantissa_B = np.ldexp(fraction_B, 53).astype(np.int64)
    shift_B = exponent_B - 53 - _SMALLEST_EXPONENT
    offset = int(shift_B.min(initial=0))  # negative only for subnormals, whose low mantissa bits are zero
    place_B = shift_B - offset
    total = 0
    for part_B, extra in ((mantissa_B >> _LOW_BITS, _LOW_BITS), (mantissa_B & ((1 << _LOW_BITS) - 1), 0)):
        sums = np.bincount(place_B, weights=part_B.astype(np.float64))
        for place in np.flatnonzero(sums):
            shift = int(place) + offset + extra
            amount = int(sums[place])
            total += amount << shift if shift >= 0 else _exact_right_shift(amount, -shift)
    return total


def _exact_right_shift(amount: int, bits: int) -> int:
    assert amount % (1 << bits) == 0, (amount, bits)
    return amount >> bits
