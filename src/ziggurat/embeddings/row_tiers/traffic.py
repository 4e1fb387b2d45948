"""Counts the bytes that this rank sends for tables of row tiers, and the look-ups of each tier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

Purpose = Literal["host_rows", "split_rows", "copies"]
"""What is sent: ids and rows of those copied to every host; ids, rows and gradients of those split over all ranks; or
gradients and flags of copied rows."""

TIERS = ("copied", "host", "split")


class TierTraffic:
    """This rank's totals since the training started."""

    def __init__(self) -> None:
        self._bytes: dict[str, float] = defaultdict(float)
        self._lookups: dict[str, list[int]] = {}
        self._distinct: dict[str, list[int]] = {}

    def sent(self, purpose: Purpose, within: int, between: int) -> None:
        """Adds bytes sent to other ranks of this host and to other hosts."""
        self._bytes[f"{purpose}_bytes_in_host"] += within
        self._bytes[f"{purpose}_bytes_between_hosts"] += between

    def looked_up(self, table: str, lookups: Sequence[int], distinct: Sequence[int]) -> None:
        """Adds a batch's look-ups of a table by tier, and the distinct rows among them."""
        for totals, counts in ((self._lookups, lookups), (self._distinct, distinct)):
            before = totals.get(table, [0] * len(TIERS))
            totals[table] = [a + b for a, b in zip(before, counts, strict=True)]

    def totals(self) -> dict[str, float]:
        """Returns all totals: ``PURPOSE_bytes_in_host`` and ``PURPOSE_bytes_between_hosts``, and for each table and
        tier ``TABLE/TIER_lookups`` and ``TABLE/TIER_rows``, the distinct ones of each batch."""
        found = dict(self._bytes)
        for name, totals in (("lookups", self._lookups), ("rows", self._distinct)):
            for table, counts in totals.items():
                found.update(
                    {f"{table}/{tier}_{name}": float(count) for tier, count in zip(TIERS, counts, strict=True)}
                )
        return found
