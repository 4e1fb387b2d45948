"""Draws the report's charts: learning curves, ROC, calibration, score histograms, access skew."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ziggurat.metrics.calibration import CalibrationBins
from ziggurat.metrics.curves import PredictionHistogram, ValueBins
from ziggurat.metrics.ranking import RocCurve
from ziggurat.report.inputs import AccessSkew
from ziggurat.report.markup import Html, el, join
from ziggurat.report.numbers import count, figure, percent, short
from ziggurat.report.svg import Axes, padded

MAX_POINTS = 240

Series = tuple[list[float], list[float]]


def learning_curve(
    title: str, lines: Mapping[str, Series], best_step: int | None, within: tuple[float, float] = (0.0, math.inf)
) -> Html:
    """Draws one metric over steps, with a line per split; long lines are thinned by averaging neighbours.

    ``within`` holds the least and largest possible value of the metric.
    """
    thinned = {split: thin(*series) for split, series in lines.items()}
    steps = [step for xs, _ in thinned.values() for step in xs]
    values = [value for _, ys in thinned.values() for value in ys]
    axes = Axes((min(0.0, min(steps)), max(steps) or 1.0), padded(values, within=within), "step")
    marks: list[Html] = []
    if best_step is not None and min(steps) <= best_step <= max(steps):
        x = f"{axes.x(best_step):.1f}"
        marks.append(el("line", cls="best", x1=x, x2=x, y1=axes.y(axes.y_range[1]), y2=axes.y(axes.y_range[0])))
    for split, (xs, ys) in thinned.items():
        cls = "first" if split == "validation" else "quiet" if split == "train" else "second"
        marks.append(axes.line(xs, ys, cls))
        if len(xs) <= 40:
            marks.extend(
                _dot(axes, x, y, cls, f"{split}, step {count(x)}: {figure(y)}") for x, y in zip(xs, ys, strict=True)
            )
    last = "; ".join(f"{split} ends at {figure(ys[-1])}" for split, (_, ys) in thinned.items())
    return axes.draw(f"{title} over steps: {last}", *marks)


def roc(curve: RocCurve, auc: float) -> Html:
    """Draws the true over the false positive rate."""
    axes = Axes((0.0, 1.0), (0.0, 1.0), "false positive rate", "true positive rate", height=300)
    xs, ys = curve.false_positive_rate_P.tolist(), curve.true_positive_rate_P.tolist()
    area = el("polygon", cls="area first", points=axes.points([*xs, 1.0], [*ys, 0.0]))
    return axes.draw(
        f"ROC curve with an area of {figure(auc)}",
        axes.line([0.0, 1.0], [0.0, 1.0], "reference"),
        area,
        axes.line(xs, ys, "first"),
    )


def calibration(bins: CalibrationBins) -> Html:
    """Draws the observed rate over the mean prediction for bins of equal mass."""
    predicted, observed = bins.mean_prediction_N.tolist(), bins.observed_rate_N.tolist()
    upper = min(1.0, max(*predicted, *observed) * 1.08) or 1.0
    axes = Axes((0.0, upper), (0.0, upper), "mean prediction", "observed rate", height=300)
    dots = [
        _dot(axes, x, y, "first", f"predicted {figure(x)}, observed {figure(y)}, {count(weight)} rows")
        for x, y, weight in zip(predicted, observed, bins.weight_N.tolist(), strict=True)
    ]
    return axes.draw(
        f"Calibration in {len(predicted)} bins",
        axes.line([0.0, upper], [0.0, upper], "reference"),
        axes.line(predicted, observed, "first"),
        *dots,
    )


def value_calibration(bins: ValueBins) -> Html:
    """Draws the mean label over the mean prediction for bins of equal mass."""
    predicted, labels = bins.mean_prediction_N.tolist(), bins.mean_label_N.tolist()
    span = padded([*predicted, *labels])
    axes = Axes(span, span, "mean prediction", "mean label", height=300)
    dots = [
        _dot(axes, x, y, "first", f"predicted {figure(x)}, label {figure(y)}, {count(weight)} rows")
        for x, y, weight in zip(predicted, labels, bins.weight_N.tolist(), strict=True)
    ]
    return axes.draw(
        f"Mean label by prediction in {len(predicted)} bins",
        axes.line(list(span), list(span), "reference"),
        axes.line(predicted, labels, "first"),
        *dots,
    )


def predictions(histogram: PredictionHistogram) -> Html:
    """Draws the distributions of predictions of both classes as overlaid outlines."""
    shares = (histogram.negative_N.tolist(), histogram.positive_N.tolist())
    highest = max(map(max, shares)) * 1.05 or 1.0
    axes = Axes((0.0, histogram.upper), (0.0, highest), "prediction", "share of the class", height=300)
    edges = np.linspace(0.0, histogram.upper, len(histogram.negative_N) + 1).tolist()
    marks: list[Html] = []
    for cls, share in zip(("quiet", "first"), shares, strict=True):
        xs = [x for low, high in itertools.pairwise(edges) for x in (low, high)]
        ys = [y for value in share for y in (value, value)]
        marks.append(el("polygon", cls=f"area {cls}", points=axes.points([0.0, *xs, histogram.upper], [0.0, *ys, 0.0])))
        marks.append(axes.line(xs, ys, cls))
    return axes.draw("Share of negatives and of positives by predicted probability", *marks)


def skew_spark(skew: AccessSkew) -> Html:
    """Draws a small cumulative curve of look-ups over rows, most used first."""
    width, height = 72, 24
    points = " ".join(
        f"{1 + x * (width - 2):.1f},{1 + (1 - y) * (height - 2):.1f}"
        for x, y in zip(skew.row_share_P, skew.access_share_P, strict=True)
    )
    return el(
        "svg",
        el("line", cls="line reference", x1=1, y1=height - 1, x2=width - 1, y2=1),
        el("polyline", cls="line first", points=points),
        viewBox=f"0 0 {width} {height}",
        cls="spark",
        role="img",
        aria_label=f"the most used 1 % of rows take {percent(skew.top_percent)} of look-ups",
    )


def bar(share: float) -> Html:
    """Draws a horizontal bar for a share between 0 and 1."""
    width = 100 * min(max(share, 0.0), 1.0) if not math.isnan(share) else 0.0
    return el("span", el("span", style=f"width:{short(width)}%"), cls="bar")


def legend(entries: Mapping[str, str]) -> Html:
    """Returns a legend; ``entries`` maps names to the classes of their lines."""
    return el("p", *(join([el("span", cls=f"swatch {cls}"), name, " "]) for name, cls in entries.items()), cls="legend")


def thin(xs: Sequence[float], ys: Sequence[float], most: int = MAX_POINTS) -> Series:
    """Reduces a series to at most ``most`` points, each the mean of consecutive points, at the last of their steps."""
    if len(xs) <= most:
        return list(xs), list(ys)
    parts = np.array_split(np.asarray(ys, np.float64), most)
    lasts = np.cumsum([len(part) for part in parts]) - 1
    return [xs[int(last)] for last in lasts], [float(part.mean()) for part in parts]


def _dot(axes: Axes, x: float, y: float, cls: str, tip: str) -> Html:
    return el(
        "g", el("title", tip), el("circle", cls=f"dot {cls}", cx=f"{axes.x(x):.1f}", cy=f"{axes.y(y):.1f}", r=2.6)
    )
