"""Draws axes as inline SVG. Colours come from the page's style sheet, so a drawing works in light and dark mode.

Drawings are 360 units wide and scale with their column; a unit is close to a pixel at that size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ziggurat.report import numbers
from ziggurat.report.markup import Html, el, join

WIDTH = 360
HEIGHT = 230
LEFT, RIGHT, TOP, BOTTOM = 50, 18, 10, 38


@dataclass(frozen=True, slots=True)
class Axes:
    """A plotting area with a linear y axis and a linear or logarithmic x axis.

    Attributes:
        x_range: data values at the left and right edges.
        y_range: data values at the lower and upper edges.
        x_label: label of the x axis.
        y_label: label of the y axis.
        height: height of the whole drawing, in units.
        x_log: whether the x axis is logarithmic; x is then above 0.
    """

    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_label: str
    y_label: str = ""
    height: int = HEIGHT
    x_log: bool = False

    def x(self, value: float) -> float:
        low, high = self.x_range
        if self.x_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return LEFT + (value - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - BOTTOM - TOP)

    def points(self, xs: Sequence[float], ys: Sequence[float]) -> str:
        """Returns the coordinates of a polyline."""
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys, strict=True))

    def line(self, xs: Sequence[float], ys: Sequence[float], cls: str) -> Html:
        return el("polyline", cls=f"line {cls}", points=self.points(xs, ys))

    def draw(self, description: str, *marks: Html) -> Html:
        """Returns the drawing, with grid and ticks behind the marks; ``description`` is the text for screen readers."""
        return el(
            "svg",
            self._grid(),
            *marks,
            el("text", self.x_label, x=(LEFT + WIDTH - RIGHT) / 2, y=self.height - 6, text_anchor="middle"),
            self._upward_label(),
            viewBox=f"0 0 {WIDTH} {self.height}",
            role="img",
            aria_label=description,
        )

    def _grid(self) -> Html:
        bottom = self.height - BOTTOM
        marks: list[Html] = []
        for tick in ticks(*self.y_range):
            y = f"{self.y(tick):.1f}"
            marks.append(el("line", cls="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
            marks.append(el("text", numbers.tick(tick), x=LEFT - 6, y=y, dy="0.35em", text_anchor="end"))
        for tick in (log_ticks if self.x_log else ticks)(*self.x_range):
            x = f"{self.x(tick):.1f}"
            marks.append(el("line", cls="tick", x1=x, x2=x, y1=bottom, y2=bottom + 4))
            label = numbers.tick(tick)
            middle = min(self.x(tick), WIDTH - 3.8 * len(label))  # keep a long last label inside
            marks.append(el("text", label, x=f"{middle:.1f}", y=bottom + 16, text_anchor="middle"))
        marks.append(el("line", cls="axis", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom))
        return join(marks)

    def _upward_label(self) -> Html | None:
        if not self.y_label:
            return None
        middle = (TOP + self.height - BOTTOM) / 2
        return el("text", self.y_label, transform=f"translate(10 {middle:.0f}) rotate(-90)", text_anchor="middle")


def padded(
    values: Sequence[float], share: float = 0.06, within: tuple[float, float] = (-math.inf, math.inf)
) -> tuple[float, float]:
    """Returns a range around the values with some padding; its width is above zero even if all values are equal.

    Args:
        values: at least one value; all finite.
        share: the padding on either side, as a share of their range.
        within: the least and largest possible values, which the padding does not exceed.
    """
    low, high = min(values), max(values)
    air = (high - low) * share or abs(high) * share or 1.0
    return max(low - air, within[0]), min(high + air, within[1])


def ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Returns round values within the range: multiples of 1, 2 or 5 times a power of ten."""
    step = 10.0 ** math.floor(math.log10((high - low) / wanted))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= wanted)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) + 0.0 for index in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Returns round values within the range for a logarithmic scale: 1, 2 and 5 times the powers of ten, or fewer.

    If even the powers of ten are more than ``most``, only every second or third of them. If fewer than two values are
    in the range, the ticks of a linear scale.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors, step in (((1, 2, 5), 1), ((1, 3), 1), *(((1,), step) for step in range(1, last - first + 2))):
        powers = range(first - first % step, last + 1, step)
        found = [factor * 10.0**power for power in powers for factor in factors]
        inside = [tick for tick in found if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
        if len(inside) <= most:
            return inside if len(inside) > 1 else ticks(low, high)
    raise AssertionError((low, high))
