"""Compares the look-ups of each tier of rows with those that the counts of preparation let expect.

A plan chooses tiers by how often rows were looked up in the training rows. If look-ups move to other rows, rows are
copied that few batches touch, and those that most batches touch are sent.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ziggurat.core.statistics import DatasetStatistics
from ziggurat.embeddings.row_tiers.tiered_table import TieredTable
from ziggurat.embeddings.row_tiers.traffic import TIERS
from ziggurat.planning.usage import Usage, touch_probability

TOLERANCE = 0.1
"""By how much the share of look-ups of a table's copied rows may fall short of the expected one without a note."""


class TierWatch:
    """Watches this rank's look-ups of the tables whose rows are in tiers.

    Args:
        tables: these tables.
        statistics: the counts of preparation.
        examples: the rows of this rank's batch.
    """

    def __init__(self, tables: list[TieredTable], statistics: DatasetStatistics, examples: float) -> None:
        self._shares: dict[str, list[float]] = {}
        self._expected: dict[str, float] = {}
        self._noted: set[str] = set()
        for table in tables:
            spec, bounds = table.spec, table.bounds
            usage = Usage.of(spec, statistics)
            accesses = np.ones(spec.rows) if usage.accesses is None else -np.sort(-usage.accesses)
            shares = accesses / accesses.sum()
            touched = touch_probability(shares, usage.ids_per_row * examples)
            edges = [bounds.hosts.first, bounds.split.first]
            self._shares[spec.name] = [float(part.sum()) for part in np.split(shares, edges)]
            for tier, part in zip(TIERS, np.split(touched, edges), strict=True):
                self._expected[f"{spec.name}/{tier}_rows_expected"] = float(part.sum())

    def figures(self, before: Mapping[str, float], total: Mapping[str, float], steps: int) -> dict[str, float]:
        """Returns the figures per step between two totals of
        :meth:`~ziggurat.embeddings.row_tiers.traffic.TierTraffic.totals`.

        For each table and tier these are ``TABLE/TIER_share``, the share of the table's look-ups, with
        ``TABLE/TIER_share_expected``, and ``TABLE/TIER_rows``, distinct rows of a batch, with
        ``TABLE/TIER_rows_expected``; and bytes that this rank sent.
        """
        per_step = {name: (value - before.get(name, 0.0)) / steps for name, value in total.items()}
        found = {name: value for name, value in per_step.items() if not name.endswith("_lookups")}
        for table, shares in self._shares.items():
            lookups = [per_step.get(f"{table}/{tier}_lookups", 0.0) for tier in TIERS]
            for tier, count, share in zip(TIERS, lookups, shares, strict=True):
                found[f"{table}/{tier}_share"] = count / max(1e-9, sum(lookups))
                found[f"{table}/{tier}_share_expected"] = share
        return found | self._expected

    def notes(self, figures: Mapping[str, float]) -> list[str]:
        """Returns a note for each table whose copied rows get far fewer look-ups than expected; one a table."""
        found: list[str] = []
        for table, shares in self._shares.items():
            share = sum(figures[f"{table}/{tier}_share"] for tier in TIERS[:2])
            expected = sum(shares[:2])
            if share < expected - TOLERANCE and table not in self._noted:
                self._noted.add(table)
                found.append(
                    f"table {table!r}: {share:.0%} of its look-ups are of copied rows, {expected:.0%} were expected; "
                    "another plan may send less: resume with --new-plan drifted (docs/distributed.md, Tiers of rows)"
                )
        return found
