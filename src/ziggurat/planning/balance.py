"""Distributes items of known cost and size over bins of limited capacity, minimising the load of the fullest bin.

Three methods that a planner may chain: greedy longest-processing-time (Graham 1969), largest differencing (Karmarkar
and Karp 1982, for k bins), and a local search that moves and swaps items to improve the result of either. Where
capacity is too short for a greedy method, a search packs the items. Costs and sizes are in any units; n items, k bins.
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

MOST_TRIALS = 2_000
"""Items that the search of :func:`packed` places, those included that it takes back; some hundredths of a second."""

_CONTIGUITY_TOLERANCE = 1.005
"""How many times the fullest bin's load may be of the best found, for a balance whose neighbours share bins."""


@dataclass(frozen=True, slots=True)
class Balance:
    """A bin for every item.

    Attributes:
        bins: the bin of each item, n numbers in [0, k).
        loads: each bin's initial load plus the costs of its items, k.
        used: sum of the sizes in each bin, k.
    """

    bins: tuple[int, ...]
    loads: tuple[float, ...]
    used: tuple[float, ...]

    @property
    def highest(self) -> float:
        """The load of the fullest bin, which all others wait for."""
        return max(self.loads)


@dataclass(frozen=True, slots=True)
class BalanceProblem:
    """Items to be distributed over bins.

    Attributes:
        costs: the cost of each item, n, not negative.
        sizes: how much of a bin's capacity each item takes, n.
        capacities: the capacity left in each bin, k.
        names: the name of each item, for messages, n.
        before: the initial load of each bin, k; empty for none. ``capacities`` already exclude it.
    """

    costs: Sequence[float]
    sizes: Sequence[float]
    capacities: Sequence[float]
    names: Sequence[str]
    before: Sequence[float] = ()

    @property
    def start(self) -> list[float]:
        """The initial loads of the bins, before any item is added."""
        return list(self.before) or [0.0] * len(self.capacities)

    def balance(self, bins: Sequence[int]) -> Balance:
        """Returns the balance with each item in the given bin; loads are summed in the items' order."""
        loads, used = self.start, [0.0] * len(self.capacities)
        for item, place in enumerate(bins):
            loads[place] += self.costs[item]
            used[place] += self.sizes[item]
        return Balance(tuple(bins), tuple(loads), tuple(used))

    def fits(self, balance: Balance) -> bool:
        """Returns whether no bin holds more than its capacity."""
        return all(used <= capacity for used, capacity in zip(balance.used, self.capacities, strict=True))


def lower_bound(costs: Sequence[float], bins: int) -> float:
    """Returns a lower bound for the load of the fullest bin under any assignment.

    It is the largest of the mean load, the costliest item, and the k-th and (k+1)-th costliest items together, since
    two of the k + 1 costliest items share a bin.
    """
    falling = sorted(costs, reverse=True)
    pair = falling[bins - 1] + falling[bins] if len(falling) > bins else 0.0
    return max(sum(costs) / bins, falling[0], pair) if falling else 0.0


def longest_first(problem: BalanceProblem) -> Balance:
    """Assigns greedily: the costliest item first, each to the least loaded bin with enough capacity left.

    If an item then fits into no bin, the items are assigned by falling size instead, which packs better.

    Raises:
        NoFeasiblePlan: an item fits into no bin; the message names it.
    """
    for order in (problem.costs, problem.sizes):
        falling = sorted(range(len(problem.costs)), key=lambda item: (-order[item], item))
        bins, stuck = _greedy(problem, falling)
        if stuck is None:
            return problem.balance(bins)
    assert stuck is not None
    raise no_capacity_error(problem, stuck)


