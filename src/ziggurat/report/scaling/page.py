"""Renders scaling sweeps as one self-contained HTML page: the chart, the laws, the model sizes, the configs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from ziggurat.core.files import atomic_file
from ziggurat.metrics.power_law import PowerLaw, PowerLawFit
from ziggurat.report import numbers
from ziggurat.report.charts import legend
from ziggurat.report.html import page
from ziggurat.report.markup import Html, el, figure, join, section, table
from ziggurat.report.scaling.chart import COLOURS, SweepSeries, scaling
from ziggurat.report.scaling.titles import check_comparable, titles
from ziggurat.training.experiment import as_yaml, differing_keys
from ziggurat.training.scaling.result import MIN_SIZES, ScaleResult, SizeResult

Writer = Callable[[float], str]


def write_scale(
    path: str | Path, results: Sequence[ScaleResult], folders: Sequence[str | Path] = ()
) -> list[PowerLawFit | None]:
    """Writes sweeps to one HTML file, atomically; returns their laws, None for a sweep of fewer than three sizes.

    Args:
        path: the file.
        results: the results of each sweep.
        folders: the folder of each sweep, to distinguish sweeps with the same model and name.

    Raises:
        ConfigError: the sweeps cannot be compared: they differ in data or split, a folder is given twice, or one has no
            finished run.
        DataError: a log-loss is undefined, the disk is full or the folder is not writable.
    """
    places = [Path(folder) for folder in folders]
    check_comparable(results, places)
    sweeps = [
        SweepSeries(title, result, result.fit(), colour)
        for title, result, colour in zip(titles(results, places), results, COLOURS, strict=False)
    ]
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(render_scale(sweeps), encoding="utf-8")
    return [sweep.fit for sweep in sweeps]


def render_scale(sweeps: Sequence[SweepSeries]) -> str:
    """Returns the page; equal sweeps give equal bytes."""
    title = " and ".join(dict.fromkeys(sweep.result.name for sweep in sweeps))
    return page(
        f"{title} – ziggurat scale",
        _header(title, sweeps),
        [_drawing(sweeps), *(_sizes_section(sweep, len(sweeps) > 1) for sweep in sweeps), _configs(sweeps)],
    )


def _header(title: str, sweeps: Sequence[SweepSeries]) -> Html:
    first = sweeps[0].result
    sizes = [entry.size.flops for sweep in sweeps for entry in sweep.result.finished]
    runs = sum(sweep.result.finished_runs for sweep in sweeps)
    tasks = f", mean of {' and '.join(first.tasks)}" if first.tasks else ""
    line = (
        f"{', '.join(sweep.title for sweep in sweeps)} · {numbers.scaled(min(sizes), 'FLOP')} to "
        f"{numbers.scaled(max(sizes), 'FLOP')} per example · {runs} runs · figures on {first.split}{tasks}"
    )
    return el(
        "header",
        el("h1", f"{title}: quality over compute"),
        el("p", line, cls="soft"),
        *(paragraph for sweep in sweeps for paragraph in _verdict(sweep, len(sweeps) > 1)),
    )


def _verdict(sweep: SweepSeries, named: bool) -> list[Html]:
    """Returns the verdict on the law and its caveats as paragraphs."""
    prefix = f"{sweep.title}: " if named else ""
    caveats = [el("p", prefix, caveat, cls="note") for caveat in sweep.result.caveats]
    if sweep.fit is None:
        count = len(sweep.result.finished)
        few = f"{prefix}A law needs {MIN_SIZES} model sizes; {count} of them are trained."
        return [el("p", few, cls="note"), *caveats]
    verdict = [el("p", prefix, sweep.fit.verdict, cls="" if sweep.fit.visible else "note")]
    return verdict + caveats


def _drawing(sweeps: Sequence[SweepSeries]) -> Html:
    reading = (
        "Each dot is the mean over the seeds of a model size, its bar their range. The line is the fitted law; the "
        "shaded band holds 95 % of the resampled laws."
    )
    laws = [sweep for sweep in sweeps if sweep.fit is not None]
    formulas = [
        el("p", f"{sweep.title}: " if len(sweeps) > 1 else "", _formula(sweep.fit.law))
        for sweep in laws
        if sweep.fit is not None and sweep.fit.visible is not False and (sweep.fit.flat or sweep.fit.determined)
    ]
    return section(
        "law",
        "The law",
        legend({sweep.title: sweep.colour for sweep in sweeps}) if len(sweeps) > 1 else None,
        figure(reading, scaling(sweeps)),
        *formulas,
        table(["Model", "a, the floor", "b", "c, the exponent", "R², log loss"], [_law_row(each) for each in laws]),
        el(
            "p",
            "Log-loss = a + b·x^(−c) over forward FLOPs per example x, weighted by the spread of the seeds. Brackets "
            "hold the middle 95 % of a bootstrap, whose draws have the seeds' common deviation and Student's t "
            "distribution. R² is that of the logarithm of the log-loss; it is undefined for three sizes, as the law "
            "has three constants.",
            cls="soft",
        ),
    )


def _formula(law: PowerLaw) -> Html:
    if law.scale == 0:
        return Html(f"log-loss is flat at {numbers.figure(law.floor)}")
    power = el("sup", f"−{law.exponent:.3g}")
    return join(["log-loss = ", numbers.figure(law.floor), " + ", numbers.short(law.scale), " · FLOPs", power])


def _law_row(sweep: SweepSeries) -> list[object]:
    fit = sweep.fit
    assert fit is not None
    if fit.flat:
        return [sweep.title, f"flat at {numbers.figure(fit.law.floor)}", None, None, None]
    return [
        sweep.title,
        _with_interval(numbers.figure, fit.law.floor, fit.interval("floor")),
        _with_interval(numbers.short, fit.law.scale, fit.interval("scale")),
        _with_interval(numbers.short, fit.law.exponent, fit.interval("exponent")),
        numbers.figure(fit.r2_log),
    ]


def _with_interval(write: Writer, value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return write(value) if math.isnan(low) else f"{write(value)} [{write(low)}, {write(high)}]"


def _sizes_section(sweep: SweepSeries, named: bool) -> Html:
    headers = [
        "Size", "Changes", *map(_in_two_lines, ("FLOPs per example", "Dense parameters", "Table parameters",
        "Training FLOPs")), "Time", "Log-loss", "AUC", "Δ log-loss",
    ]  # fmt: skip
    rows = [_size_row(sweep.result, entry) for entry in sweep.result.finished]
    tasks = sweep.result.tasks
    reading = f"Log-loss and AUC are means over the {len(tasks)} tasks, {' and '.join(tasks)}. " if tasks else ""
    reading += (
        "Means over seeds, ± their standard deviation. Training FLOPs are three forward passes of the dense part for "
        "every example. Time is that of training only."
    )
    title = f"Model sizes of {sweep.title}" if named else "Model sizes"
    anchor = f"sizes-{sweep.colour}"
    return section(
        anchor, title, el("div", table(headers, rows, text_columns=2), cls="tight"), el("p", reading, cls="soft")
    )


def _in_two_lines(header: str) -> Html:
    """Breaks a header before its last word, so that ten columns fit on a page."""
    first, _, last = header.rpartition(" ")
    return join([first, " ", el("br"), last])


def _size_row(result: ScaleResult, entry: SizeResult) -> list[object]:
    first = result.finished[0]
    loss, start = (each.mean(result.split, "log_loss") for each in (entry, first))
    runs = entry.runs
    return [
        entry.number,
        el("span", _changes(first, entry), cls="wrap"),
        numbers.scaled(entry.size.flops),
        numbers.count(entry.size.dense_parameters),
        numbers.count(entry.size.table_parameters),
        numbers.scaled(statistics.fmean(run.training_flops for run in runs)),
        numbers.duration(statistics.fmean(run.seconds for run in runs)),
        _spread(entry.values(result.split, "log_loss")),
        _spread(entry.values(result.split, "auc")),
        None if entry is first else f"{100 * (loss / start - 1):+.2f} %".replace("-", "−"),
    ]


def _spread(values: Sequence[float]) -> str:
    mean = numbers.figure(statistics.fmean(values))
    return mean if len(values) < 2 else f"{mean} ± {numbers.figure(statistics.stdev(values))}"


def _changes(first: SizeResult, entry: SizeResult) -> str:
    changed = differing_keys({"model": first.model}, {"model": entry.model})
    return ", ".join(f"{key.removeprefix('model.')} {new}" for key, _, new in changed) or "–"


def _configs(sweeps: Sequence[SweepSeries]) -> Html:
    parts = [
        el("details", el("summary", f"{sweep.title}: the first size"), el("pre", as_yaml(sweep.result.config)))
        for sweep in sweeps
    ]
    return section("config", "Config", *parts)
