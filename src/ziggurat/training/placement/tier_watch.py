"""Compares the look-ups of each tier of rows with those that the counts of preparation let expect.

A plan chooses tiers by how often rows were looked up in the training rows. If look-ups move to other rows, rows are
copied that few batches touch, and those that most batches touch are sent. If they gather on fewer rows, or scatter over
more, other numbers of copies are best, and a table without copies may want some: its batches then need fewer distinct
rows, or more. Training sees shares and numbers alone; a resume counts rows and prices plans
(:mod:`~ziggurat.training.placement.drift`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.topology import Topology
from ziggurat.embeddings.row_tiers.tiered_table import TieredTable
from ziggurat.embeddings.row_tiers.traffic import TIERS
from ziggurat.parallel.world import World
from ziggurat.planning.access_curve import AccessCurve
from ziggurat.planning.cost import FLOAT
from ziggurat.planning.tier_cost import POSITION, PricedTable, TierLoad
from ziggurat.planning.usage import Usage

TOLERANCE = 0.1
"""By how much the share of look-ups of a table's copied rows may be off the expected one without a note."""
ROWS_TOLERANCE = 0.25
"""The share by which the distinct rows of a batch may be off; those of real histories are not drawn independently."""

_ROWS = ("rows", "rows_expected")


class TierWatch:
    """Watches this rank's look-ups of the tables whose rows are in tiers.

    Args:
        tables: these tables.
        statistics: the counts of preparation.
        examples: the rows that are read for a batch of a rank.
        world: all ranks.
    """

    def __init__(self, tables: list[TieredTable], statistics: DatasetStatistics, examples: float, world: World) -> None:
        self._shares: dict[str, list[float]] = {}
        self._expected: dict[str, float] = defaultdict(float)
        self._noted: set[str] = set()
        ranks = Topology(world.hosts, world.local_size, "ranks", "cpu", 1, 1.0, 1.0, 1.0)
        for table in tables:
            spec, bounds = table.spec, table.bounds
            priced = PricedTable(spec, AccessCurve.of(Usage.of(spec, statistics)), ranks, examples)
            loads = priced.loads(bounds.copied.size, bounds.hosts.size)
            self._shares[spec.name] = [load.lookups for load in loads]
            for tier, load in zip(TIERS, loads, strict=True):
                self._expected[f"{spec.name}/{tier}_rows_expected"] = load.touched
            for name, count in sent_bytes(spec.dim, *loads).items():
                self._expected[f"{name}_expected"] += count

    def figures(self, before: Mapping[str, float], total: Mapping[str, float], steps: int) -> dict[str, float]:
        """Returns the figures per step between two totals of
        :meth:`~ziggurat.embeddings.row_tiers.traffic.TierTraffic.totals`.

        For each table and tier these are ``TABLE/TIER_share``, the share of the table's look-ups, with
        ``TABLE/TIER_share_expected``, and ``TABLE/TIER_rows``, distinct rows of a batch, with
        ``TABLE/TIER_rows_expected``; and bytes that this rank sent, with ``…_expected``, the mean over the ranks by the
        planner's equations, in fp32.
        """
        per_step = {name: (value - before.get(name, 0.0)) / steps for name, value in total.items()}
        found = {name: value for name, value in per_step.items() if not name.endswith("_lookups")}
        for table, shares in self._shares.items():
            lookups = [per_step.get(f"{table}/{tier}_lookups", 0.0) for tier in TIERS]
            for tier, count, share in zip(TIERS, lookups, shares, strict=True):
                found[f"{table}/{tier}_share"] = count / max(1e-9, sum(lookups))
                found[f"{table}/{tier}_share_expected"] = share
        return found | dict(self._expected)

    def notes(self, figures: Mapping[str, float]) -> list[str]:
        """Returns a note for each table whose copied rows get far more or fewer look-ups than expected, or whose
        batches need far more or fewer distinct rows; one a table."""
        found: list[str] = []
        for table, shares in self._shares.items():
            what = self._moved(table, shares, figures)
            if what is not None and table not in self._noted:
                self._noted.add(table)
                found.append(
                    f"table {table!r}: {what} were expected; another plan may send less: resume with --new-plan "
                    "drifted (docs/distributed.md, Tiers of rows)"
                )
        return found

    def _moved(self, table: str, shares: Sequence[float], figures: Mapping[str, float]) -> str | None:
        """Returns which figure of a table is off and what it was expected to be; None if none is."""
        share, expected = sum(figures[f"{table}/{tier}_share"] for tier in TIERS[:2]), sum(shares[:2])
        if abs(share - expected) > TOLERANCE:
            return f"{share:.0%} of its look-ups are of copied rows, {expected:.0%}"
        needed, likely = (sum(figures.get(f"{table}/{tier}_{name}", 0.0) for tier in TIERS) for name in _ROWS)
        if abs(needed - likely) > ROWS_TOLERANCE * likely:
            return f"a batch needs {needed:,.0f} distinct rows, {likely:,.0f}"
        return None


def sent_bytes(dim: int, copied: TierLoad, of_hosts: TierLoad, split: TierLoad) -> dict[str, float]:
    """Returns the bytes that a table's tiers let a rank send in a step, by the names of
    :meth:`~ziggurat.embeddings.row_tiers.traffic.TierTraffic.totals`.

    A row of the second tier is asked for and received, and its gradient is sent: that is counted with the copies.
    """
    vector = FLOAT * dim
    gradients = of_hosts.intra_bytes * vector / (POSITION + 2 * vector)
    return {
        "host_rows_bytes_in_host": of_hosts.intra_bytes - gradients,
        "split_rows_bytes_in_host": split.intra_bytes,
        "split_rows_bytes_between_hosts": split.inter_bytes,
        "copies_bytes_in_host": copied.intra_bytes + gradients,
        "copies_bytes_between_hosts": copied.inter_bytes + of_hosts.inter_bytes,
    }
