"""Draws the charts of a search: the history of the best value, importances, and parallel coordinates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ziggurat.report.charts import bar
from ziggurat.report.markup import Html, el, table
from ziggurat.report.numbers import percent, short
from ziggurat.report.svg import Axes, padded
from ziggurat.search.outputs import Found, shown
from ziggurat.search.study import TrialRecord

GOOD_SHARE = 0.2
"""The share of the complete trials that parallel coordinates stress."""
_AXIS_WIDTH, _HEIGHT, _TOP, _BOTTOM, _SIDE = 116, 310, 44, 24, 58


def history(found: Found) -> Html:
    """Draws the value of each complete trial, and the best value so far as a line."""
    complete = _complete(found)
    xs = [float(each.number) for each in complete]
    ys = [value for each in complete if (value := each.value) is not None]
    better = max if found.higher_is_better else min
    best = [better(ys[: place + 1]) for place in range(len(ys))]
    axes = Axes((0.0, max(*xs, 1.0)), padded(ys), "trial")
    stepped_xs = [x for pair in itertools.pairwise(xs) for x in pair] + xs[-1:]
    stepped_ys = [y for value in best[:-1] for y in (value, value)] + best[-1:]
    dots = [
        el(
            "g",
            el("title", f"trial {each.number}: {short(y)}"),
            el("circle", cls="dot first", cx=f"{axes.x(x):.1f}", cy=f"{axes.y(y):.1f}", r=2.6),
        )
        for each, x, y in zip(complete, xs, ys, strict=True)
    ]
    return axes.draw(
        f"{found.monitor} of {len(ys)} complete trials; the best is {short(best[-1])}",
        axes.line(stepped_xs, stepped_ys, "second"),
        *dots,
    )


def importances(found: Found) -> Html:
    """Returns a table of the keys with their importances as bars."""
    rows: list[list[object]] = [
        [key, el("span", bar(share), percent(share), cls="share")] for key, share in found.importances.items()
    ]
    return table(["Key", "Share of the variance"], rows, text_columns=2)


def parallel_coordinates(found: Found) -> Html:
    """Draws each complete trial as a line over an axis for each key, ending at its value; the best are stressed."""
    keys = [*found.space]
    complete = _complete(found)
    values = [value for each in complete if (value := each.value) is not None]
    low, high = padded(values, 0.02)
    width = 2 * _SIDE + _AXIS_WIDTH * len(keys)
    ranked = sorted(complete, key=lambda each: each.value or 0.0, reverse=found.higher_is_better)
    good = {each.number for each in ranked[: max(1, round(GOOD_SHARE * len(ranked)))]}
    marks: list[Html] = []
    for each in sorted(complete, key=lambda each: (each.number == found.best.number, each.number in good)):
        cls = "first" if each.number == found.best.number else "second" if each.number in good else "quiet"
        points: list[str] = []
        for place, key in enumerate(keys):
            height = found.space[key].place(each.settings.get(key))
            if height is not None:  # the config's own value may lie outside of a written space
                points.append(_point(place, height))
        points.append(_point(len(keys), ((each.value or 0.0) - low) / (high - low)))
        line = el("polyline", cls=f"line {cls}", points=" ".join(points))
        marks.append(el("g", el("title", f"trial {each.number}: {short(each.value or 0.0)}"), line))
    for place, key in enumerate(keys):
        ends = _ends(found.space[key].ends, found, key)
        marks.append(_axis(place, key, *ends))
    marks.append(_axis(len(keys), found.monitor, short(low), short(high)))
    return el(
        "svg",
        *marks,
        viewBox=f"0 0 {width} {_HEIGHT}",
        role="img",
        aria_label=f"Settings of {len(complete)} trials and their {found.monitor}",
        style=f"min-width:{min(width, 1000)}px",
    )


def _complete(found: Found) -> list[TrialRecord]:
    return [each for each in found.trials if each.value is not None]


def _ends(values: Sequence[Any], found: Found, key: str) -> tuple[str, str]:
    """Returns the lowest and the highest value of a key's axis, in words."""
    placed = sorted(
        ((found.space[key].place(value) or 0.0, shown(value)) for value in values), key=lambda each: each[0]
    )
    return placed[0][1], placed[-1][1]


def _x(place: int) -> int:
    return _SIDE + place * _AXIS_WIDTH


def _point(place: int, height: float) -> str:
    return f"{_x(place)},{_HEIGHT - _BOTTOM - height * (_HEIGHT - _TOP - _BOTTOM):.1f}"


def _axis(place: int, name: str, low: str, high: str) -> Html:
    x = _x(place)
    section, _, last = name.rpartition(".")
    return el(
        "g",
        el("title", name),
        el("line", cls="axis", x1=x, x2=x, y1=_TOP, y2=_HEIGHT - _BOTTOM),
        el("text", section, x=x, y=10, text_anchor="middle"),
        el("text", last, x=x, y=22, text_anchor="middle"),
        el("text", high, x=x, y=_TOP - 6, text_anchor="middle"),
        el("text", low, x=x, y=_HEIGHT - _BOTTOM + 14, text_anchor="middle"),
    )
