"""Finds how many rows to copy to every rank and to every host, so that a step is fastest within a memory.

Rows fall by frequency, so the choice is two places per table: the rows before the first are copied to every rank, those
before the second to every host. Without a limit of memory the best pair is found exactly, by one pass over the runs of
equally frequent rows. With a limit, a price per byte is added to the seconds and raised until the rows fit: the copies
that save least per byte are given up first, of whichever table they are. What is left of the memory is filled with
further rows of the run at which the price stopped, so the result is within one row of the best.

A copy on every rank saves no bytes beside one on every host: a surely needed row crosses the links of a host equally often
as a gradient to be summed. It saves the buffers of received rows. The price is therefore also raised as long as the
step stays within a slack of the fastest, and that is what fills the first tier.

The thresholds of FlexShard are results here: t₁ is the probability that one rank needs the coldest row with a copy on
every rank, t₂ that of the coldest row with any copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ziggurat.planning.tier_cost import Floats, TieredTable

HALVINGS = 60
"""How often the interval of prices is halved, each time in its logarithm."""
LEAST_PRICE, HIGHEST_PRICE = 1e-24, 1e3
"""Seconds per byte; at the highest, memory is all that counts."""


@dataclass(frozen=True, slots=True)
class TierCounts:
    """How many rows of a table are copied to every rank, and how many of the next to every host."""

    copied: int
    host: int


def fastest_counts(tables: Sequence[TieredTable], memory: float, slack: float = 0.0) -> list[TierCounts] | None:
    """Returns the numbers of copied rows with the least modelled seconds; None if no numbers fit into the memory.

    Args:
        tables: the tables, which share the memory.
        memory: bytes of a rank for them, with the buffers of their look-ups.
        slack: the share by which the seconds may be above the least, where that saves memory.
    """
    choices = [_Choice(table) for table in tables]
    fastest = [choice.best(0.0) for choice in choices]
    if slack:
        limit = (1 + slack) * step_seconds(tables, fastest)
        fastest, _ = _last(choices, fastest, lambda counts: step_seconds(tables, counts) <= limit)
    if kept_bytes(tables, fastest) <= memory:
        return fastest
    smallest = smallest_counts(tables)
    if kept_bytes(tables, smallest) > memory:
        return None
    over, fitting = _last(choices, fastest, lambda counts: kept_bytes(tables, counts) > memory)
    return _filled(tables, fitting or smallest, over, memory)


def _last(
    choices: Sequence[_Choice], free: list[TierCounts], holds: Callable[[list[TierCounts]], bool]
) -> tuple[list[TierCounts], list[TierCounts] | None]:
    """Returns the best counts at the highest price for which a condition holds, and those at the next higher price.

    The condition holds for ``free``, and up to some price. Where it always holds there is no next.
    """
    low, high = LEAST_PRICE, HIGHEST_PRICE
    last, following = free, None
    for _ in range(HALVINGS):
        price = (low * high) ** 0.5
        found = [choice.best(price) for choice in choices]
        if holds(found):
            low, last = price, found
        else:
            high, following = price, found
    return last, following


def smallest_counts(tables: Sequence[TieredTable]) -> list[TierCounts]:
    """Returns the numbers of copied rows that take the least memory."""
    return [_Choice(table).best(HIGHEST_PRICE) for table in tables]


def kept_bytes(tables: Sequence[TieredTable], counts: Sequence[TierCounts]) -> float:
    """Returns the bytes that a rank keeps for the tables with these numbers of copied rows, on average over ranks."""
    return sum(
        load.kept_bytes
        for table, each in zip(tables, counts, strict=True)
        for load in table.loads(each.copied, each.host)
    )


def step_seconds(tables: Sequence[TieredTable], counts: Sequence[TierCounts]) -> float:
    """Returns the modelled seconds that the tables add to a step with these numbers of copied rows."""
    return sum(
        load.seconds(table.topology)
        for table, each in zip(tables, counts, strict=True)
        for load in table.loads(each.copied, each.host)
    )


class _Choice:
    """A table's best counts at any price of memory."""

    def __init__(self, table: TieredTable) -> None:
        self._ends = table.ends
        self._seconds, self._kept = table.seconds(), table.kept()
        topology = table.topology
        self._two_levels = topology.hosts > 1 and topology.devices > 1

    def best(self, price: float) -> TierCounts:
        """Returns the counts, at ends of runs, with the least seconds plus ``price`` times bytes."""
        copied, host, split = (s + price * b for s, b in zip(self._seconds, self._kept, strict=True))
        if not self._two_levels:  # a copy on every host is a copy on every rank, or none
            return TierCounts(int(self._ends[int(np.argmin(copied - split))]), 0)
        first, least = _prefix_minimum(copied - host)
        second = int(np.argmin(least + host - split))
        start, end = int(self._ends[first[second]]), int(self._ends[second])
        return TierCounts(start, end - start)


def _prefix_minimum(values: Floats) -> tuple[list[int], Floats]:
    """Returns for each place where the least value up to it is, the first of equals, and that value."""
    least = np.minimum.accumulate(values)
    is_new = np.concatenate([[True], values[1:] < least[:-1]])
    places = np.maximum.accumulate(np.where(is_new, np.arange(len(values)), 0))
    return places.tolist(), least


def _filled(
    tables: Sequence[TieredTable], fitting: Sequence[TierCounts], over: Sequence[TierCounts], memory: float
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
