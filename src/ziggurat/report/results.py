"""The report's sections of metrics: headline, comparison, final metrics, slices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ziggurat.metrics.names import ALL_METRICS
from ziggurat.report import numbers
from ziggurat.report.inputs import ComparisonRow, ReportInputs, SliceRow, TaskResult
from ziggurat.report.markup import Html, el, join, section, table

_HEADLINE = (
    *("auc", "ne", "log_loss", "gauc"),
    *("rmse", "mae", "r2", "rmsle", "deviance", "pinball", "relative_loss", "xauc"),
    *("calibration", "ece"),
)
_COMPARED = ("auc", "log_loss", "ne")
_VALUES_COMPARED = ("rmse", "mae", "rmsle", "deviance", "pinball", "xauc", "relative_loss")
"""The same for labels that are numbers; each has some of them."""
_SLICED = (
    *("rows", "base_rate", "mean_label", "auc", "log_loss", "ne"),
    *("rmse", "mae", "deviance", "pinball", "xauc", "relative_loss", "calibration"),
)


def headline(inputs: ReportInputs) -> Html | None:
    """Returns the main metrics of each task, with a sentence that compares them with the baselines."""
    tasks = list(dict.fromkeys(result.task for result in inputs.results))
    shown = [best_split([result for result in inputs.results if result.task == task]) for task in tasks]
    parts = [_task_headline(inputs, main, several=len(tasks) > 1) for main in shown if main is not None]
    return join(parts) if parts else None


def _task_headline(inputs: ReportInputs, main: TaskResult, several: bool) -> Html:
    tiles = [
        el("div", el("dt", ALL_METRICS[name].title), el("dd", numbers.figure(main.figures[name]), _small(main, name)))
        for name in _HEADLINE
        if name in main.figures
    ]
    where = f"{main.split} split" + (f", {numbers.count(main.figures['rows'])} rows" if "rows" in main.figures else "")
    task = f" of {main.task}" if several else ""
    return join(
        [
            *([el("h3", main.task)] if several else []),
            el("dl", *tiles, cls="headline"),
            el("p", f"Metrics{task} on the {where}. {_against_baselines(inputs.comparison, main.task)}", cls="soft"),
        ]
    )


def final_figures(inputs: ReportInputs) -> Html | None:
    """Returns the section with every metric of every task and split; None without results."""
    if not inputs.results:
        return None
    names = [name for name in ALL_METRICS if any(name in result.figures for result in inputs.results)]
    headers = ["Metric", *(f"{result.task} · {result.split}" for result in inputs.results)]
    rows: list[list[object]] = []
    for name in names:
        name_cell = el("span", ALL_METRICS[name].title, title=ALL_METRICS[name].meaning)
        rows.append([name_cell, *(_figure_cell(result, name) for result in inputs.results)])
    reasons = sorted(
        {f"{result.task}, {result.split}: {why}" for result in inputs.results for why in result.undefined.values()}
    )
    undefined = (
        el("p", "A dash means that a metric is undefined. ", "; ".join(reasons), cls="soft") if reasons else None
    )
    meanings = el(
        "dl", *(join([el("dt", ALL_METRICS[n].title), el("dd", ALL_METRICS[n].meaning, cls="soft")]) for n in names)
    )
    explained = el("details", el("summary", "What the metrics mean"), meanings)
    return section("figures", "Final metrics", table(headers, rows), undefined, explained)


def comparison(inputs: ReportInputs) -> Html | None:
    """Returns the table of our model and the baselines, with the best of each column marked; None without baselines."""
    if not inputs.comparison:
        return None
    parts: list[Html] = []
    tasks = list(dict.fromkeys(row.task for row in inputs.comparison))
    for task in tasks:
        entries = [row for row in inputs.comparison if row.task == task]
        if len(tasks) > 1:
            parts.append(el("h3", task))
        names = _compared_names(entries)
        headers = ["Model", *(ALL_METRICS[name].title for name in names), "Time"]
        parts.append(table(headers, [_compared(row, entries, names) for row in entries]))
    tuned = [row for row in inputs.comparison if row.settings]
    settings = el(
        "details",
        el("summary", "How each model was tuned"),
        *(el("p", el("strong", r.model), ": ", r.settings) for r in tuned),
    )
    return section(
        "comparison",
        "Comparison with baselines",
        el("p", "All models use the same encoded columns and are evaluated on the same rows. The best is green."),
        *parts,
        settings if tuned else None,
    )


def slices(inputs: ReportInputs) -> Html | None:
    """Returns the section with a table per task and sliced feature; None without slices."""
    groups: dict[tuple[str, str], list[SliceRow]] = {}
    for row in inputs.slices:
        groups.setdefault((row.task, row.feature), []).append(row)
    if not groups:
        return None
    several = len({task for task, _ in groups}) > 1
    parts: list[Html] = []
    for (task, feature), rows in groups.items():
        names = [name for name in _SLICED if any(name in row.figures for row in rows)]
        body: list[list[object]] = [[row.value, *(_plain(row.figures, name) for name in names)] for row in rows]
        parts.append(el("h3", f"{feature}, {task}" if several else feature))
        parts.append(table([feature, *(ALL_METRICS[name].title for name in names)], body))
    reading = (
        "A slice whose calibration differs much from that of the others gets wrong probabilities, even if the "
        "calibration over all rows is right."
    )
    return section("slices", "Slices", el("p", reading), *parts)


def best_split(results: Sequence[TaskResult]) -> TaskResult | None:
    """Returns the test split's result if there is one, else that of validation."""
    for split in ("test", "validation"):
        for result in results:
            if result.split == split:
                return result
    return results[0] if results else None


