"""Draws a plan as stacked bars: one bar per device, with a segment per shard whose length is its cost."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ziggurat.report.markup import Html, el, join
from ziggurat.report.plan.row_chart import RowScale

LEFT = 62
THICK = 17
"""Thickness of a bar in units."""

SMALL = 0.004
"""Segments below this share of the axis are merged into one."""


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A segment of a bar: its name, its length in the axis' unit, its colour class and its tooltip."""

    name: str
    value: float
    colour: str
    tip: str


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of a device: its label and its segments."""

    label: str
    segments: Sequence[BarSegment]

    @property
    def total(self) -> float:
        return sum(segment.value for segment in self.segments)


def stacked(
    description: str,
    bars: Sequence[Bar],
    label: str,
    write: Callable[[float], str],
    limit: float | None = None,
    left: float = LEFT,
) -> Html:
    """Draws horizontal stacked bars.

    Args:
        description: text for screen readers.
        bars: the bars from top to bottom.
        label: label of the axis.
        write: formats a tick's value.
        limit: value of a dashed line; it is left out if far above every bar.
        left: units for the labels of the bars.
    """
    axes = RowScale(left, len(bars), max((bar.total for bar in bars), default=0.0), limit, write)
    return axes.draw(description, label, "limit", *(_bar(axes, number, bar) for number, bar in enumerate(bars)))


def _bar(axes: RowScale, number: int, bar: Bar) -> Html:
    top = axes.top(number)
    marks = [el("text", bar.label, x=axes.left - 6, y=top + THICK / 2, dy="0.35em", text_anchor="end")]
    start = 0.0
    for segment in _merge_small(bar.segments, axes.high):
        left, right = axes.x(start), axes.x(start + segment.value)
        start += segment.value
        place = {"x": f"{left:.1f}", "y": f"{top:.1f}", "width": f"{right - left:.1f}", "height": THICK}
        name = fitting(segment.name, right - left - 6)
        marks.append(
            el(
                "g",
                el("title", segment.tip),
                el("rect", cls=f"dot part {segment.colour}", **place),
                el("text", name, cls="on", x=f"{left + 3:.1f}", y=top + THICK / 2, dy="0.35em") if name else None,
            )
        )
    return join(marks)


def _merge_small(segments: Sequence[BarSegment], high: float) -> list[BarSegment]:
    """Sorts segments from longest to shortest, and merges those that are too short to see, by colour."""
    falling = sorted(segments, key=lambda segment: -segment.value)
    small = [segment for segment in falling if segment.value < SMALL * high]
    shown = [segment for segment in falling if segment.value >= SMALL * high]
    for colour in dict.fromkeys(segment.colour for segment in small):
        alike = [segment for segment in small if segment.colour == colour and segment.value > 0]
        if len(alike) == 1:
            shown += alike
        elif alike:
            name = f"{len(alike)} small"
            shown.append(
                BarSegment(name, sum(segment.value for segment in alike), colour, f"{len(alike)} small shards")
            )
    return shown


def fitting(name: str, width: float) -> str:
    """Truncates ``name`` to ``width`` units at 11 pixels; empty if no more than two characters would be left."""
    free, cut = width, ""
    for letter in name:
        free -= 12.0 if unicodedata.east_asian_width(letter) in "WF" else 7.0
        if free < 0:
            cut = f"{cut[:-1]}…"
            break
        cut += letter
    return cut if len(cut) > 2 or cut == name else ""
