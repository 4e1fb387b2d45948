"""Draws random numbers that are equal on every machine, from raw 64-bit streams and quantile tables.

Each column of each chunk has its own stream, identified by (seed, purpose, chunk, column), so chunks can be made
independently, in any order, on any thread. A distribution is a table of its quantile function at 65,536 knots with
linear interpolation, which needs one gather per draw instead of a power or a logarithm. All arithmetic rounds
identically on every machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

KNOTS = 1 << 16

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]
Bits = npt.NDArray[np.uint64]


class Purpose(IntEnum):
    """The purpose of a stream. The numbers identify streams and must never change."""

    VALUES = 0
    MISSING = 1
    LENGTHS = 2
    LABELS = 3
    EFFECTS = 4
    WEIGHTS = 5
    TIMES = 6


def random_bits(count: int, seed: int, purpose: Purpose, chunk: int, column: int) -> Bits:
    """Returns the first ``count`` uniform 64-bit words of the identified stream (SFC64)."""
    stream = np.random.SFC64(np.random.SeedSequence([seed, int(purpose), chunk, column]))
    return stream.random_raw(count)


def uniforms(bits: Bits) -> Floats:
    """Converts words to uniform numbers in [0, 1), using the top 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(count: int, seed: int, purpose: Purpose, chunk: int, column: int) -> Floats32:
    """Returns nearly normal draws (mean 0, variance 1, within ±3.5): exact sums of a word's four 16-bit parts."""
    parts = random_bits(count, seed, purpose, chunk, column).view(np.uint16).reshape(count, 4)
    total = parts.sum(axis=1, dtype=np.int64) - 2 * 65_535
    return (total * (1.0 / np.sqrt(4 * (65_536.0**2 - 1) / 12))).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A quantile function: values at ``KNOTS`` + 1 evenly spaced probabilities, linearly interpolated."""

    knots: Floats
    steps: Floats

    @classmethod
    def of(cls, values: Floats) -> Quantiles:
        assert values.shape == (KNOTS + 1,)
        return cls(np.ascontiguousarray(values[:-1]), np.diff(values))

    def __call__(self, bits: Bits) -> Floats:
        """Draws values: (n,) words -> (n,) values."""
        knot = (bits >> np.uint64(48)).astype(np.int64)
        fraction = ((bits & np.uint64(0xFFFFFFFFFFFF)) >> np.uint64(16)).astype(np.float64) * 2.0**-32
        return self.knots[knot] + self.steps[knot] * fraction


def zipf_ranks(cardinality: int, exponent: float) -> Quantiles:
    """Returns the quantiles of ranks 0 … cardinality - 1, to be rounded to integers; P(rank k) ∝ (k + 1)^-exponent.

    Exact for the first 65,536 ranks. For further ranks an integral, accurate to nine digits, replaces the sum.
    ``exponent`` 0 is uniform.
    """
    head = min(cardinality, KNOTS)
    mass = np.cumsum(np.arange(1, head + 1, dtype=np.float64) ** -exponent)
    edges = np.arange(head + 1) + 0.5  # rank k is between edges k and k + 1
    low, high = float(edges[-1]), cardinality + 0.5
    power = 1 - exponent
    logarithmic = abs(power) < 1e-9
    tail = math.log(high / low) if logarithmic else (high**power - low**power) / power
    target_mass = np.linspace(0, mass[-1] + tail, KNOTS + 1)
    tail_mass = np.maximum(target_mass - mass[-1], 0)
    values = np.interp(target_mass, np.concatenate([[0.0], mass]), edges)
    continued = low * np.exp(tail_mass) if logarithmic else np.maximum(low**power + power * tail_mass, 0) ** (1 / power)
    return Quantiles.of(np.where(tail_mass > 0, continued, values) - 1)


def ranks(quantiles: Quantiles, bits: Bits, cardinality: int) -> Integers:
    """Draws ranks; 0 is the most frequent."""
    return np.clip(np.floor(quantiles(bits) + 0.5), 0, cardinality - 1).astype(np.int64)


def normal_scores() -> Floats:
    """Returns the standard normal's quantiles at the knots, with the two infinite ends replaced by ±4.5."""
    normal = NormalDist()
    inner = [normal.inv_cdf(k / KNOTS) for k in range(1, KNOTS)]
    return np.array([-4.5, *inner, 4.5])


def permute_ids(rank: Integers, cardinality: int) -> Integers:
    """Permutes [0, cardinality) so that neighbouring ranks are scattered, and ids do not reveal their frequency."""
    stride = max(1, int(cardinality * 0.6180339887498949))
    while math.gcd(stride, cardinality) != 1:
        stride += 1
    if cardinality < 2**31:
        return (rank * stride + cardinality // 3) % cardinality
    # Beyond 32 bits the product would overflow: split the rank, whose high part is small.
    high, low = rank >> 20, rank & 0xFFFFF
    shifted = (stride << 20) % cardinality
    return (high * (shifted % cardinality) % cardinality + low * stride % cardinality + cardinality // 3) % cardinality
