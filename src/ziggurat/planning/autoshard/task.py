"""The assignment of items to devices, where a device's cost depends on the set of items that it holds.

Shape legend: N items, D devices, E embedding width, A candidate moves and swaps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.planning.autoshard.cost_network import CostNetwork

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Task:
    """An assignment problem.

    Attributes:
        network: predicts the seconds of a device's kernel.
        embedded_NE: the items' embeddings by the network.
        bytes_N: bytes that each item takes of a device's memory.
        exchange_N: seconds that a device spends on exchanging each item's data with other devices.
        free_D: bytes that each device has for the items.
        sums_DE, exchange_D: summed embeddings, and exchange seconds, of what each device holds already.
    """

    network: CostNetwork
    embedded_NE: Floats
    bytes_N: Floats
    exchange_N: Floats
    free_D: Floats
    sums_DE: Floats
    exchange_D: Floats

    @property
    def items(self) -> int:
        return len(self.bytes_N)

    @property
    def devices(self) -> int:
        return len(self.free_D)

    @property
    def single_N(self) -> Floats:  # noqa: N802 - a shape suffix
        """Seconds of each item alone on a device."""
        return self.network.seconds(self.embedded_NE) + self.exchange_N

    def loads(self, device_N: Ints) -> Floats:
        """Returns the seconds of each device, (D,)."""
        sums_DE, exchange_D = self.sums_DE.copy(), self.exchange_D.copy()
        np.add.at(sums_DE, device_N, self.embedded_NE)
        np.add.at(exchange_D, device_N, self.exchange_N)
        return self.network.seconds(sums_DE) + exchange_D

    def seconds(self, device_N: Ints) -> float:
        """Returns the seconds of the slowest device."""
        return float(self.loads(device_N).max())

    def overflow(self, device_N: Ints) -> float:
        """Returns the bytes by which devices exceed their memory, summed over devices."""
        used_D = np.bincount(device_N, self.bytes_N, self.devices)
        return float(np.maximum(used_D - self.free_D, 0).sum())


def greedy(task: Task, order_N: Floats | None = None) -> Ints:
    """Assigns items greedily: the costliest first, each to the device that then takes least, if it has the memory.

    This is the longest-processing-time rule. If no device has enough memory, the one with most free bytes is taken.

    Args:
        task: the assignment problem.
        order_N: key by which items are ordered, falling, instead of their cost; ordered by size they pack better.
    """
    sums_DE, exchange_D, free_D = task.sums_DE.copy(), task.exchange_D.copy(), task.free_D.copy()
    device_N = np.zeros(task.items, np.int64)
    for item in np.argsort(-(task.single_N if order_N is None else order_N), kind="stable"):
        after_D = task.network.seconds(sums_DE + task.embedded_NE[item]) + exchange_D
        left_D = free_D - task.bytes_N[item]
        legal_D = left_D >= 0 if (left_D >= 0).any() else left_D == left_D.max()
        device = int(np.where(legal_D, after_D, np.inf).argmin())
        sums_DE[device] += task.embedded_NE[item]
        exchange_D[device] += task.exchange_N[item]
        free_D[device] -= task.bytes_N[item]
        device_N[item] = device
    return device_N


def improved_by_swaps(task: Task, device_N: Ints, rounds: int = 1000) -> Ints:
    """Improves the assignment by moving items off the slowest device, or swapping them with others, while that helps.

    Each round takes the move or swap that leaves the lowest maximum of the two devices that it changes. No device
    exceeds its memory that did not before.
    """
    device_N = device_N.copy()
    for _ in range(rounds):
        better = _best_swap(task, device_N)
        if better is None:
            break
        device_N = better
    return device_N


def _best_swap(task: Task, device_N: Ints) -> Ints | None:
    sums_DE, exchange_D = task.sums_DE.copy(), task.exchange_D.copy()
    np.add.at(sums_DE, device_N, task.embedded_NE)
    np.add.at(exchange_D, device_N, task.exchange_N)
    loads_D = task.network.seconds(sums_DE) + exchange_D
    free_D = task.free_D - np.bincount(device_N, task.bytes_N, task.devices)
    full = int(loads_D.argmax())
    inside, outside = np.flatnonzero(device_N == full), np.flatnonzero(device_N != full)
    # Candidates: an item of the slowest device goes to another device, alone (-1) or in return for one of its items.
    others = np.array([device for device in range(task.devices) if device != full], np.int64)
    moved = np.concatenate([np.repeat(inside, len(others)), np.repeat(inside, len(outside))])
    back = np.concatenate([np.full(len(inside) * len(others), -1), np.tile(outside, len(inside))])
    place = np.concatenate([np.tile(others, len(inside)), np.tile(device_N[outside], len(inside))])
    if not len(moved):
        return None
    swaps = back >= 0
    gain = task.bytes_N[moved] - np.where(swaps, task.bytes_N[back], 0)
    legal = (gain <= np.maximum(free_D[place], 0)) & (-gain <= np.maximum(free_D[full], 0))
    moved, back, place, swaps = moved[legal], back[legal], place[legal], swaps[legal]
    if not len(moved):
        return None
    step_AE = task.embedded_NE[moved] - np.where(swaps[:, None], task.embedded_NE[back], 0)
    step_A = task.exchange_N[moved] - np.where(swaps, task.exchange_N[back], 0)
    left_A = task.network.seconds(np.maximum(sums_DE[full] - step_AE, 0)) + exchange_D[full] - step_A
    there_A = task.network.seconds(np.maximum(sums_DE[place] + step_AE, 0)) + exchange_D[place] + step_A
    highest_A = np.maximum(left_A, there_A)
    best = int(highest_A.argmin())
    if highest_A[best] >= loads_D[full] * (1 - 1e-6):
        return None
    found = device_N.copy()
    found[moved[best]] = place[best]
    if swaps[best]:
        found[back[best]] = full
    return found
