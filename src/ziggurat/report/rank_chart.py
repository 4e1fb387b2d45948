"""Draws mean ranks of methods over data sets, with bars over those that Nemenyi's test does not tell apart."""

from __future__ import annotations

from collections.abc import Sequence

from ziggurat.metrics.method_ranks import alike
from ziggurat.report.markup import Html, el
from ziggurat.report.numbers import short
from ziggurat.report.svg import RIGHT, WIDTH, ticks

_LEFT, _STEP, _TOP, _AXIS, _BAR = 132, 22, 30, 34, 9
_MOST = 20
"""Characters of a name that fit beside the axis."""


def critical_differences(names: Sequence[str], mean_ranks: Sequence[float], difference: float, ours: str = "") -> Html:
    """Draws a row for each method, the best rank first.

    Args:
        names: the methods.
        mean_ranks: the mean rank of each.
        difference: the critical difference; a bar of its length stands above the rows.
        ours: the method that is coloured.
    """
    order = sorted(range(len(names)), key=lambda place: (mean_ranks[place], place))
    groups = alike(mean_ranks, difference)
    rows_end = _TOP + _STEP * len(order)
    bottom = rows_end + _BAR * len(groups) + 6
    low, high = 1.0, max(float(len(names)), 1.0 + difference)

    def x(rank: float) -> float:
        return _LEFT + (rank - low) / (high - low) * (WIDTH - _LEFT - RIGHT)

    marks: list[Html] = []
    for tick in ticks(low, high):
        at = f"{x(tick):.1f}"
        marks.append(el("line", cls="grid", x1=at, x2=at, y1=_TOP - 4, y2=bottom))
        marks.append(el("text", short(tick), x=at, y=bottom + 13, text_anchor="middle"))
    start, end = f"{x(1.0):.1f}", f"{x(1.0 + difference):.1f}"
    scale = el("line", cls="line second", x1=start, x2=end, y1=16, y2=16)
    marks.append(el("g", el("title", f"critical difference {short(difference)}"), scale))
    marks.append(el("text", f"CD {short(difference)}", x=_LEFT - 6, y=16, dy="0.35em", text_anchor="end"))
    for row, place in enumerate(order):
        marks += _row(names[place], mean_ranks[place], x(mean_ranks[place]), row, names[place] == ours)
    for number, group in enumerate(groups):
        y = rows_end + _BAR * number + 2
        first, last = x(mean_ranks[group[0]]), x(mean_ranks[group[-1]])
        bar = el("line", cls="line quiet", x1=f"{first - 3:.1f}", x2=f"{last + 3:.1f}", y1=y, y2=y, stroke_width=3)
        marks.append(el("g", el("title", "not told apart: " + ", ".join(names[each] for each in group)), bar))
    middle = (_LEFT + WIDTH - RIGHT) / 2
    marks.append(el("text", "mean rank, 1 is the best", x=middle, y=bottom + 28, text_anchor="middle"))
    written = ", ".join(f"{names[place]} {short(mean_ranks[place])}" for place in order)
    return el(
        "svg",
        *marks,
        viewBox=f"0 0 {WIDTH} {bottom + _AXIS}",
        role="img",
        aria_label=f"Mean ranks of {len(names)} methods: {written}; critical difference {short(difference)}",
    )


def _row(name: str, rank: float, at: float, row: int, is_ours: bool) -> list[Html]:
    y = _TOP + _STEP * row + 9
    label = name if len(name) <= _MOST else f"{name[: _MOST - 1]}…"
    dot = el("circle", cls="dot first" if is_ours else "dot quiet", cx=f"{at:.1f}", cy=y, r=5)
    return [
        el("text", label, x=_LEFT - 6, y=y, dy="0.35em", text_anchor="end"),
        el("line", cls="grid", x1=_LEFT, x2=f"{at:.1f}", y1=y, y2=y),
        el("g", el("title", f"{name}: mean rank {short(rank)}"), dot),
    ]
