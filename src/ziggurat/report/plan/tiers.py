"""The section of a plan's page on tables whose rows are in tiers: their traffic, and other ways to place them."""

from __future__ import annotations

from collections.abc import Callable

from ziggurat.planning import PlanEstimate
from ziggurat.planning.quantities import format_bytes
from ziggurat.planning.tier_cost import TIER_NAMES, TierLoad
from ziggurat.planning.tier_estimate import TierEstimate
from ziggurat.report.charts import legend
from ziggurat.report.markup import Html, el, figure, section, table
from ziggurat.report.plan import rows as plan_rows
from ziggurat.report.plan.chart import Bar, BarSegment, stacked

COLOURS = dict(zip(TIER_NAMES, ("fourth", "third", "second"), strict=True))
"""Tier -> colour: that of tables with copies on every device, then that of tables split by rows."""
IN_HOSTS, BETWEEN = "quiet", "first"
LABELS = 190
"""Units for the names of the ways to place a table."""


def tiers_section(planned: PlanEstimate) -> Html:
    """Returns the section: for each table two drawings, then what they show as tables of figures."""
    drawings = [drawing for each in planned.tiers for drawing in (_tiers(planned, each), _alternatives(each))]
    shown = (plan_rows.tiers(planned), plan_rows.alternatives(planned))
    return section(
        "tiers",
        "Rows in tiers",
        el(
            "p",
            "The rows of these tables are ordered by how often they are looked up. Those that many ranks need in a "
            "step have copies, whose gradients are averaged. The others are sent to each rank that needs them, once. "
            "q is the probability that a rank needs a row.",
        ),
        legend({**COLOURS, "sent within hosts": IN_HOSTS, "sent between hosts": BETWEEN}),
        el("div", *drawings, cls="figures"),
        *(el("div", table(headers, [[*row] for row in rows], texts), cls="tight") for headers, rows, texts in shown),
    )


def _tiers(planned: PlanEstimate, estimate: TierEstimate) -> Html:
    """Draws each tier's part of what a rank keeps and sends."""
    measures: list[tuple[str, Callable[[TierLoad], float]]] = [
        ("kept", lambda load: load.kept_bytes),
        ("in host", lambda load: load.intra_bytes),
    ]
    if planned.topology.hosts > 1:
        measures.append(("between", lambda load: load.inter_bytes))
    bars = [
        Bar(
            label,
            [
                BarSegment(
                    f"{load.rows:,} rows",
                    measure(load),
                    COLOURS[name],
                    f"{load.rows:,} rows {name}: {format_bytes(measure(load))} {label}",
                )
                for name, load in zip(TIER_NAMES, estimate.tiers, strict=True)
            ],
        )
        for label, measure in measures
    ]
    described = f"Bytes of a rank for table {estimate.table} by tier: kept, sent within its host, sent to other hosts"
    drawing = stacked(described, bars, "bytes of a rank", _bytes)
    return figure("What a rank keeps, and what it sends in a step, by tier of rows.", drawing, caption=estimate.table)


def _alternatives(estimate: TierEstimate) -> Html:
    """Draws the traffic of the table in tiers and placed in other ways."""
    bars = [
        Bar(
            way.name,
            [
                BarSegment(
                    "in hosts", way.intra_bytes, IN_HOSTS, f"{way.name}: {format_bytes(way.intra_bytes)} in hosts"
                ),
                BarSegment("between", way.inter_bytes, BETWEEN, f"{way.name}: {format_bytes(way.inter_bytes)} between"),
            ],
        )
        for way in estimate.alternatives
    ]
    described = f"Bytes that all ranks send in a step for table {estimate.table}, by how it is placed"
    drawing = stacked(described, bars, "bytes of all ranks a step", _bytes, left=LABELS)
    return figure("What all ranks send in a step, by how the table is placed.", drawing, caption=estimate.table)


def _bytes(value: float) -> str:
    return format_bytes(value) if value else "0"
