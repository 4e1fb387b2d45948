"""Draws devices under several plans as strips: one row per plan, one dot per device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ziggurat.report.markup import Html, el, join
from ziggurat.report.plan.chart import fitting
from ziggurat.report.plan.row_chart import STEP, RowScale

LEFT = 96


@dataclass(frozen=True, slots=True)
class Strip:
    """A row: its label, its colour class, and a value with its tooltip for each dot."""

    label: str
    colour: str
    dots: Sequence[tuple[float, str]]


def strips(
    description: str, rows: Sequence[Strip], label: str, write: Callable[[float], str], limit: tuple[str, float]
) -> Html:
    """Draws rows of dots.

    Args:
        description: text for screen readers.
        rows: the rows from top to bottom; a row without dots stays empty.
        label: label of the axis.
        write: formats a tick's value.
        limit: name and value of the dashed line; it is left out if far above every dot.
    """
    longest = max((value for row in rows for value, _ in row.dots), default=0.0)
    axes = RowScale(LEFT, len(rows), longest, limit[1], write)
    return axes.draw(description, label, limit[0], *(_strip(axes, number, row) for number, row in enumerate(rows)))


def _strip(axes: RowScale, number: int, row: Strip) -> Html:
    y = axes.top(number) + STEP / 2 - 2
    marks = [el("text", fitting(row.label, LEFT - 10), x=LEFT - 6, y=y, dy="0.35em", text_anchor="end")]
    if row.dots:
        values = [value for value, _ in row.dots]
        first, last = f"{axes.x(min(values)):.1f}", f"{axes.x(max(values)):.1f}"
        marks.append(el("line", cls="axis", x1=first, x2=last, y1=y, y2=y))
    for value, tip in row.dots:
        circle = el("circle", cls=f"dot part {row.colour}", cx=f"{axes.x(value):.1f}", cy=y, r=4)
        marks.append(el("g", el("title", tip), circle))
    return join(marks)
