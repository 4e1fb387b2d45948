"""The drawing of ladders: log-loss over compute, seeds as bars, the fitted law with its band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ziggurat.metrics.power_law import PowerLawFit
from ziggurat.report.markup import Html, el
from ziggurat.report.numbers import figure, scaled
from ziggurat.report.svg import Axes, padded
from ziggurat.training.scaling.result import ScaleResult

COLOURS = ("first", "second", "third", "fourth", "quiet")
"""Classes of the lines, in the order in which ladders take them."""

POINTS = 81
"""Of a drawn curve."""


@dataclass(frozen=True, slots=True)
class SweepSeries:
    """A ladder as it is drawn: what it is called, its runs, its law where there is one, and its colour's class."""

    title: str
    result: ScaleResult
    fit: PowerLawFit | None
    colour: str


def scaling(ladders: Sequence[SweepSeries]) -> Html:
    """Log-loss over forward FLOPs per example, on a logarithmic scale, of one or several ladders."""
    axes = _axes(ladders)
    marks = [mark for ladder in ladders for mark in _law(axes, ladder)]
    marks += [mark for ladder in ladders for mark in _runs(axes, ladder)]
    ends = "; ".join(
        f"{ladder.title} from {figure(losses[0])} to {figure(losses[-1])}"
        for ladder in ladders
        if (losses := [rung.mean(ladder.result.split, "log_loss") for rung in ladder.result.finished])
    )
    return axes.draw(f"Log-loss over forward FLOPs per example: {ends}", *marks)


def _axes(ladders: Sequence[SweepSeries]) -> Axes:
    rungs = [(ladder, rung) for ladder in ladders for rung in ladder.result.finished]
    sizes = [float(rung.size.flops) for _, rung in rungs]
    losses = [loss for ladder, rung in rungs for loss in rung.values(ladder.result.split, "log_loss")]
    losses += [float(loss) for ladder in ladders if ladder.fit is not None for loss in ladder.fit.law(_span(ladder))]
    air = max((max(sizes) / min(sizes)) ** 0.05, 1.1)
    label = f"log-loss, {ladders[0].result.split}"
    return Axes((min(sizes) / air, max(sizes) * air), padded(losses), "forward FLOPs per example", label, 300, True)


def _span(ladder: SweepSeries) -> list[float]:
    sizes = [float(rung.size.flops) for rung in ladder.result.finished]
    return np.geomspace(min(sizes), max(sizes), POINTS).tolist()


def _law(axes: Axes, ladder: SweepSeries) -> list[Html]:
    """The curve, and the band of its resamples as far as it lies within the drawing."""
    if ladder.fit is None:
        return []
    xs = _span(ladder)
    curve = axes.line(xs, ladder.fit.law(xs).tolist(), ladder.colour)
    if not ladder.fit.resampled:
        return [curve]
    low, high = (np.clip(edge, *axes.y_range).tolist() for edge in ladder.fit.band(xs))
    band = el("polygon", cls=f"area {ladder.colour}", points=axes.points([*xs, *xs[::-1]], [*low, *high[::-1]]))
    return [band, curve]


def _runs(axes: Axes, ladder: SweepSeries) -> list[Html]:
    """A dot at each rung's mean and a bar from its best seed to its worst."""
    marks: list[Html] = []
    for rung in ladder.result.finished:
        losses = rung.values(ladder.result.split, "log_loss")
        mean, size = sum(losses) / len(losses), float(rung.size.flops)
        x, y = f"{axes.x(size):.1f}", f"{axes.y(mean):.1f}"
        seeds = f"{len(losses)} seeds, {figure(min(losses))} to {figure(max(losses))}" if len(losses) > 1 else "1 seed"
        tip = f"{ladder.title}, rung {rung.number}: {scaled(size, 'FLOP')}, log-loss {figure(mean)} ({seeds})"
        bar = el(
            "polyline", cls=f"line bar {ladder.colour}", points=axes.points([size] * 2, [min(losses), max(losses)])
        )
        dot = el("circle", cls=f"dot {ladder.colour}", cx=x, cy=y, r=3)
        marks.append(el("g", el("title", tip), bar if len(losses) > 1 else None, dot))
    return marks
