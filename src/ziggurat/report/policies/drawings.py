"""Draws a run of policies: returns and rate over steps, divergences as a matrix, scores over λ and over diversity, and
a film strip."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import numpy as np

from ziggurat.policies.film_record import Film, Frame
from ziggurat.policies.records import EvaluationRecord, Judged, SelectionRecord
from ziggurat.policies.run_folder import Episode
from ziggurat.policies.scores import mean_interval
from ziggurat.report.charts import MAX_POINTS, thin
from ziggurat.report.markup import Html, el, join
from ziggurat.report.numbers import count, short
from ziggurat.report.svg import Axes, padded

SIZE = 260
_EDGE = 26
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_CELL_WIDTH, _CELL_HEIGHT = 120, 120


def returns_over_steps(episodes: Sequence[Episode], ends: Sequence[int], total: int) -> Html:
    """Draws the return of training episodes over steps, smoothed, with a dashed line where each snapshot was taken."""
    steps, returns = thin([float(each.step) for each in episodes], [each.total for each in episodes], MAX_POINTS // 2)
    axes = Axes((0.0, float(total)), padded(returns), "steps")
    low, high = axes.y(axes.y_range[1]), axes.y(axes.y_range[0])
    marks = [
        el(
            "g",
            el("title", f"cycle {number} ends at {count(end)} steps"),
            el("line", cls="best", x1=f"{axes.x(end):.1f}", x2=f"{axes.x(end):.1f}", y1=low, y2=high),
        )
        for number, end in enumerate(ends, 1)
    ]
    line = axes.line(steps, returns, "first")
    return axes.draw(f"Return of {len(episodes)} training episodes; the last is {short(returns[-1])}", *marks, line)


def rate_over_steps(rate: Callable[[int], float], total: int) -> Html:
    """Draws the learning rate over steps."""
    steps = np.unique(np.linspace(1, total, 400).round().astype(int)).tolist()
    rates = [rate(step) for step in steps]
    axes = Axes((0.0, float(total)), (0.0, max(rates) * 1.05), "steps")
    return axes.draw(f"Learning rate, from {short(rates[0])} on", axes.line(steps, rates, "second"))


def divergence_matrix(selection: SelectionRecord) -> Html:
    """Draws the divergence of each pair of snapshots as the opacity of a square; chosen members are outlined."""
    cycles, divergence = selection.cycles, selection.divergence_MM
    highest = float(divergence.max()) or 1.0
    cell = (SIZE - _EDGE) / len(cycles)
    marks: list[Html] = []
    for row, one in enumerate(cycles):
        middle = _EDGE + (row + 0.5) * cell
        marks.append(el("text", one, x=_EDGE - 6, y=f"{middle:.1f}", dy="0.35em", text_anchor="end"))
        marks.append(el("text", one, x=f"{middle:.1f}", y=_EDGE - 8, text_anchor="middle"))
        for column, other in enumerate(cycles):
            value = float(divergence[row, column])
            together = row != column and {one, other} <= set(selection.ensemble.members)
            square = el(
                "rect",
                x=f"{_EDGE + column * cell:.1f}",
                y=f"{_EDGE + row * cell:.1f}",
                width=f"{cell - 1:.2f}",
                height=f"{cell - 1:.2f}",
                style=f"fill:var(--first);fill-opacity:{value / highest:.3f}"
                + (";stroke:var(--second);stroke-width:1.5" if together else ""),
            )
            marks.append(el("g", el("title", f"cycles {one} and {other}: {short(value)} nats"), square))
    description = f"Divergences of {len(cycles)} snapshots, at most {short(highest)} nats"
    return el("svg", *marks, viewBox=f"0 0 {SIZE} {SIZE}", role="img", aria_label=description)


def score_over_weight(found: EvaluationRecord) -> Html:
    """Draws the mean return of the members that each λ takes, with intervals; λ is drawn at equal distances."""
    places = [float(place) for place in range(len(found.weights))]
    bounds = [mean_interval(np.array(each.returns)) for each in found.sweep]
    axes = Axes(
        (-0.5, len(places) - 0.5), padded([value for each in bounds for value in each]), "", "return", height=200
    )
    marks = [_interval(axes, x, each) for x, each in zip(places, bounds, strict=True)]
    marks += [
        _dot(axes, x, middle, "first", f"λ = {short(weight)}: {short(middle)} with cycles {_named(each)}")
        for x, (middle, _, _), weight, each in zip(places, bounds, found.weights, found.sweep, strict=True)
    ]
    marks.append(axes.line(places, [middle for middle, _, _ in bounds], "first"))
    table = ", ".join(f"{short(w)}: {short(b[0])}" for w, b in zip(found.weights, bounds, strict=True))
    labels = [
        el("text", short(w), x=f"{axes.x(x):.1f}", y=axes.height - 6, text_anchor="middle")
        for x, w in zip(places, found.weights, strict=True)
    ]
    return _without_ticks(axes, f"Return over λ: {table}", [*marks, *labels])


def score_over_diversity(found: EvaluationRecord) -> Html:
    """Draws the mean return of each ensemble of the sweep over the mean divergence of its members."""
    ensembles = {each.members: each for each in (*found.sweep, found.ensemble)}
    points = [(each.divergence, mean_interval(np.array(each.returns)), each) for each in ensembles.values()]
    axes = Axes(
        padded([0.0, *(x for x, _, _ in points)]),
        padded([value for _, each, _ in points for value in each]),
        "mean divergence of the members, nats",
        "return",
        height=200,
    )
    marks: list[Html] = []
    for x, bounds, each in sorted(points, key=lambda each: each[0]):
        chosen = each.members == found.ensemble.members
        marks.append(_interval(axes, x, bounds))
        tip = f"cycles {_named(each)}: {short(bounds[0])} at {short(x)} nats"
        marks.append(_dot(axes, x, bounds[0], "second" if chosen else "first", tip))
    return axes.draw(f"Return of {len(points)} ensembles over the divergence of their members", *marks)


def film_strip(film: Film) -> Html:
    """Draws the frames of an episode side by side, as images or as lines seen from the side."""
    return el("div", *(_frame(each, film) for each in film.frames), style="display:flex;flex-wrap:wrap;gap:0.5rem")


def _frame(frame: Frame, film: Film) -> Html:
    label = f"step {count(frame.step)}"
    if frame.png:
        # What is not base64 was not written by us, and would be an address to load from.
        source = f"data:image/png;base64,{frame.png}" if _BASE64.fullmatch(frame.png) else ""
        shown = el("img", src=source, alt=label, width=_CELL_WIDTH, style="display:block")
    else:
        shown = _scene(frame, film)
    return el("figure", shown, el("figcaption", label), style=f"width:{_CELL_WIDTH}px;margin:0")


def _scene(frame: Frame, film: Film) -> Html:
    """Draws lines to the scale of the whole film, so that frames can be compared."""
    lines = [line for each in film.frames for line in each.lines]
    xs = [x for line in lines for x in (line.x1 - line.width, line.x2 + line.width, line.x1, line.x2)]
    ys = [y for line in lines for y in (line.y1 - line.width, line.y2 + line.width, line.y1, line.y2)]
    span = max(max(xs) - min(xs), max(ys) - min(ys), 1e-9)
    scale = _CELL_WIDTH / span
    left, top = (min(xs) + max(xs) - span) / 2, (min(ys) + max(ys) + span) / 2
    marks = [
        el(
            "line",
            x1=f"{(line.x1 - left) * scale:.1f}",
            y1=f"{(top - line.y1) * scale:.1f}",
            x2=f"{(line.x2 - left) * scale:.1f}",
            y2=f"{(top - line.y2) * scale:.1f}",
            style=f"stroke:var(--{'quiet' if place == 0 else 'first'});stroke-linecap:round;"
            f"stroke-width:{max(line.width * scale, 1):.1f}",
        )
        for place, line in enumerate(frame.lines)
    ]
    return el("svg", *marks, viewBox=f"0 0 {_CELL_WIDTH} {_CELL_HEIGHT}", role="img", aria_label=f"step {frame.step}")


def _without_ticks(axes: Axes, description: str, marks: Sequence[Html]) -> Html:
    """Draws axes whose x values have labels of their own, among the marks."""
    grid = [
        el("line", cls="grid", x1=50, x2=342, y1=f"{axes.y(value):.1f}", y2=f"{axes.y(value):.1f}")
        for value in axes.y_range
    ]
    ends = [
        el("text", short(value), x=44, y=f"{axes.y(value):.1f}", dy="0.35em", text_anchor="end")
        for value in axes.y_range
    ]
    return el(
        "svg", join(grid), join(ends), *marks, viewBox=f"0 0 360 {axes.height}", role="img", aria_label=description
    )


def _interval(axes: Axes, x: float, bounds: tuple[float, float, float]) -> Html:
    at = f"{axes.x(x):.1f}"
    return el("line", cls="line quiet bar", x1=at, x2=at, y1=f"{axes.y(bounds[1]):.1f}", y2=f"{axes.y(bounds[2]):.1f}")


def _dot(axes: Axes, x: float, y: float, cls: str, tip: str) -> Html:
    assert math.isfinite(y), tip
    circle = el("circle", cls=f"dot {cls}", cx=f"{axes.x(x):.1f}", cy=f"{axes.y(y):.1f}", r=3)
    return el("g", el("title", tip), circle)


def _named(judged: Judged) -> str:
    return ", ".join(map(str, judged.members))
