"""One picture a benchmark: figures of one unit side by side, with the spread of their rounds and their targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure as Canvas

from ziggurat.core.files import atomic_file

_ROW_INCHES = 0.34
_OURS, _OTHERS, _SPREAD = "#2f5d8a", "#b5b5b5", "#555555"


def picture_path(root: Path, name: str) -> Path:
    """``docs/benchmarks/NAME.svg``."""
    return root / "docs" / "benchmarks" / f"{name}.svg"


def draw(path: Path, figures: Sequence[Mapping[str, Any]]) -> None:
    """Bars of the medians, a panel a unit; a line spans the middle half of the rounds. Same figures, same bytes."""
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for figure in figures:
        panels.setdefault(str(figure["unit"]), []).append(figure)
    heights = [len(rows) + 1.5 for rows in panels.values()]
    with mpl.rc_context({"svg.hashsalt": "ziggurat", "font.size": 9}):
        canvas = Canvas(figsize=(7.5, _ROW_INCHES * sum(heights)), layout="constrained", facecolor="white")
        axes: Any = canvas.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
        for panel, (unit, rows) in zip(axes[:, 0], panels.items(), strict=True):
            _panel(panel, unit, rows)
        with atomic_file(path) as temporary:
            canvas.savefig(temporary, format="svg", metadata={"Date": None})


def draw_board(path: Path, figures: Sequence[Mapping[str, Any]]) -> None:
    """Each model's mean and seeds, a panel a judged figure; a cross is what was published. Same figures, same bytes."""
    panels: dict[str, list[Mapping[str, Any]]] = {}
    for figure in figures:
        if "mean" in figure:
            panels.setdefault(str(figure["name"]).partition(".")[2], []).append(figure)
    models = max(len(rows) for rows in panels.values())
    with mpl.rc_context({"svg.hashsalt": "ziggurat", "font.size": 9}):
        canvas = Canvas(
            figsize=(3.2 * len(panels) + 1.5, _ROW_INCHES * (models + 2)), layout="constrained", facecolor="white"
        )
        axes: Any = canvas.subplots(1, len(panels), squeeze=False)
        for place, (panel, (name, rows)) in enumerate(zip(axes[0], panels.items(), strict=True)):
            _board_panel(panel, name, rows, named=place == 0)
        with atomic_file(path) as temporary:
            canvas.savefig(temporary, format="svg", metadata={"Date": None})


def _board_panel(panel: Any, name: str, rows: Sequence[Mapping[str, Any]], named: bool) -> None:
    for place, row in enumerate(rows):
        panel.plot(row["samples"], [place] * len(row["samples"]), ".", color=_OTHERS, ms=5)
        panel.plot(row["mean"], place, "o", color=_OURS, ms=5)
        if row["note"]:
            panel.plot(float(str(row["note"]).split()[-1]), place, "x", color=_SPREAD, ms=5)
    names = [str(row["name"]).partition(".")[0] for row in rows]
    panel.set_yticks(range(len(rows)), names if named else [""] * len(rows))
    panel.set_xlabel(name)
    panel.grid(axis="y", color="#eeeeee")
    panel.set_axisbelow(True)
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)


def _panel(panel: Any, unit: str, rows: Sequence[Mapping[str, Any]]) -> None:
    for place, row in enumerate(rows):
        median, low, high = (float(row[key]) for key in ("median", "low", "high"))
        ours = row["target"] is not None or "ziggurat" in str(row["name"])
        panel.barh(place, median, color=_OURS if ours else _OTHERS, height=0.62)
        panel.plot([low, high], [place, place], color=_SPREAD, lw=1.2)
        value = f"{median:,.0f}" if median >= 1000 else f"{median:.3g}"
        text = f"{value}   (target {row['target']})" if row["target"] else value
        panel.annotate(text, (max(median, high), place), xytext=(5, 0), textcoords="offset points", va="center")
    panel.set_yticks(range(len(rows)), [str(row["name"]) for row in rows])
    panel.set_xlim(0, 1.45 * max(float(row["high"]) for row in rows))
    panel.set_xlabel({"x": "ratio"}.get(unit, unit))
    panel.invert_yaxis()
    panel.spines[["top", "right"]].set_visible(False)
