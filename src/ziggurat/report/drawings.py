"""The report's sections in drawings: learning curves; ROC, calibration and score distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ziggurat.metrics.names import METRICS, base_name
from ziggurat.report import charts, numbers
from ziggurat.report.inputs import ReportInputs, TaskResult
from ziggurat.report.markup import Html, el, figure, section
from ziggurat.report.results import best_split

_RANGES = {"loss": (0.0, math.inf), "ne": (0.0, math.inf), "auc": (0.0, 1.0)}
"""The figures that are drawn over steps, and the values that each can take."""
_SPLIT_CLASS = {"train": "quiet", "validation": "first", "test": "second"}


def learning_curves(inputs: ReportInputs) -> Html | None:
    """Loss, NE and AUC over steps, one drawing per figure and task."""
    drawings: list[Html] = []
    shown: dict[str, str] = {}
    for name in _curve_names(inputs.history):
        lines = _lines(inputs.history, name)
        if lines:
            shown.update({split: _SPLIT_CLASS.get(split, "second") for split in lines})
            title = _curve_title(name)
            info = METRICS[base_name(name)]
            way = "higher" if info.better == "higher" else "lower"
            drawings.append(
                figure(
                    f"{info.meaning} {way.capitalize()} is better.",
                    charts.learning_curve(title, lines, inputs.best_step, _RANGES[base_name(name)]),
                    caption=title,
                )
            )
    if not drawings:
        return None
    best = (
        ""
        if inputs.best_step is None
        else f" The dashed line marks step {numbers.count(inputs.best_step)}, the weights kept."
    )
    reading = "A training line that falls while the validation line rises means the model has begun to memorise." + best
    return section(
        "learning", "Learning curves", el("p", reading), charts.legend(shown), el("div", *drawings, cls="figures")
    )


def final_curves(inputs: ReportInputs) -> Html | None:
    """ROC, calibration and score distribution of each task, on the test split where there is one."""
    parts: list[Html] = []
    tasks = list(dict.fromkeys(result.task for result in inputs.results))
    for task in tasks:
        result = best_split([result for result in inputs.results if result.task == task and result.curves is not None])
        if result is None:
            continue
        if len(tasks) > 1:
            parts.append(el("h3", task))
        parts.append(el("div", *_curve_figures(result), cls="figures"))
    return section("curves", "Ranking and calibration", *parts) if parts else None


def _curve_names(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Full names of what is drawn: the kinds in a fixed order, tasks as they come; ``loss`` takes in ``log_loss``."""
    seen = dict.fromkeys(key for row in history for key in row)
    plain = {"log_loss": "loss"}
    found: dict[str, None] = {}
    for wanted in _RANGES:
        for key in seen:
            base = base_name(key)
            if plain.get(base, base) == wanted and key.count("/") <= 1:
                found[key[: len(key) - len(base)] + wanted] = None
    return list(found)


def _lines(history: Sequence[Mapping[str, Any]], name: str) -> dict[str, charts.Series]:
    """Split → steps and values of the finite entries of a figure."""
    keys = (name, f"{name[: -len('loss')]}log_loss") if base_name(name) == "loss" else (name,)
    lines: dict[str, charts.Series] = {}
    for row in history:
        value = next((row[key] for key in keys if row.get(key) is not None), None)
        if value is not None and math.isfinite(value):
            xs, ys = lines.setdefault(str(row.get("split", "train")), ([], []))
            xs.append(float(row["step"]))
            ys.append(float(value))
    return lines


def _curve_title(name: str) -> str:
    base = base_name(name)
    prefix = name[: -len(base) - 1]
    return f"{METRICS[base].title}, {prefix}" if prefix else METRICS[base].title


def _curve_figures(result: TaskResult) -> list[Html]:
    assert result.curves is not None
    figures: list[Html] = []
    if len(result.curves.roc.true_positive_rate_P):
        auc = result.figures.get("auc", math.nan)
        reading = (
            f"How many positives are caught as more negatives are let through; the area, {numbers.figure(auc)}, is the "
            "AUC and the dashed diagonal is guessing."
        )
        figures.append(figure(reading, charts.roc(result.curves.roc, auc), caption="ROC"))
    if len(result.curves.calibration.weight_N):
        reading = (
            "Each dot is an equal share of the rows; above the dashed diagonal the model predicts too little, below it "
            f"too much (ECE {numbers.figure(result.figures.get('ece_mass', math.nan))})."
        )
        figures.append(figure(reading, charts.calibration(result.curves.calibration), caption="Calibration"))
        reading = (
            "What positives (blue) and negatives (grey) are given: the less overlap, the better they are told apart."
        )
        if result.curves.predictions.upper < 1:
            reading += " The last bin holds all beyond it."
        figures.append(figure(reading, charts.predictions(result.curves.predictions), caption="Score distribution"))
    return figures
