"""Moves and swaps whole tables between devices; each device then refills its fast memory with the tables it holds.

What a table costs a device depends on the other tables there: fast memory is worth more where it is short. Its *price*,
the seconds that one more byte would save, gives to first order what a table would cost on another device. So only a few
of thousands of possible moves and swaps need to be evaluated exactly.

Shape legend: n tables, k devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.planning.recshard.filling import Demand, load

Bins = npt.NDArray[np.int64]

ROUNDS, TRIES = 200, 12
"""The most moves and swaps made, and the number of candidates evaluated exactly for each."""


@dataclass(frozen=True, slots=True)
class Devices:
    """The tables to place, and the devices' resources for them.

    Attributes:
        demands: the demand of each table, n.
        fast: bytes of fast memory of each device, k.
        total: bytes of both memories of each device, k.
        before: seconds of a step that each device needs for other tables, k.
    """

    demands: Sequence[Demand]
    fast: Sequence[float]
    total: Sequence[float]
    before: Sequence[float]

    def load(self, device: int, tables: Sequence[int]) -> tuple[float, float]:
        """Returns (seconds, price of fast memory) of a device that holds these tables."""
        seconds, price = load([self.demands[table] for table in tables], self.fast[device])
        return self.before[device] + seconds, price


@dataclass(frozen=True, slots=True)
class _Swap:
    """A table of the slowest device moves to another device, and possibly one of that device's moves back in return.

    Attributes:
        table: the table that leaves the slowest device.
        returned: the table that moves there in return; None for a plain move.
        device: the other device.
    """

    table: int
    returned: int | None
    device: int


def improved_by_swaps(devices: Devices, bins: Sequence[int]) -> tuple[int, ...]:
    """Improves ``bins``, a device for each table, by moves and swaps that make the slowest device faster.

    Moves and swaps that exceed a memory are left out.
    """
    found, k = np.array(bins, np.int64), len(devices.fast)
    state = [devices.load(device, np.flatnonzero(found == device).tolist()) for device in range(k)]
    for _ in range(ROUNDS if len(bins) else 0):
        slowest = max(range(k), key=lambda device: state[device][0])
        best, step = state[slowest][0] * (1 - 1e-9), None
        for swap in _promising_swaps(devices, found, state, slowest):
            other = _applied(found, swap, slowest)
            here, there = (
                devices.load(device, np.flatnonzero(other == device).tolist()) for device in (slowest, swap.device)
            )
            if max(here[0], there[0]) < best:
                best, step = max(here[0], there[0]), (other, swap.device, here, there)
        if step is None:
            break
        found, device, state[slowest], state[device] = step
    return tuple(found.tolist())


def _applied(bins: Bins, swap: _Swap, slowest: int) -> Bins:
    other = bins.copy()
    other[swap.table] = swap.device
    if swap.returned is not None:
        other[swap.returned] = slowest
    return other


def _promising_swaps(devices: Devices, bins: Bins, state: Sequence[tuple[float, float]], slowest: int) -> list[_Swap]:
    """Returns the most promising moves and swaps, estimated at the current prices of fast memory."""
    k, n = len(devices.fast), len(bins)
    loads_K, prices_K = (np.array(each) for each in zip(*state, strict=True))
    costs_NK = np.stack([demand.priced(prices_K) for demand in devices.demands])
    sizes_N = np.array([demand.total_bytes for demand in devices.demands], np.float64)
    buffers_N = np.array([demand.buffer_bytes for demand in devices.demands], np.float64)
    free_K = devices.total - np.bincount(bins, sizes_N, k)
    fast_K = devices.fast - np.bincount(bins, buffers_N, k)
    others = np.flatnonzero(bins != slowest)
    empty = np.array([device for device in range(k) if device != slowest])
    # What comes back in return: a table of another device, or nothing.
    returned_M = np.concatenate([others, np.full(len(empty), n)])
    device_M = np.concatenate([bins[others], empty])
    sizes_M, buffers_M = (np.append(each, 0.0)[returned_M] for each in (sizes_N, buffers_N))
    own_M, here_M = (np.vstack([costs_NK, np.zeros(k)])[returned_M, at] for at in (device_M, slowest))
    found: list[tuple[float, int, int]] = []
    for table in np.flatnonzero(bins == slowest).tolist():
        here = loads_K[slowest] - costs_NK[table, slowest] + here_M
        there = loads_K[device_M] + costs_NK[table, device_M] - own_M
        expected = np.maximum(here, there)
        for needs_M, needs, free in ((sizes_M, sizes_N[table], free_K), (buffers_M, buffers_N[table], fast_K)):
            expected[(needs - needs_M > free[device_M]) | (needs_M - needs > free[slowest])] = np.inf
        for place in np.argsort(expected, kind="stable")[:TRIES].tolist():
            if np.isfinite(expected[place]):
                found.append((float(expected[place]), table, place))
    found.sort()
    return [
        _Swap(table, None if returned_M[place] == n else int(returned_M[place]), int(device_M[place]))
        for _, table, place in found[:TRIES]
    ]
