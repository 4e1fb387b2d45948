"""The report's sections of charts: learning curves; ROC, calibration and score distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ziggurat.metrics.names import ALL_METRICS, base_name
from ziggurat.report import charts, numbers
from ziggurat.report.inputs import ReportInputs, TaskResult
from ziggurat.report.markup import Html, el, figure, section
from ziggurat.report.results import best_split

_RANGES = {
    "loss": (0.0, math.inf),
    "ne": (0.0, math.inf),
    "relative_loss": (0.0, math.inf),
    "rmse": (0.0, math.inf),
    "auc": (0.0, 1.0),
    "xauc": (0.0, 1.0),
}
"""The metrics that are drawn over steps, with the range of each."""
_SPLIT_CLASS = {"train": "quiet", "validation": "first", "test": "second"}


def learning_curves(inputs: ReportInputs) -> Html | None:
    """Returns the section with losses, AUC and XAUC over steps, one chart per metric and task; None without any."""
    drawings: list[Html] = []
    shown: dict[str, str] = {}
    for name in _curve_names(inputs.history):
        lines = _lines(inputs.history, name)
        if lines:
            shown.update({split: _SPLIT_CLASS.get(split, "second") for split in lines})
            title = _curve_title(name)
            info = ALL_METRICS[base_name(name)]
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
        else f" The dashed line marks step {numbers.count(inputs.best_step)}, whose weights were kept."
    )
    reading = "If the training loss falls while the validation loss rises, the model overfits." + best
    return section(
        "learning", "Learning curves", el("p", reading), charts.legend(shown), el("div", *drawings, cls="figures")
    )


def final_curves(inputs: ReportInputs) -> Html | None:
    """Returns the section with ROC, calibration and score distribution of each task, on the test split if there is
    one."""
    parts: list[Html] = []
    tasks = list(dict.fromkeys(result.task for result in inputs.results))
    for task in tasks:
        drawn = [each for each in inputs.results if each.task == task and (each.curves or each.bins)]
        result = best_split(drawn)
        if result is None:
            continue
        if len(tasks) > 1:
            parts.append(el("h3", task))
        parts.append(el("div", *_curve_figures(result), cls="figures"))
    return section("curves", "Ranking and calibration", *parts) if parts else None


def _curve_names(history: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the full names of the metrics to draw: by metric, then by task; ``log_loss`` is drawn as ``loss``."""
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
    """Returns split → steps and values of a metric's finite entries."""
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
    return f"{ALL_METRICS[base].title}, {prefix}" if prefix else ALL_METRICS[base].title


def _curve_figures(result: TaskResult) -> list[Html]:
    figures: list[Html] = []
    if result.bins is not None and len(result.bins.weight_N):
        reading = (
            "Each dot is about an equal share of the rows, with its mean prediction and its mean label. Above the "
            "dashed diagonal the model predicts too low, below it too high."
        )
        figures.append(figure(reading, charts.value_calibration(result.bins), caption="Calibration"))
    if result.curves is None:
        return figures
    if len(result.curves.roc.true_positive_rate_P):
        auc = result.figures.get("auc", math.nan)
        reading = (
            "The share of positives found over the share of negatives wrongly accepted, for all thresholds. The area, "
            f"{numbers.figure(auc)}, is the AUC; the dashed diagonal is random guessing."
        )
        figures.append(figure(reading, charts.roc(result.curves.roc, auc), caption="ROC"))
    if len(result.curves.calibration.weight_N):
        reading = (
            "Each dot is an equal share of the rows. Above the dashed diagonal the model predicts too low, below it "
            f"too high (ECE {numbers.figure(result.figures.get('ece_mass', math.nan))})."
        )
        figures.append(figure(reading, charts.calibration(result.curves.calibration), caption="Calibration"))
        reading = (
            "Predictions for positives (blue) and negatives (grey): the less they overlap, the better the model "
            "separates them."
        )
        if result.curves.predictions.upper < 1:
            reading += " The last bin includes all higher predictions."
        figures.append(figure(reading, charts.predictions(result.curves.predictions), caption="Score distribution"))
    return figures
