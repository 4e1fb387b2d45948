"""Items of known cost over bins of limited room, so that the fullest bin is as empty as can be.

Three methods that a planner may chain: greedy longest-processing-time (Graham 1969), largest differencing (Karmarkar
and Karp 1982, for k bins), and exchanges that improve what either found. Costs and sizes are in any units; n items, k
bins.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import NoFeasiblePlan

Floats = npt.NDArray[np.float64]

_AS_GOOD = 1.005


@dataclass(frozen=True, slots=True)
class Balance:
    """A bin for every item.

    Attributes:
        bins: of each item, n numbers in [0, k).
        loads: sum of the costs in each bin and of what was there before, k.
        used: sum of the sizes in each bin, k.
    """

    bins: tuple[int, ...]
    loads: tuple[float, ...]
    used: tuple[float, ...]

    @property
    def highest(self) -> float:
        """The load of the fullest bin, which every other waits for."""
        return max(self.loads)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What is to be put where.

    Attributes:
        costs: of each item, n, not negative.
        sizes: of each item, n: what it takes of a bin's capacity.
        capacities: of each bin, k.
        names: of each item, for messages.
        before: cost that lies in each bin already, k; none where empty. Capacities are what is left beside it.
    """

    costs: Sequence[float]
    sizes: Sequence[float]
    capacities: Sequence[float]
    names: Sequence[str]
    before: Sequence[float] = ()

    @property
    def start(self) -> list[float]:
        """The loads of the bins without any item."""
        return list(self.before) or [0.0] * len(self.capacities)

    def balance(self, bins: Sequence[int]) -> Balance:
        """The loads that these bins amount to; summed in the items' order."""
        loads, used = self.start, [0.0] * len(self.capacities)
        for item, place in enumerate(bins):
            loads[place] += self.costs[item]
            used[place] += self.sizes[item]
        return Balance(tuple(bins), tuple(loads), tuple(used))

    def fits(self, balance: Balance) -> bool:
        """Whether no bin holds more than its capacity."""
        return all(used <= room for used, room in zip(balance.used, self.capacities, strict=True))


def lower_bound(costs: Sequence[float], bins: int) -> float:
    """No assignment has a fullest bin below this: the mean load, the largest item, and the k-th and (k+1)-th largest
    together, since two of k + 1 items share a bin."""
    falling = sorted(costs, reverse=True)
    pair = falling[bins - 1] + falling[bins] if len(falling) > bins else 0.0
    return max(sum(costs) / bins, falling[0], pair) if falling else 0.0


def longest_first(room: Capacity) -> Balance:
    """Greedy: the costliest item first, each into the least loaded bin that has room for it.

    Where that leaves an item without a bin, items go by falling size instead, which packs better.

    Raises:
        NoFeasiblePlan: an item fits nowhere; it is named.
    """
    for order in (room.costs, room.sizes):
        falling = sorted(range(len(room.costs)), key=lambda item: (-order[item], item))
        bins, stuck = _greedy(room, falling)
        if stuck is None:
            return room.balance(bins)
    assert stuck is not None
    raise no_room(room, stuck)


def largest_differencing(room: Capacity) -> Balance | None:
    """The k-way largest differencing method; None where its result breaks a capacity, which it does not look at.

    A partial solution is k bins; two whose loads spread most are merged, the fullest of one with the emptiest of the
    other, until one is left. What lies in the bins before is a partial solution too, the one that says which is which.
    """
    k, tie = len(room.capacities), count()
    heap: list[tuple[float, int, list[tuple[float, tuple[int, ...]]]]] = []
    for item, cost in enumerate(room.costs):
        solution: list[tuple[float, tuple[int, ...]]] = [(cost, (item,)), *[(0.0, ())] * (k - 1)]
        heap.append((-cost if k > 1 else 0.0, next(tie), solution))
    if room.before:
        there = sorted(((load, (~place,)) for place, load in enumerate(room.before)), key=lambda each: -each[0])
        heap.append((there[-1][0] - there[0][0], next(tie), there))
    heapq.heapify(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        merged = [(a + b, left + right) for (a, left), (b, right) in zip(first, reversed(second), strict=True)]
        merged.sort(key=lambda each: -each[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], next(tie), merged))
    bins = [0] * len(room.costs)
    for position, (_, items) in enumerate(heap[0][2] if heap else []):
        place = next((~item for item in items if item < 0), position)
        for item in items:
            if item >= 0:
                bins[item] = place
    found = room.balance(bins)
    return found if room.fits(found) else None


