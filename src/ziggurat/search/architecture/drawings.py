"""Draws a search of architectures: the super-net, its probabilities over time, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence

from ziggurat.report.markup import Html, el
from ziggurat.report.numbers import percent, short
from ziggurat.report.svg import Axes, padded
from ziggurat.search.architecture.found import FoundArchitectures
from ziggurat.search.architecture.records import ArchitectureTrial
from ziggurat.search.architecture.space.decision import Decision
from ziggurat.search.architecture.supernet.saving import HistoryPoint

_LEFT, _BAR, _ROW, _GAP = 170, 560, 22, 6


def super_net(found: FoundArchitectures) -> Html:
    """Draws each open decision as a bar whose segments are the final probabilities; the chosen segment is framed."""
    decisions = [each for each in found.decisions if each.is_open]
    final = found.history[-1].probabilities
    best = {} if found.best is None else found.best.choices
    marks: list[Html] = []
    for row, decision in enumerate(decisions):
        marks += _bar(decision, final[decision.name], best.get(decision.name), row * (_ROW + _GAP))
    height = len(decisions) * (_ROW + _GAP)
    return el(
        "svg",
        *marks,
        viewBox=f"0 0 {_LEFT + _BAR + 4} {max(1, height)}",
        role="img",
        aria_label=f"Probabilities of the choices of {len(decisions)} decisions",
        style="min-width:600px",
    )


def _bar(decision: Decision, shares: Sequence[float], chosen: int | None, top: float) -> list[Html]:
    marks = [el("text", decision.name, x=_LEFT - 8, y=top + 15, text_anchor="end")]
    x = float(_LEFT)
    for place, share in enumerate(shares):
        width = _BAR * share
        value = str(decision.choices[place])
        opacity = 0.15 + 0.6 * place / max(1, len(shares) - 1)
        stroke = "currentColor" if place == chosen else "none"
        marks.append(
            el(
                "g",
                el("title", f"{decision.name} = {value}: {percent(share)}" + (", chosen" if place == chosen else "")),
                el(
                    "rect", x=f"{x:.1f}", y=top, width=f"{width:.1f}", height=_ROW, fill="currentColor",
                    fill_opacity=f"{opacity:.2f}", stroke=stroke, stroke_width=2,
                ),
                *([el("text", value, x=f"{x + 4:.1f}", y=top + 15)] if width > 8 * len(value) + 8 else []),
            )
        )  # fmt: skip
        x += width
    return marks


def over_time(decision: Decision, history: Sequence[HistoryPoint]) -> Html:
    """Draws the probability of each choice of a decision over the steps of the super-net."""
    xs = [float(point.step) for point in history]
    axes = Axes((0.0, max(xs)), (0.0, 1.0), "step")
    lines: list[Html] = []
    for place, value in enumerate(decision.choices):
        ys = [point.probabilities[decision.name][place] for point in history]
        cls = ("first", "second")[place] if place < 2 else "quiet"
        lines.append(el("g", el("title", f"{value}: {percent(ys[-1])}"), axes.line(xs, ys, cls)))
    return axes.draw(f"{decision.name}: probabilities of {len(decision.choices)} choices", *lines)


def pareto_front(points: Sequence[ArchitectureTrial], cost: str, *, higher_is_better: bool) -> list[ArchitectureTrial]:
    """Returns the trials that no other one beats in both cost and value, by ascending cost."""
    sign = -1 if higher_is_better else 1
    front: list[ArchitectureTrial] = []
    for each in sorted(points, key=lambda point: (point.costs[cost], sign * (point.value or 0.0))):
        if not front or sign * (each.value or 0.0) < sign * (front[-1].value or 0.0):
            front.append(each)
    return front


def cost_and_value(found: FoundArchitectures, cost: str) -> Html:
    """Draws each trial that was trained from scratch at its cost and value, and the Pareto front as a line."""
    trials = [each for each in found.trials if each.value is not None and cost in each.costs]
    xs = [each.costs[cost] for each in trials]
    ys = [each.value for each in trials if each.value is not None]
    axes = Axes(padded([0.0, *xs]), padded(ys), cost)
    front = pareto_front(trials, cost, higher_is_better=found.higher_is_better)
    dots: list[Html] = []
    for each, x, y in zip(trials, xs, ys, strict=True):
        what = "the config as it is" if each.number == 0 else f"trial {each.number}"
        title = el("title", f"{what}: {short(y)} at {short(x)}")
        is_best = found.best is not None and each.number == found.best.number
        cls = "dot second" if each.number == 0 else "dot first"
        dots.append(
            el("g", title, el("circle", cls=cls, cx=f"{axes.x(x):.1f}", cy=f"{axes.y(y):.1f}", r=5 if is_best else 3))
        )
    line = axes.line([each.costs[cost] for each in front], [each.value or 0.0 for each in front], "quiet")
    return axes.draw(f"{found.monitor} over {cost} of {len(trials)} trained architectures", line, *dots)
