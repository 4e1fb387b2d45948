"""Whole tables moved and swapped between devices, each of which fills its fast memory anew with what it then holds.

What a table costs a device depends on the others there: fast memory is worth more where it is short. Its *price*, the
seconds that one byte more would save, tells to first order what a table would cost elsewhere, so that of thousands of
exchanges a few are worked out.

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
"""Exchanges that are made at most, and those that are worked out for each."""


@dataclass(frozen=True, slots=True)
class Devices:
    """What is to be placed, and what devices have for it.

    Attributes:
        demands: of each table, n.
        fast: bytes of fast memory of each device, k.
        every: bytes of both memories of each device, k.
        before: seconds of a step that each device needs for other tables, k.
    """

    demands: Sequence[Demand]
    fast: Sequence[float]
    every: Sequence[float]
    before: Sequence[float]

    def load(self, device: int, tables: Sequence[int]) -> tuple[float, float]:
        """(seconds, price) of a device that holds these tables."""
        seconds, price = load([self.demands[table] for table in tables], self.fast[device])
        return self.before[device] + seconds, price


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A table of the slowest device that goes to another, and perhaps one that comes back for it."""

    table: int
    back: int | None
    device: int


def exchanged(devices: Devices, bins: Sequence[int]) -> tuple[int, ...]:
    """``bins``, a device for each table, after exchanges with the slowest device as long as they make it faster.

    Memories hold what they held: an exchange without room is none.
    """
    found, k = np.array(bins, np.int64), len(devices.fast)
    state = [devices.load(device, np.flatnonzero(found == device).tolist()) for device in range(k)]
    for _ in range(ROUNDS if len(bins) else 0):
        slowest = max(range(k), key=lambda device: state[device][0])
        best, step = state[slowest][0] * (1 - 1e-9), None
        for exchange in _promising(devices, found, state, slowest):
            other = _made(found, exchange, slowest)
            here, there = (
                devices.load(device, np.flatnonzero(other == device).tolist()) for device in (slowest, exchange.device)
            )
            if max(here[0], there[0]) < best:
                best, step = max(here[0], there[0]), (other, exchange.device, here, there)
        if step is None:
            break
        found, device, state[slowest], state[device] = step
    return tuple(found.tolist())


def _made(bins: Bins, exchange: _Exchange, slowest: int) -> Bins:
    other = bins.copy()
    other[exchange.table] = exchange.device
    if exchange.back is not None:
        other[exchange.back] = slowest
    return other


def _promising(devices: Devices, bins: Bins, state: Sequence[tuple[float, float]], slowest: int) -> list[_Exchange]:
    """The exchanges of which most is expected, at the prices that fast memory has now."""
    k, n = len(devices.fast), len(bins)
    loads_K, prices_K = (np.array(each) for each in zip(*state, strict=True))
    costs_NK = np.stack([demand.priced(prices_K) for demand in devices.demands])
    sizes_N = np.array([demand.every_bytes for demand in devices.demands], np.float64)
    buffers_N = np.array([demand.buffer_bytes for demand in devices.demands], np.float64)
    free_K = devices.every - np.bincount(bins, sizes_N, k)
    fast_K = devices.fast - np.bincount(bins, buffers_N, k)
    others = np.flatnonzero(bins != slowest)
    empty = np.array([device for device in range(k) if device != slowest])
    # what comes back: a table of another device, or nothing
    back_M = np.concatenate([others, np.full(len(empty), n)])
    device_M = np.concatenate([bins[others], empty])
    sizes_M, buffers_M = (np.append(each, 0.0)[back_M] for each in (sizes_N, buffers_N))
    own_M, here_M = (np.vstack([costs_NK, np.zeros(k)])[back_M, at] for at in (device_M, slowest))
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
        _Exchange(table, None if back_M[place] == n else int(back_M[place]), int(device_M[place]))
        for _, table, place in found[:TRIES]
    ]
