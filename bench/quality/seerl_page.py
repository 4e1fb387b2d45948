"""Draws what the benchmark ``seerl`` found: performance profiles, and scores over λ and over diversity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ziggurat.policies.scores import interquartile_interval, performance_profile
from ziggurat.report.charts import legend
from ziggurat.report.html import page
from ziggurat.report.markup import el, figure, section
from ziggurat.report.svg import Axes, padded

Floats = npt.NDArray[np.float64]
_CLASSES = ("first", "second", "third", "fourth", "quiet", "reference")


def write(
    path: Path, scores: Mapping[str, Floats], sweep: Mapping[float, Floats], dots: Sequence[tuple[float, float]]
) -> None:
    """Writes the page.

    Args:
        path: the HTML file.
        scores: contestant -> normalised scores, (seeds, tasks).
        sweep: λ -> the same of the ensemble that it takes.
        dots: divergence of an ensemble's members, as a share of the greatest of its run, and its score relative to
            the mean of its run.
    """
    levels = np.linspace(0, max(1.0, max(float(each.max()) for each in scores.values())), 101)
    axes = Axes((0.0, float(levels[-1])), (0.0, 1.0), "normalised score τ", "share of runs above τ", height=300)
    lines = [
        axes.line(levels.tolist(), performance_profile(each, levels).tolist(), cls)
        for each, cls in zip(scores.values(), _CLASSES, strict=False)
    ]
    profiles = figure(
        "The higher the curve, the more runs reach a score.",
        legend(dict(zip(scores, _CLASSES, strict=False))),
        axes.draw("Performance profiles", *lines),
        caption="Performance profiles",
    )
    middles = [interquartile_interval(each) for each in sweep.values()]
    places = [float(place) for place in range(len(sweep))]
    over = Axes(
        (-0.5, len(places) - 0.5), padded([value for each in middles for value in each]), "place of λ", height=220
    )
    bars = [
        el("line", cls="line quiet bar", x1=f"{over.x(x):.1f}", x2=f"{over.x(x):.1f}", y1=f"{over.y(low):.1f}",
           y2=f"{over.y(high):.1f}")
        for x, (_, low, high) in zip(places, middles, strict=True)
    ]  # fmt: skip
    weights = figure(
        "λ from left to right: " + ", ".join(f"{weight:g}" for weight in sweep),
        over.draw("Interquartile mean over λ", over.line(places, [each[0] for each in middles], "first"), *bars),
        caption="Interquartile mean of normalised scores over λ",
    )
    plane = Axes(
        (0.0, 1.0), padded([y for _, y in dots] or [0.0]), "divergence, as a share of the run's greatest", height=220
    )
    marks = [
        el("circle", cls="dot first", cx=f"{plane.x(x):.1f}", cy=f"{plane.y(y):.1f}", r=2.4, style="opacity:.6")
        for x, y in dots
    ]
    spread = figure(
        "A dot is an ensemble of a run's sweep; 0 is the mean of its run. Runs with a single ensemble are left out.",
        plane.draw("Scores over diversity", *marks),
        caption="Score over the diversity of the members",
    )
    text = page(
        "seerl",
        el("header", el("h1", "seerl: ensembles from one training run")),
        [section("all", "Figures", el("div", profiles, weights, spread, cls="figures"))],
    )
    path.write_text(text, encoding="utf-8")
