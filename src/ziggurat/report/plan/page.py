"""Renders a plan as one self-contained HTML page: memory and time of each device as bars, then as tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ziggurat.core.files import atomic_file
from ziggurat.planning import PlanEstimate
from ziggurat.planning.comparison import Comparison
from ziggurat.planning.plan_estimate import DeviceLoad, PlacedShard
from ziggurat.planning.quantities import format_bytes, format_seconds
from ziggurat.planning.tier_cost import TIER_NAMES, tier_of
from ziggurat.report.charts import legend
from ziggurat.report.html import page
from ziggurat.report.markup import Html, el, figure, section, table
from ziggurat.report.plan import rows as plan_rows
from ziggurat.report.plan.chart import Bar, BarSegment, stacked
from ziggurat.report.plan.comparison import planners_section
from ziggurat.report.plan.tiers import tiers_section

MOST_BARS = 64
"""Most devices in a chart; of more devices, the slowest are drawn."""

COLOURS = {
    "table_wise": "first",
    "row_wise": "second",
    "table_row_wise": "second",
    "column_wise": "third",
    "grid": "third",
    "data_parallel": "fourth",
    "row_tiers": "second",
}
_LEGEND = {"whole": "first", "by rows": "second", "by columns, grid": "third", "on every device": "fourth"}


def write_plan(path: str | Path, name: str, planned: PlanEstimate, comparison: Comparison | None = None) -> None:
    """Writes a plan, and the comparison with other planners' plans if given, to an HTML file, atomically.

    Raises:
        DataError: the disk is full or the folder is not writable.
    """
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(render_plan(name, planned, comparison), encoding="utf-8")


def render_plan(name: str, planned: PlanEstimate, comparison: Comparison | None = None) -> str:
    """Returns the page; equal plans give equal bytes."""
    notes = [el("p", note, cls="note") for note in planned.notes]
    header = el(
        "header",
        el("h1", f"{name}: placement of the tables"),
        el("p", plan_rows.summary(planned), cls="soft"),
        el("p", plan_rows.verdict(planned)),
        *notes,
    )
    compared = [planners_section(comparison)] if comparison else []
    tiers = [tiers_section(planned)] if planned.tiers else []
    return page(f"{name} – ziggurat plan", header, [*compared, _drawings(planned), *tiers, *_tables(planned)])


def _drawings(planned: PlanEstimate) -> Html:
    shown = sorted(planned.devices, key=lambda load: (-load.seconds, load.rank))[:MOST_BARS]
    shown.sort(key=lambda load: load.rank)
    some = f" The {MOST_BARS} slowest of {len(planned.devices)} devices." if len(shown) < len(planned.devices) else ""
    shards: dict[int, list[PlacedShard]] = {}
    for placed in planned.shards:
        shards.setdefault(placed.shard.rank, []).append(placed)
    capacity, slow_capacity = planned.topology.memory_bytes * (1 - planned.reserve), planned.topology.slow_memory_bytes
    fast = ", in its fast memory" if slow_capacity else ""
    memory = stacked(
        f"Bytes on each device{fast}, {format_bytes(capacity)} at most",
        [_bar(planned, load, shards.get(load.rank, []), _fast_bytes, _buffers(load)) for load in shown],
        "weights, optimizer, buffers of a step",
        format_bytes,
        capacity,
    )
    time = stacked(
        f"Modelled seconds of a step on each device, {format_seconds(planned.step_seconds)} at most",
        [_bar(planned, load, shards.get(load.rank, []), lambda placed: placed.cost.seconds) for load in shown],
        "modelled time of a step",
        lambda seconds: "0" if seconds == 0 else format_seconds(seconds),
    )
    full = f"The dashed line, if shown, is the memory less a reserve of {100 * planned.reserve:.0f} %."
    even = "All devices wait for the longest bar: the more even the bars, the better."
    return section(
        "devices",
        "Devices",
        legend({**_LEGEND, "ids, vectors and gradients of a step": "quiet"}),
        el(
            "div",
            figure(f"{full}{some}", memory, caption="Fast memory" if slow_capacity else "Memory"),
            _slow_memory(planned, shown, shards, some) if slow_capacity else None,
            figure(f"{even}{some}", time, caption="Time"),
            cls="figures",
        ),
    )


def _slow_memory(
    planned: PlanEstimate, shown: Sequence[DeviceLoad], shards: Mapping[int, Sequence[PlacedShard]], some: str
) -> Html:
    capacity = planned.topology.slow_memory_bytes
    drawing = stacked(
        f"Bytes in the slow memory of each device, {format_bytes(capacity)} at most",
        [_bar(planned, load, shards.get(load.rank, []), lambda placed: placed.cost.slow_bytes) for load in shown],
        "weights, optimizer",
        format_bytes,
        capacity,
    )
    reads = plan_rows.percent(planned.slow_share)
    return figure(f"The least used rows, which take {reads} of the look-ups.{some}", drawing, caption="Slow memory")


def _bar(
    planned: PlanEstimate,
    load: DeviceLoad,
    shards: Sequence[PlacedShard],
    measure: Callable[[PlacedShard], float],
    rest: Sequence[BarSegment] = (),
) -> Bar:
    host = f"host {load.host}, " if planned.topology.hosts > 1 else "device "
    parts = [
        BarSegment(
            placed.table,
            measure(placed),
            _colour(planned, placed),
            _tip(planned, placed),
        )
        for placed in shards
    ]
    return Bar(f"{host}{load.rank}", [*parts, *rest])


def _colour(planned: PlanEstimate, placed: PlacedShard) -> str:
    if _tier(planned, placed) == TIER_NAMES[0]:
        return COLOURS["data_parallel"]
    return COLOURS[planned.plan.placements[placed.table].sharding]


def _tier(planned: PlanEstimate, placed: PlacedShard) -> str | None:
    """Returns the name of the tier that a shard is of, None for a table without tiers."""
    for each in planned.tiers:
        if each.table == placed.table:
            return TIER_NAMES[tier_of(placed.shard, [load.rows for load in each.tiers])]
    return None


def _fast_bytes(placed: PlacedShard) -> float:
    return placed.cost.weight_bytes + placed.cost.state_bytes - placed.cost.slow_bytes


def _buffers(load: DeviceLoad) -> list[BarSegment]:
    return [BarSegment("buffers", load.buffer_bytes, "quiet", f"buffers of a step: {format_bytes(load.buffer_bytes)}")]


def _tip(planned: PlanEstimate, placed: PlacedShard) -> str:
    shard, cost = placed.shard, placed.cost
    rows = f"rows {shard.rows.first:,} to {shard.rows.first + shard.rows.size - 1:,}" if shard.rows.size else "no rows"
    if shard.fast_rows is not None:
        rows = f"{shard.rows.size:,} rows by falling frequency, {shard.fast_rows:,} of them fast"
    tier = _tier(planned, placed)
    if tier is not None:
        rows = f"{rows} by falling frequency, {tier}"
    columns = f"columns {shard.columns.first} to {shard.columns.first + shard.columns.size - 1}"
    return (
        f"{placed.table}, {planned.plan.placements[placed.table].sharding}: {rows}, {columns}; "
        f"{format_bytes(cost.weight_bytes)} of weights, {format_bytes(cost.state_bytes)} of optimizer, "
        f"{format_seconds(cost.seconds)} a step"
    )


def _tables(planned: PlanEstimate) -> list[Html]:
    found: list[Html] = []
    for anchor, title, (headers, rows, texts) in (
        ("loads", "Device by device", plan_rows.devices(planned)),
        ("tables", "Table by table", plan_rows.tables(planned)),
    ):
        cells: list[list[object]] = [
            [el("span", row[0], cls="wrap"), *row[1:]] if texts > 1 else [*row] for row in rows
        ]
        found.append(section(anchor, title, el("div", table(headers, cells, texts), cls="tight")))
    found.append(
        el(
            "p",
            "Time is modelled: the bytes that a step transfers, over the bandwidths of the topology. Work that is the "
            "same under every plan is left out. So it ranks plans, and does not predict the duration of a step.",
            cls="soft",
        )
    )
    return found
