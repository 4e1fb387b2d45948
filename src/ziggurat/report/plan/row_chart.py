"""The frame of charts with one row per item: a horizontal scale from zero, its ticks, and a dashed limit line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ziggurat.report.markup import Html, el, join
from ziggurat.report.svg import RIGHT, TOP, WIDTH, ticks

STEP = 22
"""Units between rows."""
AXIS = 36
"""Units below the last row."""
FAR = 3
"""A limit more than this many times the longest value is left out."""


@dataclass(frozen=True, slots=True)
class RowScale:
    """The scale of a chart with rows from top to bottom.

    Attributes:
        left: width of the labels in units.
        number: the number of rows.
        longest: the largest value in the chart.
        limit: value of the dashed line; None for none.
        write: formats a value.
    """

    left: float
    number: int
    longest: float
    limit: float | None
    write: Callable[[float], str]

    def x(self, value: float) -> float:
        return self.left + value / self.high * (WIDTH - self.left - RIGHT)

    def top(self, row: int) -> float:
        return TOP + STEP * row

    @property
    def high(self) -> float:
        """The value at the right end of the scale."""
        return max(self.longest, self._line or 0.0) * 1.02 or 1.0

    @property
    def _line(self) -> float | None:
        return self.limit if self.limit is not None and self.limit <= FAR * self.longest else None

    def draw(self, description: str, label: str, limit_label: str, *marks: Html) -> Html:
        """Returns the drawing, with the marks over grid and limit.

        Args:
            description: text for screen readers.
            label: label of the axis.
            limit_label: tooltip of the limit, before its value.
            marks: the drawn rows.
        """
        bottom = self.top(self.number)
        limit = None
        if self._line is not None:
            x = f"{self.x(self._line):.1f}"
            line = el("line", cls="best", x1=x, x2=x, y1=TOP - 6, y2=bottom)
            limit = el("g", el("title", f"{limit_label}: {self.write(self._line)}"), line)
        middle = (self.left + WIDTH - RIGHT) / 2
        return el(
            "svg",
            self._grid(bottom),
            *marks,
            limit,
            el("text", label, x=middle, y=bottom + AXIS - 5, text_anchor="middle"),
            viewBox=f"0 0 {WIDTH} {bottom + AXIS}",
            role="img",
            aria_label=description,
        )

    def _grid(self, bottom: float) -> Html:
        marks: list[Html] = []
        for tick in ticks(0.0, self.high, 4):
            x, text = self.x(tick), self.write(tick)
            middle = min(x, WIDTH - 3.4 * len(text))  # keep a long last label inside
            marks.append(el("line", cls="grid", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=TOP - 4, y2=bottom))
            marks.append(el("text", text, x=f"{middle:.1f}", y=bottom + 12, text_anchor="middle"))
        return join(marks)