def packed(problem: BalanceProblem) -> Balance | None:
    """Packs the items by size alone: each into the fullest bin that holds it, and else by a depth-first search.

    The search takes the largest item first and tries the fullest bin first; it ends after ``MOST_TRIALS`` placements.

    Returns:
        A balance that keeps to the capacities; None if none was found.
    """
    sizes, free = list(problem.sizes), list(problem.capacities)
    if not sizes:
        return problem.balance(())
    order = sorted(range(len(sizes)), key=lambda item: (-sizes[item], item))
    if sum(sizes) > sum(max(each, 0.0) for each in free) or sizes[order[0]] > max(free):
        return None
    bins = [0] * len(sizes)
    untried: list[list[int]] = [_bins_to_try(sizes[order[0]], free)]
    for _ in range(MOST_TRIALS):
        while not untried[-1]:  # no bin is left for this item: take the one before it back
            untried.pop()
            if not untried:
                return None
            last = order[len(untried) - 1]
            free[bins[last]] += sizes[last]
        item = order[len(untried) - 1]
        bins[item] = untried[-1].pop(0)
        free[bins[item]] -= sizes[item]
        if len(untried) == len(order):
            found = problem.balance(bins)
            return found if problem.fits(found) else None  # sums in another order may differ in the last bit
        untried.append(_bins_to_try(sizes[order[len(untried)]], free))
    return None


def _bins_to_try(size: float, free: Sequence[float]) -> list[int]:
    """Returns the bins that hold an item of this size, the fullest first; of equally full ones the first is enough."""
    by_free: dict[float, int] = {}
    for place in range(len(free)):
        if size <= free[place]:
            by_free.setdefault(free[place], place)
    return [by_free[each] for each in sorted(by_free)]


def largest_differencing(problem: BalanceProblem) -> Balance | None:
    """Assigns by the k-way largest differencing method.

    A partial solution is k bins. The two partial solutions whose loads differ most are merged, the fullest bin of one
    with the emptiest of the other, until one is left. The initial loads are a partial solution too, the one that
    identifies the bins.

    Returns:
        The balance, or None if it exceeds a capacity: the method ignores capacities.
    """
    k, tie = len(problem.capacities), count()
    heap: list[tuple[float, int, list[tuple[float, tuple[int, ...]]]]] = []
    for item, cost in enumerate(problem.costs):
        solution: list[tuple[float, tuple[int, ...]]] = [(cost, (item,)), *[(0.0, ())] * (k - 1)]
        heap.append((-cost if k > 1 else 0.0, next(tie), solution))
    if problem.before:
        initial = sorted(((load, (~place,)) for place, load in enumerate(problem.before)), key=lambda each: -each[0])
        heap.append((initial[-1][0] - initial[0][0], next(tie), initial))
    heapq.heapify(heap)
    while len(heap) > 1:
        first, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        merged = [(a + b, left + right) for (a, left), (b, right) in zip(first, reversed(second), strict=True)]
        merged.sort(key=lambda each: -each[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], next(tie), merged))
    bins = [0] * len(problem.costs)
    for position, (_, items) in enumerate(heap[0][2] if heap else []):
        place = next((~item for item in items if item < 0), position)
        for item in items:
            if item >= 0:
                bins[item] = place
    found = problem.balance(bins)
    return found if problem.fits(found) else None


def improved_by_swaps(problem: BalanceProblem, balance: Balance, rounds: int = 10_000) -> Balance:
    """Improves ``balance`` by moving single items out of the fullest bin, or swapping pairs with it, while that helps.

    Each round takes the move or swap that leaves the lowest maximum of the two bins that it changes. If ``balance``
    keeps to the capacities, so does the result.
    """
    costs, sizes = np.asarray(problem.costs, np.float64), np.asarray(problem.sizes, np.float64)
    free = np.asarray(problem.capacities, np.float64) - np.asarray(balance.used)
    bins, loads = np.array(balance.bins, np.int64), np.array(balance.loads)
    for _ in range(rounds):
        step = _best_swap(costs, sizes, free, bins, loads)
        if step is None:
            break
        item, other, full, place = step
        for moved, source, target in ((item, full, place), (other, place, full)):
            if moved is not None:
                bins[moved] = target
                loads[source], loads[target] = loads[source] - costs[moved], loads[target] + costs[moved]
                free[source], free[target] = free[source] + sizes[moved], free[target] - sizes[moved]
    return problem.balance(bins.tolist())


