"""Finds how many rows to copy to every rank and to every host, so that a step is fastest within a memory.

Rows fall by frequency, so the choice is two places per table: the rows before the first are copied to every rank, those
before the second to every host.

1. **Fastest.** Without a limit of memory, one pass over the runs of equally frequent rows finds the best pair exactly.
2. **Slack.** A copy on every rank rather than on every host hardly changes the bytes of a step: the row no longer
   crosses the links of its host, its summed gradient does. But those are bytes after the backward pass instead of
   before the forward pass, for which the model waits. The bytes before it are therefore weighted, more and more, as
   long as the seconds of the whole step stay within a slack of the least.
3. **Memory.** A price per byte is added and raised until the rows fit: the copies that save least per byte are given up
   first, of whichever table they are. What is left of the memory is filled with further rows of the run at which the
   price stopped, so the result is within two rows of the best.

The thresholds of FlexShard are results here: t₁ is the probability that one rank needs the coldest row with a copy on
every rank, t₂ that of the coldest row with any copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ziggurat.planning.tier_cost import Floats, PricedTable

HALVINGS = 60
"""How often the interval of prices or weights is halved, each time in its logarithm."""
LEAST_PRICE, HIGHEST_PRICE = 1e-24, 1e3
"""Seconds per byte, or a weight; at the highest, memory is all that counts."""

ROUNDING = 1e-9
"""The share by which sums over many rows may be above a memory that they fill."""


@dataclass(frozen=True, slots=True)
class TierCounts:
    """How many rows of a table are copied to every rank, and how many of the next to every host."""

    copied: int
    host: int


def fastest_counts(tables: Sequence[PricedTable], memory: float, slack: float = 0.0) -> list[TierCounts] | None:
    """Returns the numbers of copied rows with the least modelled seconds; None if no numbers fit into the memory.

    Args:
        tables: the tables, which share the memory.
        memory: bytes of a rank for them, with the buffers of their look-ups.
        slack: the share by which the seconds may be above the least, where that leaves fewer bytes to wait for before
            the forward pass.
    """
    choices = [_Choice(table) for table in tables]
    fastest, weight = [choice.best() for choice in choices], 0.0
    if slack:
        limit = (1 + slack) * step_seconds(tables, fastest)
        weight, fastest, _ = _last(
            fastest,
            lambda weight: [choice.best(weight=weight) for choice in choices],
            lambda counts: step_seconds(tables, counts) <= limit,
        )
    memory *= 1 + ROUNDING
    if kept_bytes(tables, fastest) <= memory:
        return fastest
    smallest = smallest_counts(tables)
    if kept_bytes(tables, smallest) > memory:
        return None
    _, over, fitting = _last(
        fastest,
        lambda price: [choice.best(price, weight) for choice in choices],
        lambda counts: kept_bytes(tables, counts) > memory,
    )
    return _filled(tables, fitting or smallest, over, memory)


def _last(
    first: list[TierCounts], best: Callable[[float], list[TierCounts]], holds: Callable[[list[TierCounts]], bool]
) -> tuple[float, list[TierCounts], list[TierCounts] | None]:
    """Returns the highest price for whose best counts a condition holds, these, and those at the next higher price.

    The condition holds for ``first``, the best at no price, and up to some price. Where it always holds there is no
    next.
    """
    low, high = LEAST_PRICE, HIGHEST_PRICE
    found, last, following = 0.0, first, None
    for _ in range(HALVINGS):
        price = (low * high) ** 0.5
        counts = best(price)
        if holds(counts):
            low = found = price
            last = counts
        else:
            high, following = price, counts
    return found, last, following


def smallest_counts(tables: Sequence[PricedTable]) -> list[TierCounts]:
    """Returns the numbers of copied rows that take the least memory."""
    return [_Choice(table).best(HIGHEST_PRICE) for table in tables]


def kept_bytes(tables: Sequence[PricedTable], counts: Sequence[TierCounts]) -> float:
    """Returns the bytes that a rank keeps for the tables with these numbers of copied rows, on average over ranks."""
    return sum(
        load.kept_bytes
        for table, each in zip(tables, counts, strict=True)
        for load in table.loads(each.copied, each.host)
    )


def step_seconds(tables: Sequence[PricedTable], counts: Sequence[TierCounts]) -> float:
    """Returns the modelled seconds that the tables add to a step with these numbers of copied rows."""
    return sum(
        load.seconds(table.topology)
        for table, each in zip(tables, counts, strict=True)
        for load in table.loads(each.copied, each.host)
    )


class _Choice:
    """A table's best counts at any price of memory, and any weight of the bytes before the forward pass."""

    def __init__(self, table: PricedTable) -> None:
        self._ends = table.ends
        self._ways = [(table.seconds(way), table.awaited(way), table.kept(way)) for way in range(table.ways)]
        topology = table.topology
        self._two_levels = topology.hosts > 1 and topology.devices > 1

    def best(self, price: float = 0.0, weight: float = 0.0) -> TierCounts:
        """Returns the counts, at ends of runs, with the least seconds plus ``price`` times bytes, where the seconds
        before the forward pass count ``weight`` times more."""
        ways = ([s + weight * a + price * b for s, a, b in zip(*figures, strict=True)] for figures in self._ways)
        return min((self._best(*costs) for costs in ways), key=lambda found: found[0])[1]

    def _best(self, copied: Floats, host: Floats, split: Floats) -> tuple[float, TierCounts]:
        """Returns the least sum of the tiers' costs, and its counts; a cost is of the first rows, were they in it."""
        if not self._two_levels:  # a copy on every host is a copy on every rank, or none
            saved = copied - split
            end = int(np.argmin(saved))
            return float(saved[end] + split[-1]), TierCounts(int(self._ends[end]), 0)
        first, least = _prefix_minimum(copied - host)
        total = least + host - split
        second = int(np.argmin(total))
        start, end = int(self._ends[first[second]]), int(self._ends[second])
        return float(total[second] + split[-1]), TierCounts(start, end - start)


def _prefix_minimum(values: Floats) -> tuple[list[int], Floats]:
    """Returns for each place where the least value up to it is, the first of equals, and that value."""
    least = np.minimum.accumulate(values)
    is_new = np.concatenate([[True], values[1:] < least[:-1]])
    places = np.maximum.accumulate(np.where(is_new, np.arange(len(values)), 0))
    return places.tolist(), least


def _filled(
    tables: Sequence[PricedTable], fitting: Sequence[TierCounts], over: Sequence[TierCounts], memory: float
) -> list[TierCounts]:
    """Moves the counts from those that fit towards those that do not, table by table, as far as memory allows."""
    counts = list(fitting)
    for number, (start, end) in enumerate(zip(fitting, over, strict=True)):
        steps = max(abs(end.copied - start.copied), abs(end.copied + end.host - start.copied - start.host))
        low, high = 0, steps + 1  # ``low`` steps fit, ``high`` do not
        while high - low > 1:
            middle = (low + high) // 2
            counts[number] = _between(start, end, middle, steps)
            low, high = (middle, high) if kept_bytes(tables, counts) <= memory else (low, middle)
        counts[number] = _between(start, end, low, steps)
    return counts


def _between(start: TierCounts, end: TierCounts, step: int, steps: int) -> TierCounts:
    """Returns the counts after some of ``steps`` equal steps."""
    if not step:
        return start
    copied = start.copied + (end.copied - start.copied) * step // steps
    last = start.copied + start.host
    placed = last + (end.copied + end.host - last) * step // steps
    return TierCounts(copied, max(placed, copied) - copied)