def exchanged(room: Capacity, balance: Balance, rounds: int = 10_000) -> Balance:
    """``balance`` after moving single items out of the fullest bin and swapping pairs with it, as long as that helps.

    Each round takes the exchange that leaves the lowest maximum of the two bins that it touches; all rounds keep to the
    capacities if ``balance`` does.
    """
    costs, sizes = np.asarray(room.costs, np.float64), np.asarray(room.sizes, np.float64)
    free = np.asarray(room.capacities, np.float64) - np.asarray(balance.used)
    bins, loads = np.array(balance.bins, np.int64), np.array(balance.loads)
    for _ in range(rounds):
        step = _best_exchange(costs, sizes, free, bins, loads)
        if step is None:
            break
        item, other, full, place = step
        for moved, source, target in ((item, full, place), (other, place, full)):
            if moved is not None:
                bins[moved] = target
                loads[source], loads[target] = loads[source] - costs[moved], loads[target] + costs[moved]
                free[source], free[target] = free[source] + sizes[moved], free[target] - sizes[moved]
    return room.balance(bins.tolist())


def balanced(room: Capacity) -> Balance:
    """The best of greedy and largest differencing, improved by exchanges.

    Raises:
        NoFeasiblePlan: as :func:`longest_first`.
    """
    greedy, differencing = longest_first(room), largest_differencing(room)
    found = [exchanged(room, start) for start in (greedy, differencing) if start is not None]
    return min(found, key=lambda balance: balance.highest)


def _greedy(room: Capacity, order: Sequence[int]) -> tuple[list[int], int | None]:
    """A bin for each item, and the first item that found none."""
    bins, loads, used = [0] * len(order), room.start, [0.0] * len(room.capacities)
    for item in order:
        fitting = [k for k, most in enumerate(room.capacities) if used[k] + room.sizes[item] <= most]
        if not fitting:
            return bins, item
        place = min(fitting, key=lambda k: (loads[k], used[k], k))
        bins[item] = place
        loads[place] += room.costs[item]
        used[place] += room.sizes[item]
    return bins, None


def _best_exchange(
    costs: Floats, sizes: Floats, free: Floats, bins: npt.NDArray[np.int64], loads: Floats
) -> tuple[int, int | None, int, int] | None:
    """(item of the fullest bin, item that comes back for it or None, fullest bin, other bin); None where none helps."""
    full = int(loads.argmax())
    inside, outside = np.flatnonzero(bins == full), np.flatnonzero(bins != full)
    best, step, slack = loads[full], None, 1e-12 * max(loads[full], 1.0)
    for item in inside.tolist():
        moved = np.maximum(loads[full] - costs[item], loads + costs[item])
        moved[full] = np.inf
        moved[free < sizes[item]] = np.inf
        place = int(moved.argmin())
        if moved[place] < best - slack:
            best, step = moved[place], (item, None, full, place)
        if not len(outside):
            continue
        at, gain, grow = bins[outside], costs[item] - costs[outside], sizes[item] - sizes[outside]
        swapped = np.maximum(loads[full] - gain, loads[at] + gain)
        swapped[(grow > free[at]) | (-grow > free[full])] = np.inf
        choice = int(swapped.argmin())
        if swapped[choice] < best - slack:
            best, step = swapped[choice], (item, int(outside[choice]), full, int(at[choice]))
    return step


def no_room(room: Capacity, item: int) -> NoFeasiblePlan:
    """Says that ``item`` fits nowhere."""
    total, there = sum(room.sizes), sum(room.capacities)
    return NoFeasiblePlan(
        f"{room.names[item]} needs {room.sizes[item]:,.0f} bytes and no device has them left; all items need "
        f"{total:,.0f} bytes, the {len(room.capacities)} devices have {there:,.0f}",
        "split the table by rows or columns, or give more devices, more memory or a smaller dim",
    )


def in_runs(room: Capacity, found: Balance) -> Balance:
    """Neighbouring items in the same bin, where that is as good as ``found`` but for half a percent; else ``found``.

    What neighbouring tables of one device give lies side by side already when it is put in the order of the features.
    """
    level = (sum(room.start) + sum(room.costs)) / len(room.capacities)
    bins: list[int] = []
    place, load = 0, room.start[0]
    for cost in room.costs:
        while load + cost / 2 > level and place + 1 < len(room.capacities):
            place += 1
            load = room.start[place]
        load += cost
        bins.append(place)
    runs = room.balance(bins)
    return runs if room.fits(runs) and runs.highest <= found.highest * _AS_GOOD else found
