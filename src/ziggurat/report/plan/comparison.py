"""The section of a plan's page that compares the plans of several planners for the same tables."""

from __future__ import annotations

from collections.abc import Callable

from ziggurat.planning.comparison import Compared, Comparison
from ziggurat.planning.plan_estimate import DeviceLoad
from ziggurat.planning.quantities import format_bytes, format_seconds
from ziggurat.report.markup import Html, el, figure, section, table
from ziggurat.report.plan import rows as plan_rows
from ziggurat.report.plan.strip_chart import Strip, strips

OWN, OTHERS = "first", "quiet"


def planners_section(comparison: Comparison) -> Html:
    """Returns the section with time and memory of each device under each planner's plan, as charts and as a table."""
    headers, rows, texts = plan_rows.planners(comparison)
    planned = comparison.planned
    capacity = planned.topology.memory_bytes * (1 - planned.reserve)
    seconds = strips(
        f"Seconds of a step on each device by planner; an even share is {format_seconds(comparison.even_share)}",
        [_strip(comparison, entry, entry.seconds, format_seconds) for entry in comparison.entries],
        "time of a step",
        _zero_without_unit(format_seconds),
        ("lower bound" if comparison.proven else "even share", comparison.even_share),
    )
    memory = strips(
        f"Bytes on each device by planner, {format_bytes(capacity)} at most",
        [_strip(comparison, entry, _bytes(entry), format_bytes) for entry in comparison.entries],
        "weights, optimizer, buffers of a step",
        format_bytes,
        ("memory less the reserve", capacity),
    )
    rejected = [el("p", f"{each.name}: {each.refused}", cls="note") for each in comparison.entries if not each.planned]
    return section(
        "planners",
        "Planners",
        el("p", plan_rows.describe_comparison(comparison)),
        *rejected,
        el(
            "div",
            figure("Each dot is a device; all devices wait for the rightmost.", seconds, caption="Time"),
            figure("The dashed line, if shown, is the memory of a device less the reserve.", memory, caption="Memory"),
            cls="figures",
        ),
        el("div", table(headers, [[*row] for row in rows], texts), cls="tight"),
    )


def _strip(comparison: Comparison, entry: Compared, values: tuple[float, ...], write: Callable[[float], str]) -> Strip:
    colour = OWN if entry is comparison.entries[0] else OTHERS
    dots = [(value, f"{entry.name}, device {rank}: {write(value)}") for rank, value in enumerate(values)]
    return Strip(entry.name, colour, dots)


def _bytes(entry: Compared) -> tuple[float, ...]:
    devices: tuple[DeviceLoad, ...] = entry.planned.devices if entry.planned else ()
    return tuple(float(plan_rows.in_use(load)) for load in devices)


def _zero_without_unit(write: Callable[[float], str]) -> Callable[[float], str]:
    return lambda value: write(value) if value else "0"
