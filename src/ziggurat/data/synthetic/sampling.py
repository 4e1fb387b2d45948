"""Random draws that are the same on every machine: raw 64-bit streams, quantile tables, arithmetic that rounds alike.

Each column of each chunk owns a stream named by (seed, purpose, chunk, column), so any chunk can be made by itself, in
any order, on any thread. A distribution is a table of its quantile function at 65,536 knots, read with linear
interpolation: one gather instead of a power or a logarithm for each draw.
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
    """What a stream is for; part of its name, so never renumbered."""

    VALUES = 0
    MISSING = 1
    LENGTHS = 2
    LABELS = 3
    EFFECTS = 4
    WEIGHTS = 5
    TIMES = 6


def random_bits(count: int, seed: int, purpose: Purpose, chunk: int, column: int) -> Bits:
    """``count`` uniform 64-bit words of the named stream (SFC64)."""
    stream = np.random.SFC64(np.random.SeedSequence([seed, int(purpose), chunk, column]))
    return stream.random_raw(count)


def uniforms(bits: Bits) -> Floats:
    """Uniform in [0, 1), from the top 53 bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def normals(count: int, seed: int, purpose: Purpose, chunk: int, column: int) -> Floats32:
    """Nearly normal, mean 0, variance 1, within ±3.5: the sum of a word's four 16-bit parts. Exact arithmetic."""
    parts = random_bits(count, seed, purpose, chunk, column).view(np.uint16).reshape(count, 4)
    total = parts.sum(axis=1, dtype=np.int64) - 2 * 65_535
    return (total * (1.0 / np.sqrt(4 * (65_536.0**2 - 1) / 12))).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Quantiles:
    """A quantile function: values at ``KNOTS`` + 1 evenly spaced probabilities, linear in between."""

    knots: Floats
    steps: Floats

    @classmethod
    def of(cls, values: Floats) -> Quantiles:
        assert values.shape == (KNOTS + 1,)
        return cls(np.ascontiguousarray(values[:-1]), np.diff(values))

    def __call__(self, bits: Bits) -> Floats:
        """Draws, (n,) words -> (n,) values."""
        knot = (bits >> np.uint64(48)).astype(np.int64)
        within = ((bits & np.uint64(0xFFFFFFFFFFFF)) >> np.uint64(16)).astype(np.float64) * 2.0**-32
        return self.knots[knot] + self.steps[knot] * within


def zipf_ranks(cardinality: int, exponent: float) -> Quantiles:
    """Ranks 0 … cardinality - 1 after rounding to the nearest integer; P(rank k) ∝ (k + 1)^-exponent.

    Exact for the first 65,536 ranks; beyond, the sum is an integral, equal to nine digits. ``exponent`` 0 is uniform.
    """
    head = min(cardinality, KNOTS)
    mass = np.cumsum(np.arange(1, head + 1, dtype=np.float64) ** -exponent)
    edges = np.arange(head + 1) + 0.5  # rank k lies between edges k and k + 1
    low, high = float(edges[-1]), cardinality + 0.5
    power = 1 - exponent
    logarithmic = abs(power) < 1e-9
    tail = math.log(high / low) if logarithmic else (high**power - low**power) / power
    wanted = np.linspace(0, mass[-1] + tail, KNOTS + 1)
    beyond = np.maximum(wanted - mass[-1], 0)
    values = np.interp(wanted, np.concatenate([[0.0], mass]), edges)
    continued = low * np.exp(beyond) if logarithmic else np.maximum(low**power + power * beyond, 0) ** (1 / power)
    return Quantiles.of(np.where(beyond > 0, continued, values) - 1)


def ranks(quantiles: Quantiles, bits: Bits, cardinality: int) -> Integers:
    """Zipf draws, 0 the most frequent."""
    return np.clip(np.floor(quantiles(bits) + 0.5), 0, cardinality - 1).astype(np.int64)


def normal_scores() -> Floats:
    """The standard normal's quantiles at the knots, the two infinite ends cut to ±4.5."""
    normal = NormalDist()
    inner = [normal.inv_cdf(k / KNOTS) for k in range(1, KNOTS)]
    return np.array([-4.5, *inner, 4.5])


def spread_ids(rank: Integers, cardinality: int) -> Integers:
    """A permutation of [0, cardinality) that scatters neighbouring ranks, so that ids do not tell their frequency."""
    stride = max(1, int(cardinality * 0.6180339887498949))
    while math.gcd(stride, cardinality) != 1:
        stride += 1
    if cardinality < 2**31:
        return (rank * stride + cardinality // 3) % cardinality
    # Beyond 32 bits the product would overflow: split the rank, whose high part is small.
    high, low = rank >> 20, rank & 0xFFFFF
    shifted = (stride << 20) % cardinality
    return (high * (shifted % cardinality) % cardinality + low * stride % cardinality + cardinality // 3) % cardinality
