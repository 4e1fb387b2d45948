"""A plan of serving as text and as a page: which tables are in memory, which on disk, and what requests will read."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.files import atomic_file
from ziggurat.planning.quantities import format_bytes, format_seconds
from ziggurat.report import numbers
from ziggurat.report.charts import legend
from ziggurat.report.html import page
from ziggurat.report.markup import Html, el, figure, section, table
from ziggurat.report.plan.chart import Bar, BarSegment, fitting, stacked
from ziggurat.report.plan.rows import Rows, percent
from ziggurat.serving.tables.serving_plan import ServingPlan, TablePlan
from ziggurat.storage.tier_benchmark import Tier

MOST_BARS = 40
"""Most tables in the chart of look-ups; of more, those with the most look-ups are drawn."""
_LABEL = 56
"""Units of a bar's label."""


def summary(plan: ServingPlan) -> str:
    """Describes tables, memory and reads in a line."""
    on_disk = [each for each in plan.tables if each.is_on_disk]
    size, memory = format_bytes(plan.table_bytes), format_bytes(plan.options.bytes)
    candidates = numbers.count(plan.options.candidates)
    first = (
        f"{len(plan.tables)} tables of {size}, {memory} of memory, of which {format_bytes(plan.memory_bytes)} used: "
    )
    if not on_disk:
        return f"{first}all are in memory"
    return (
        f"{first}{len(plan.tables) - len(on_disk)} in memory, {len(on_disk)} on disk; a request with {candidates} "
        f"candidates looks up {_number(plan.lookups)} rows and is expected to read the disk {_number(plan.reads)} times"
    )


def load(plan: ServingPlan, qps: float, disk: Tier | None) -> str:
    """Describes the reads a second at a rate of requests, and how much of the disk they take."""
    reads = qps * plan.reads
    said = f"At {qps:g} requests a second: {_number(reads)} reads a second"
    if disk is None:
        return f"{said}; the disk was not measured, as no table on disk is large enough"
    return (
        f"{said}, {percent(reads / disk.reads)} of the {_number(disk.reads)} that this disk gave with many in flight "
        f"({format_seconds(disk.read_s)} for one alone)"
    )


def tables(plan: ServingPlan) -> Rows:
    """Returns a row per table: where it is, its bytes, look-ups, hits and reads."""
    headers = ["table", "place", "side", "rows", "dim", "file", "memory", "look-ups", "hits", "reads"]
    rows: list[list[str]] = []
    for each in sorted(plan.tables, key=lambda each: (not each.is_on_disk, -each.file_bytes)):
        placed = each.placed
        rows.append(
            [
                each.entry.name,
                "disk, cached" if each.is_on_disk else "memory",
                each.entry.side,
                numbers.count(each.entry.rows),
                str(each.entry.dim),
                format_bytes(each.file_bytes),
                format_bytes(placed.memory_bytes + each.pooled_bytes),
                _number(placed.demand.lookups),
                percent(placed.hits),
                _number(placed.reads),
            ]
        )
    return headers, rows, 3


def write_page(path: str | Path, plan: ServingPlan, remarks: list[str]) -> None:
    """Writes a plan to an HTML file, atomically.

    Raises:
        DataError: the disk is full or the folder is not writable.
    """
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(render(plan, remarks), encoding="utf-8")


def render(plan: ServingPlan, remarks: list[str]) -> str:
    """Returns the page; equal plans give equal bytes."""
    name = plan.manifest.source.name
    header = el(
        "header",
        el("h1", f"{name}: placement of the tables while they are served"),
        el("p", summary(plan), cls="soft"),
        *(el("p", each) for each in remarks),
    )
    headers, rows, texts = tables(plan)
    listed = section("tables", "Tables", table(headers, [list(row) for row in rows], text_columns=texts))
    return page(f"{name} – ziggurat plan --serving", header, [_drawings(plan), listed])


def _drawings(plan: ServingPlan) -> Html:
    memory: list[BarSegment] = []
    disk: list[BarSegment] = []
    for each in plan.tables:
        name, size = each.entry.name, each.placed.memory_bytes
        colour, what = ("second", "cache") if each.is_on_disk else ("first", "whole table")
        memory.append(BarSegment(name, size, colour, f"{name}: {what}, {format_bytes(size)}"))
        if each.pooled_bytes:
            pooled = f"{name}: pooled rows, {format_bytes(each.pooled_bytes)}"
            memory.append(BarSegment(name, each.pooled_bytes, "third", pooled))
        if each.is_on_disk:
            disk.append(BarSegment(name, each.file_bytes, "fourth", f"{name}: {format_bytes(each.file_bytes)}"))
    bytes_ = stacked(
        f"Bytes in memory and on disk; memory has {format_bytes(plan.options.bytes)}",
        [Bar("memory", memory), Bar("disk", disk)],
        "tables and caches",
        format_bytes,
        plan.options.bytes,
    )
    shown = sorted(plan.tables, key=lambda each: -each.placed.demand.lookups)[:MOST_BARS]
    lookups = [_lookups(each) for each in shown]
    of_requests = stacked("Look-ups of a request by table", lookups, "look-ups of a request", _number)
    some = f" The {MOST_BARS} tables with the most." if len(shown) < len(plan.tables) else ""
    return section(
        "placement",
        "Placement",
        legend({"whole, in memory": "first", "cache": "second", "pooled rows": "third", "on disk": "fourth"}),
        el(
            "div",
            figure("The dashed line, if shown, is the memory that was given.", bytes_, caption="Bytes"),
            figure(f"What is on disk costs a read unless a cache has it.{some}", of_requests, caption="Look-ups"),
            cls="figures",
        ),
    )


def _lookups(table: TablePlan) -> Bar:
    name, reads = table.entry.name, table.placed.reads
    found = table.placed.demand.lookups - reads
    parts = [
        BarSegment("", found, "first", f"{name}: {_number(found)} found in memory"),
        BarSegment("", reads, "fourth", f"{name}: {_number(reads)} read from the disk"),
    ]
    return Bar(fitting(name, _LABEL), parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"
