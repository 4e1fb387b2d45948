"""Draws scaling sweeps: log-loss over compute, the spread of seeds as bars, the fitted law with its band."""

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
"""Colour classes, in the order in which sweeps take them."""

POINTS = 81
"""The number of points of a drawn curve."""


@dataclass(frozen=True, slots=True)
class SweepSeries:
    """A sweep as drawn: its title, its runs, its fitted law (None with too few sizes) and its colour class."""

    title: str
    result: ScaleResult
    fit: PowerLawFit | None
    colour: str


def scaling(sweeps: Sequence[SweepSeries]) -> Html:
    """Draws log-loss over forward FLOPs per example, on a logarithmic scale, for one or several sweeps."""
    axes = _axes(sweeps)
    marks = [mark for sweep in sweeps for mark in _law(axes, sweep)]
    marks += [mark for sweep in sweeps for mark in _runs(axes, sweep)]
    ends = "; ".join(
        f"{sweep.title} from {figure(losses[0])} to {figure(losses[-1])}"
        for sweep in sweeps
        if (losses := [entry.mean(sweep.result.split, "log_loss") for entry in sweep.result.finished])
    )
    return axes.draw(f"Log-loss over forward FLOPs per example: {ends}", *marks)


def _axes(sweeps: Sequence[SweepSeries]) -> Axes:
    entries = [(sweep, entry) for sweep in sweeps for entry in sweep.result.finished]
    sizes = [float(entry.size.flops) for _, entry in entries]
    losses = [loss for sweep, entry in entries for loss in entry.values(sweep.result.split, "log_loss")]
    losses += [float(loss) for sweep in sweeps if sweep.fit is not None for loss in sweep.fit.law(_span(sweep))]
    air = max((max(sizes) / min(sizes)) ** 0.05, 1.1)
    label = f"log-loss, {sweeps[0].result.split}"
    return Axes((min(sizes) / air, max(sizes) * air), padded(losses), "forward FLOPs per example", label, 300, True)


def _span(sweep: SweepSeries) -> list[float]:
    sizes = [float(entry.size.flops) for entry in sweep.result.finished]
    return np.geomspace(min(sizes), max(sizes), POINTS).tolist()


def _law(axes: Axes, sweep: SweepSeries) -> list[Html]:
    """Draws the fitted curve, and the band of its resamples, clipped to the drawing."""
    if sweep.fit is None:
        return []
    xs = _span(sweep)
    curve = axes.line(xs, sweep.fit.law(xs).tolist(), sweep.colour)
    if not sweep.fit.resampled:
        return [curve]
    low, high = (np.clip(edge, *axes.y_range).tolist() for edge in sweep.fit.band(xs))
    band = el("polygon", cls=f"area {sweep.colour}", points=axes.points([*xs, *xs[::-1]], [*low, *high[::-1]]))
    return [band, curve]


def _runs(axes: Axes, sweep: SweepSeries) -> list[Html]:
    """Draws a dot at each size's mean and a bar from its best to its worst seed."""
    marks: list[Html] = []
    for entry in sweep.result.finished:
        losses = entry.values(sweep.result.split, "log_loss")
        mean, size = sum(losses) / len(losses), float(entry.size.flops)
        x, y = f"{axes.x(size):.1f}", f"{axes.y(mean):.1f}"
        seeds = f"{len(losses)} seeds, {figure(min(losses))} to {figure(max(losses))}" if len(losses) > 1 else "1 seed"
        tip = f"{sweep.title}, size {entry.number}: {scaled(size, 'FLOP')}, log-loss {figure(mean)} ({seeds})"
        bar = el("polyline", cls=f"line bar {sweep.colour}", points=axes.points([size] * 2, [min(losses), max(losses)]))
        dot = el("circle", cls=f"dot {sweep.colour}", cx=x, cy=y, r=3)
        marks.append(el("g", el("title", tip), bar if len(losses) > 1 else None, dot))
    return marks