def balanced(problem: BalanceProblem) -> Balance:
    """Returns the better of greedy and largest differencing, each improved by moves and swaps.

    If greedy finds no place for an item, the items are packed by size (:func:`packed`) and that is improved.

    Raises:
        NoFeasiblePlan: as :func:`longest_first`; the packing found no place for all items, either.
    """
    try:
        greedy = longest_first(problem)
    except NoFeasiblePlan:
        tight = packed(problem)
        if tight is None:
            raise
        return improved_by_swaps(problem, tight)
    differencing = largest_differencing(problem)
    found = [improved_by_swaps(problem, start) for start in (greedy, differencing) if start is not None]
    return min(found, key=lambda balance: balance.highest)


def _greedy(problem: BalanceProblem, order: Sequence[int]) -> tuple[list[int], int | None]:
    """Returns a bin for each item, and the first item that fits into none (None if all fit)."""
    bins, loads, used = [0] * len(order), problem.start, [0.0] * len(problem.capacities)
    for item in order:
        fitting = [k for k, most in enumerate(problem.capacities) if used[k] + problem.sizes[item] <= most]
        if not fitting:
            return bins, item
        place = min(fitting, key=lambda k: (loads[k], used[k], k))
        bins[item] = place
        loads[place] += problem.costs[item]
        used[place] += problem.sizes[item]
    return bins, None


def _best_swap(
    costs: Floats, sizes: Floats, free: Floats, bins: npt.NDArray[np.int64], loads: Floats
) -> tuple[int, int | None, int, int] | None:
    """Returns (item of the fullest bin, item swapped for it or None, fullest bin, other bin); None if nothing helps."""
    full = int(loads.argmax())
    inside, outside = np.flatnonzero(bins == full), np.flatnonzero(bins != full)
    best, step, slack = loads[full], None, 1e-12 * max(loads[full], 1.0)
    for item in inside.tolist():
        highest = np.maximum(loads[full] - costs[item], loads + costs[item])
        highest[full] = np.inf
        highest[free < sizes[item]] = np.inf
        place = int(highest.argmin())
        if highest[place] < best - slack:
            best, step = highest[place], (item, None, full, place)
        if not len(outside):
            continue
        at, gain, grow = bins[outside], costs[item] - costs[outside], sizes[item] - sizes[outside]
        highest_swapped = np.maximum(loads[full] - gain, loads[at] + gain)
        highest_swapped[(grow > free[at]) | (-grow > free[full])] = np.inf
        choice = int(highest_swapped.argmin())
        if highest_swapped[choice] < best - slack:
            best, step = highest_swapped[choice], (item, int(outside[choice]), full, int(at[choice]))
    return step


def no_capacity_error(problem: BalanceProblem, item: int) -> NoFeasiblePlan:
    """Returns the error for an ``item`` that fits into no bin."""
    total, available = sum(problem.sizes), sum(problem.capacities)
    return NoFeasiblePlan(
        f"{problem.names[item]} needs {problem.sizes[item]:,.0f} bytes and no device has them left; all items need "
        f"{total:,.0f} bytes, the {len(problem.capacities)} devices have {available:,.0f}",
        "split the table by rows or columns, or give more devices, more memory or a smaller dim",
    )


def prefer_contiguous(problem: BalanceProblem, found: Balance) -> Balance:
    """Returns a balance with neighbouring items in the same bin if it is at most half a percent worse, else ``found``.

    The vectors of neighbouring tables on one device are then already adjacent when they are put in the order of the
    features.
    """
    level = (sum(problem.start) + sum(problem.costs)) / len(problem.capacities)
    bins: list[int] = []
    place, load = 0, problem.start[0]
    for cost in problem.costs:
        while load + cost / 2 > level and place + 1 < len(problem.capacities):
            place += 1
            load = problem.start[place]
        load += cost
        bins.append(place)
    contiguous = problem.balance(bins)
    return (
        contiguous
        if problem.fits(contiguous) and contiguous.highest <= found.highest * _CONTIGUITY_TOLERANCE
        else found
    )
