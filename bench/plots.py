"""Draws the picture of each benchmark: figures of one unit in one panel, with their spread and their targets."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Canvas

from ziggurat.core.files import atomic_file
from ziggurat.metrics.power_law import fit_power_law

_ROW_INCHES = 0.34
_MOST_BARS = 60
"""Most bars of a picture; of more figures those are drawn that have a target, if any have."""
_CURVES = ("#2f5d8a", "#c0392b", "#2e8b57", "#8e6c8a")
_OURS, _OTHERS, _SPREAD = "#2f5d8a", "#b5b5b5", "#555555"


def picture_path(root: Path, name: str) -> Path:
    """Returns ``docs/benchmarks/NAME.svg``."""
    return root / "docs" / "benchmarks" / f"{name}.svg"


@contextlib.contextmanager
def canvas_of(path: Path, width: float, height: float) -> Generator[Canvas]:
    """Yields an empty picture of this size in inches, and writes it to ``path``; equal pictures have equal bytes."""
    with mpl.rc_context({"svg.hashsalt": "ziggurat", "font.size": 9}):
        canvas = Canvas(figsize=(width, height), layout="constrained", facecolor="white")
        yield canvas
        drawn = io.StringIO()
        canvas.savefig(drawn, format="svg", metadata={"Date": None})
        with atomic_file(path) as temporary:
            temporary.write_text(_numbered_clips(drawn.getvalue()), encoding="utf-8")


def _numbered_clips(drawn: str) -> str:
    """Names clip paths by number: Matplotlib names them by their corners, whose last bits differ between runs."""
    for number, name in enumerate(re.findall(r'<clipPath id="(\w+)">', drawn)):
        drawn = drawn.replace(f'id="{name}"', f'id="clip-{number}"').replace(f"url(#{name})", f"url(#clip-{number})")
    return drawn


def draw(path: Path, figures: Sequence[Mapping[str, Any]]) -> None:
    """Draws a bar for each median (or mean, if judged), with a panel per unit; a line spans the middle half of rounds.

    Of more than :data:`_MOST_BARS` figures those with a target are drawn. Equal figures give equal bytes.
    """
    judged = [figure for figure in figures if figure["target"] is not None]
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for figure in judged if judged and len(figures) > _MOST_BARS else figures:
        panels.setdefault(str(figure["unit"]), []).append(figure)
    heights = [len(rows) + 1.5 for rows in panels.values()]
    with canvas_of(path, 7.5, _ROW_INCHES * sum(heights)) as canvas:
        axes: Any = canvas.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
        for panel, (unit, rows) in zip(axes[:, 0], panels.items(), strict=True):
            _panel(panel, unit, rows)


def draw_board(path: Path, figures: Sequence[Mapping[str, Any]]) -> None:
    """Draws each model's value with its seeds or rounds; a cross marks a published value.

    There is a panel for each figure judged by its mean, or, without such figures, for each figure. Equal figures give
    equal bytes.
    """
    quality = [figure for figure in figures if "mean" in figure]
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for figure in quality or figures:
        panels.setdefault(str(figure["name"]).partition(".")[2], []).append(figure)
    if not quality:
        panels = {name: rows for name, rows in panels.items() if len(rows) == max(map(len, panels.values()))}
    models = max(len(rows) for rows in panels.values())
    with canvas_of(path, 3.2 * len(panels) + 1.5, _ROW_INCHES * (models + 2)) as canvas:
        axes: Any = canvas.subplots(1, len(panels), squeeze=False)
        for place, (panel, (name, rows)) in enumerate(zip(axes[0], panels.items(), strict=True)):
            _board_panel(panel, name, rows, named=place == 0)


def draw_laws(path: Path, figures: Sequence[Mapping[str, Any]]) -> None:
    """Draws figures named ``model@size``: each model's means and seeds over its sizes, with the fitted power law.

    A band shows the 95 % confidence interval of the law. Equal figures give equal bytes.
    """
    curves: dict[str, list[Mapping[str, Any]]] = {}
    for figure in figures:
        model, at, _ = str(figure["name"]).partition("@")
        if at:
            curves.setdefault(model, []).append(figure)
    with canvas_of(path, 7.5, 4.5) as canvas:
        panel: Any = canvas.subplots()
        for colour, (model, points) in zip(_CURVES, curves.items(), strict=False):
            _curve(panel, model, points, colour)
        panel.set_xscale("log")
        panel.set_xlabel("forward FLOPs per example")
        panel.set_ylabel("log-loss, test")
        panel.grid(color="#eeeeee")
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False)


def _curve(panel: Any, model: str, points: Sequence[Mapping[str, Any]], colour: str) -> None:
    sizes = [float(str(point["name"]).partition("@")[2]) for point in points]
    losses = [[float(loss) for loss in point["samples"]] for point in points]
    fit = fit_power_law(sizes, losses)
    xs = np.geomspace(sizes[0], sizes[-1], 81)
    panel.fill_between(xs, *fit.band(xs), color=colour, alpha=0.15, lw=0)
    panel.plot(xs, fit.law(xs), color=colour, lw=1)
    for size, seeds in zip(sizes, losses, strict=True):
        panel.plot([size] * len(seeds), seeds, ".", color=colour, ms=3)
    means = [sum(seeds) / len(seeds) for seeds in losses]
    panel.plot(sizes, means, "o", color=colour, ms=5, label=model)


def _board_panel(panel: Any, name: str, rows: Sequence[Mapping[str, Any]], named: bool) -> None:
    for place, row in enumerate(rows):
        panel.plot(row["samples"], [place] * len(row["samples"]), ".", color=_OTHERS, ms=5)
        panel.plot(row.get("mean", row["median"]), place, "o", color=_OURS, ms=5)
        if row["note"] and "mean" in row:
            panel.plot(float(str(row["note"]).split()[-1]), place, "x", color=_SPREAD, ms=5)
    names = [str(row["name"]).partition(".")[0] for row in rows]
    panel.set_yticks(range(len(rows)), names if named else [""] * len(rows))
    panel.set_xlabel(name if "mean" in rows[0] else f"{name}, {rows[0]['unit']}")
    panel.grid(axis="y", color="#eeeeee")
    panel.set_axisbelow(True)
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)


def _panel(panel: Any, unit: str, rows: Sequence[Mapping[str, Any]]) -> None:
    for place, row in enumerate(rows):
        value, low, high = float(row.get("mean", row["median"])), float(row["low"]), float(row["high"])
        ours = row["target"] is not None or "ziggurat" in str(row["name"])
        panel.barh(place, value, color=_OURS if ours else _OTHERS, height=0.62)
        panel.plot([low, high], [place, place], color=_SPREAD, lw=1.2)
        shown = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        text = f"{shown}   (target {row['target']})" if row["target"] else shown
        panel.annotate(text, (max(value, high), place), xytext=(5, 0), textcoords="offset points", va="center")
    panel.set_yticks(range(len(rows)), [str(row["name"]) for row in rows])
    panel.set_xlim(0, 1.45 * max(float(row["high"]) for row in rows) or 1.0)
    panel.set_xlabel({"x": "ratio"}.get(unit, unit))
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)
