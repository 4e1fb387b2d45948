"""Draws the map of features, coloured by tower, the loads of towers as bars, and affinities as a matrix.

Towers beyond four need more colours than the style sheet has: hues at equal steps, of a lightness that is legible on
light and dark paper. Each mark also shows the number of its tower, so colour is never the only sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ziggurat.report.markup import Html, el, join
from ziggurat.report.numbers import short
from ziggurat.report.svg import RIGHT, WIDTH, ticks
from ziggurat.towers.partitioner.partition import Partition

SIZE = 360
EDGE = 26
RADIUS = 7.5
LABELLED = 60
"""Up to so many features have their names beside them; those of more are in tooltips only."""

LEFT, STEP, THICK, TOP, AXIS = 46, 22, 16, 8, 34


def colour(tower: int, towers: int) -> str:
    """Returns the colour of a tower as CSS."""
    return f"hsl({round(210 + 360 * tower / towers) % 360} 52% {46 if tower % 2 else 52}%)"


def feature_map(partition: Partition) -> Html:
    """Draws every feature at its place on the map, in the colour of its tower and with its number."""
    xs, ys = partition.places_F2[:, 0], partition.places_F2[:, 1]
    span = max(float(xs.max() - xs.min()), float(ys.max() - ys.min()), 1e-9)  # one scale: distances are comparable
    towers = len(partition.towers)

    def place(value: float, middle: float) -> float:
        return SIZE / 2 + (value - middle) / span * (SIZE - 2 * EDGE)

    x_middle, y_middle = (float(each.max() + each.min()) / 2 for each in (xs, ys))
    marks: list[Html] = []
    for feature, tower in enumerate(partition.tower_F):
        name = partition.features[feature]
        x, y = place(float(xs[feature]), x_middle), SIZE - place(float(ys[feature]), y_middle)
        dot = el("circle", cls="dot", cx=f"{x:.1f}", cy=f"{y:.1f}", r=RADIUS, style=f"fill:{colour(tower, towers)}")
        number = el("text", tower, cls="on", x=f"{x:.1f}", y=f"{y:.1f}", dy="0.35em", text_anchor="middle")
        label = None
        if len(partition.features) <= LABELLED:
            right = x < SIZE * 0.7
            label = el(
                "text",
                name if len(name) <= 18 else f"{name[:17]}…",
                x=f"{x + (RADIUS + 3) * (1 if right else -1):.1f}",
                y=f"{y:.1f}",
                dy="0.35em",
                text_anchor="start" if right else "end",
            )
        tip = el("title", f"{name}: tower {tower}, {short(partition.loads_F[feature])} floats an example")
        marks.append(el("g", tip, dot, number, label))
    description = f"Map of {len(partition.features)} features in {towers} towers"
    return el("svg", *marks, viewBox=f"0 0 {SIZE} {SIZE}", role="img", aria_label=description)


def load_bars(partition: Partition) -> Html:
    """Draws the load of each tower as a bar, with a segment for each feature, and the mean as a dashed line."""
    loads = partition.loads
    mean = sum(loads) / len(loads)
    high = (max(loads) or 1.0) * 1.04
    bottom = TOP + STEP * len(loads)

    def x(value: float) -> float:
        return LEFT + value / high * (WIDTH - LEFT - RIGHT)

    marks: list[Html] = []
    for tick in ticks(0.0, high, 4):
        at = f"{x(tick):.1f}"
        marks.append(el("line", cls="grid", x1=at, x2=at, y1=TOP - 4, y2=bottom))
        marks.append(el("text", short(tick), x=at, y=bottom + 12, text_anchor="middle"))
    for tower, load in enumerate(loads):
        marks.append(_bar(partition, tower, load, x))
    at = f"{x(mean):.1f}"
    line = el("line", cls="best", x1=at, x2=at, y1=TOP - 4, y2=bottom)
    marks.append(el("g", el("title", f"mean: {short(mean)}"), line))
    label = el("text", "floats looked up for an example", x=(LEFT + WIDTH) / 2, y=bottom + 28, text_anchor="middle")
    return el(
        "svg",
        *marks,
        label,
        viewBox=f"0 0 {WIDTH} {bottom + AXIS}",
        role="img",
        aria_label=f"Load of {len(loads)} towers, the greatest {partition.load_ratio:.2f} times the mean",
    )


def _bar(partition: Partition, tower: int, load: float, x: Callable[[float], float]) -> Html:
    top = TOP + STEP * tower
    middle = top + THICK / 2
    fill = f"fill:{colour(tower, len(partition.towers))}"
    marks = [el("text", f"tower {tower}", x=LEFT - 5, y=middle, dy="0.35em", text_anchor="end")]
    begin = 0.0
    for feature, own in enumerate(partition.tower_F):
        share = partition.loads_F[feature]
        if own != tower or share <= 0:
            continue
        start, end = x(begin), x(begin + share)
        tip = el("title", f"{partition.features[feature]}: {short(share)} of the {short(load)} of tower {tower}")
        rectangle = el(
            "rect", cls="part", x=f"{start:.1f}", y=top, width=f"{end - start:.1f}", height=THICK, style=fill
        )
        marks.append(el("g", tip, rectangle))
        begin += share
    return join(marks)


def affinity_matrix(partition: Partition) -> Html:
    """Draws the affinity of any two features as the opacity of a square, with features in the order of their towers."""
    order = [feature for tower in range(len(partition.towers)) for feature in _members(partition, tower)]
    cell = (SIZE - 2) / len(order)
    marks: list[Html] = []
    for row, one in enumerate(order):
        for column, other in enumerate(order):
            value = float(partition.affinity_FF[one, other])
            if row == column:
                continue
            tip = None
            if len(order) <= LABELLED:
                tip = el("title", f"{partition.features[one]}, {partition.features[other]}: {value:.2f}")
            square = el(
                "rect",
                x=f"{1 + column * cell:.1f}",
                y=f"{1 + row * cell:.1f}",
                width=f"{cell:.2f}",
                height=f"{cell:.2f}",
                style=f"fill:var(--first);opacity:{value:.2f}",
            )
            marks.append(square if tip is None else el("g", tip, square))
    begin = 0
    for tower in range(len(partition.towers)):
        size = len(_members(partition, tower))
        at, side = f"{1 + begin * cell:.1f}", f"{size * cell:.1f}"
        marks.append(el("rect", x=at, y=at, width=side, height=side, style="fill:none;stroke:var(--second)"))
        begin += size
    return el(
        "svg", *marks, viewBox=f"0 0 {SIZE} {SIZE}", role="img", aria_label=f"Affinities of {len(order)} features"
    )


def _members(partition: Partition, tower: int) -> Sequence[int]:
    return [feature for feature, own in enumerate(partition.tower_F) if own == tower]
