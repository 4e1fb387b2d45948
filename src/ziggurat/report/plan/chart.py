"""The drawing of a plan: a bar a device, its shards one after the other, each as long as what it costs."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ziggurat.report.markup import Html, el, join
from ziggurat.report.plan.row_chart import RowScale

LEFT = 62
THICK = 17
"""Units of a bar."""

SMALL = 0.004
"""What is a smaller share of the axis is drawn as one with the others that are."""


@dataclass(frozen=True, slots=True)
class BarSegment:
    """A stretch of a bar: its name, its length in the axis' unit, its colour's class, and what the pointer is told."""

    name: str
    value: float
    colour: str
    tip: str


@dataclass(frozen=True, slots=True)
class Bar:
    """A device: its label and what lies on it."""

    label: str
    parts: Sequence[BarSegment]

    @property
    def total(self) -> float:
        return sum(part.value for part in self.parts)


def stacked(
    description: str, bars: Sequence[Bar], label: str, write: Callable[[float], str], limit: float | None = None
) -> Html:
    """Horizontal bars.

    Args:
        description: is read to those who cannot see it.
        bars: from top to bottom.
        label: what runs to the right.
        write: of a tick's value.
        limit: a dashed line; left out where it lies far beyond every bar.
    """
    axes = RowScale(LEFT, len(bars), max((bar.total for bar in bars), default=0.0), limit, write)
    return axes.draw(description, label, "limit", *(_bar(axes, number, bar) for number, bar in enumerate(bars)))


def _bar(axes: RowScale, number: int, bar: Bar) -> Html:
    top = axes.top(number)
    marks = [el("text", bar.label, x=LEFT - 6, y=top + THICK / 2, dy="0.35em", text_anchor="end")]
    start = 0.0
    for part in _gathered(bar.parts, axes.high):
        left, right = axes.x(start), axes.x(start + part.value)
        start += part.value
        place = {"x": f"{left:.1f}", "y": f"{top:.1f}", "width": f"{right - left:.1f}", "height": THICK}
        name = fitting(part.name, right - left - 6)
        marks.append(
            el(
                "g",
                el("title", part.tip),
                el("rect", cls=f"dot part {part.colour}", **place),
                el("text", name, cls="on", x=f"{left + 3:.1f}", y=top + THICK / 2, dy="0.35em") if name else None,
            )
        )
    return join(marks)


def _gathered(parts: Sequence[BarSegment], high: float) -> list[BarSegment]:
    """The parts from the longest to the shortest; those too short to be seen as one for each colour."""
    falling = sorted(parts, key=lambda part: -part.value)
    small = [part for part in falling if part.value < SMALL * high]
    shown = [part for part in falling if part.value >= SMALL * high]
    for colour in dict.fromkeys(part.colour for part in small):
        alike = [part for part in small if part.colour == colour and part.value > 0]
        if len(alike) == 1:
            shown += alike
        elif alike:
            name = f"{len(alike)} small"
            shown.append(BarSegment(name, sum(part.value for part in alike), colour, f"{len(alike)} small shards"))
    return shown


def fitting(name: str, width: float) -> str:
    """``name``, cut to what fits into ``width`` units of 11-pixel letters; empty where that is no more than two."""
    room, cut = width, ""
    for letter in name:
        room -= 12.0 if unicodedata.east_asian_width(letter) in "WF" else 7.0
        if room < 0:
            cut = f"{cut[:-1]}…"
            break
        cut += letter
    return cut if len(cut) > 2 or cut == name else ""