def _small(result: TaskResult, name: str) -> Html:
    undefined = result.undefined.get(name)
    return el("small", f"undefined: {undefined}" if undefined else _better(name))


def _better(name: str) -> str:
    better = ALL_METRICS[name].better
    return "best at 1" if name == "calibration" else "" if better == "neither" else f"{better} is better"


def _against_baselines(rows: Sequence[ComparisonRow], task: str) -> str:
    ours = [row for row in rows if row.ours and row.task == task]
    others = [row for row in rows if not row.ours and row.task == task]
    if not ours or not others:
        return ""
    names = ("auc", "ne") if "auc" in ours[0].figures else _compared_names([*ours, *others])[:1]
    gaps: list[str] = []
    for row in others:
        each = [
            f"{numbers.difference(ours[0].figures[name] - row.figures[name])} {ALL_METRICS[name].title}"
            for name in names
            if name in row.figures
        ]
        gaps.append(f"{' and '.join(each)} against {row.model}")
    return f"{ours[0].model}: {'; '.join(gaps)}."


def _compared_names(entries: Sequence[ComparisonRow]) -> list[str]:
    """Returns the metrics in which models are compared: those that all of them have."""
    names = _COMPARED if all("auc" in entry.figures for entry in entries) else _VALUES_COMPARED
    return [name for name in names if all(name in entry.figures for entry in entries)]


def _compared(row: ComparisonRow, entries: Sequence[ComparisonRow], names: Sequence[str]) -> list[object]:
    cells: list[object] = [el("span", row.model, cls="ours" if row.ours else "")]
    for name in names:
        values = [entry.figures[name] for entry in entries if not math.isnan(entry.figures[name])]
        best = (max if ALL_METRICS[name].better == "higher" else min)(values, default=math.nan)
        cells.append(el("span", numbers.figure(row.figures[name]), cls="won" if row.figures[name] == best else ""))
    return [*cells, numbers.duration(row.seconds)]


def _figure_cell(result: TaskResult, name: str) -> object:
    if name not in result.figures:
        return None
    return el("span", _plain(result.figures, name), title=result.undefined.get(name))


def _plain(figures: Mapping[str, float], name: str) -> str:
    value = figures.get(name, math.nan)
    if name in {"rows", "gauc_groups", "gauc_groups_one_class", "gauc_groups_seen"}:
        return numbers.count(value)
    return numbers.figure(value)
