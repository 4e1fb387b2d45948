"""Ladders as one HTML page: the drawing, the laws, the rungs, the configs; self-contained as the report is."""

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
from ziggurat.training.scaling.result import FEWEST_RUNGS, RungResult, ScaleResult

Writer = Callable[[float], str]


def write_scale(path: Path, results: Sequence[ScaleResult], folders: Sequence[Path] = ()) -> list[PowerLawFit | None]:
    """Draw ladders into one HTML file, whole or not at all; returns their laws, None for one of fewer than three rungs.

    Args:
        path: the file.
        results: a ladder each.
        folders: where each lies, to tell ladders apart that share model and name.

    Raises:
        ConfigError: ladders that cannot be compared, being of other data, another split or the same folder, or without
            a finished run.
        DataError: a log-loss is undefined, the disk is full or the folder not writable.
    """
    check_comparable(results, folders)
    ladders = [
        SweepSeries(title, result, result.fit(), colour)
        for title, result, colour in zip(titles(results, folders), results, COLOURS, strict=False)
    ]
    with atomic_file(path) as temporary:
        temporary.write_text(render_scale(ladders), encoding="utf-8")
    return [ladder.fit for ladder in ladders]


def render_scale(ladders: Sequence[SweepSeries]) -> str:
    """The page: the same ladders give the same bytes."""
    title = " and ".join(dict.fromkeys(ladder.result.name for ladder in ladders))
    return page(
        f"{title} – ziggurat scale",
        _header(title, ladders),
        [_drawing(ladders), *(_rungs(ladder, len(ladders) > 1) for ladder in ladders), _configs(ladders)],
    )


def _header(title: str, ladders: Sequence[SweepSeries]) -> Html:
    first = ladders[0].result
    sizes = [rung.size.flops for ladder in ladders for rung in ladder.result.finished]
    runs = sum(ladder.result.finished_runs for ladder in ladders)
    tasks = f", mean of {' and '.join(first.tasks)}" if first.tasks else ""
    line = (
        f"{', '.join(ladder.title for ladder in ladders)} · {numbers.scaled(min(sizes), 'FLOP')} to "
        f"{numbers.scaled(max(sizes), 'FLOP')} per example · {runs} runs · figures on {first.split}{tasks}"
    )
    return el(
        "header",
        el("h1", f"{title}: quality over compute"),
        el("p", line, cls="soft"),
        *(paragraph for ladder in ladders for paragraph in _said(ladder, len(ladders) > 1)),
    )


def _said(ladder: SweepSeries, named: bool) -> list[Html]:
    """What the law amounts to, and what limits it."""
    prefix = f"{ladder.title}: " if named else ""
    caveats = [el("p", prefix, caveat, cls="note") for caveat in ladder.result.caveats]
    if ladder.fit is None:
        count = len(ladder.result.finished)
        few = f"{prefix}{count} of the {FEWEST_RUNGS} rungs that a law needs are trained."
        return [el("p", few, cls="note"), *caveats]
    said = [el("p", prefix, ladder.fit.verdict, cls="" if ladder.fit.visible else "note")]
    return said + caveats


def _drawing(ladders: Sequence[SweepSeries]) -> Html:
    reading = (
        "Each dot is the mean of a size's seeds, its bar their range; the line is the fitted law, the shade where 95 % "
        "of the resampled laws lie."
    )
    laws = [ladder for ladder in ladders if ladder.fit is not None]
    formulas = [
        el("p", f"{ladder.title}: " if len(ladders) > 1 else "", _formula(ladder.fit.law))
        for ladder in laws
        if ladder.fit is not None and ladder.fit.visible is not False and (ladder.fit.flat or ladder.fit.determined)
    ]
    return section(
        "law",
        "The law",
        legend({ladder.title: ladder.colour for ladder in ladders}) if len(ladders) > 1 else None,
        figure(reading, scaling(ladders)),
        *formulas,
        table(["Model", "a, the floor", "b", "c, the exponent", "R², log loss"], [_law_row(each) for each in laws]),
        el(
            "p",
            "Log-loss = a + b·x^(−c) over forward FLOPs per example x, weighed by the seeds' spread; in brackets the "
            "middle 95 % of a bootstrap over seeds. R² is of the logarithm of the log-loss; three "
            "rungs, no more than the law has constants, have none.",
            cls="soft",
        ),
    )


def _formula(law: PowerLaw) -> Html:
    if law.scale == 0:
        return Html(f"log-loss is flat at {numbers.figure(law.floor)}")
    power = el("sup", f"−{law.exponent:.3g}")
    return join(["log-loss = ", numbers.figure(law.floor), " + ", numbers.short(law.scale), " · FLOPs", power])


def _law_row(ladder: SweepSeries) -> list[object]:
    fit = ladder.fit
    assert fit is not None
    if fit.flat:
        return [ladder.title, f"flat at {numbers.figure(fit.law.floor)}", None, None, None]
    return [
        ladder.title,
        _with_interval(numbers.figure, fit.law.floor, fit.interval("floor")),
        _with_interval(numbers.short, fit.law.scale, fit.interval("scale")),
        _with_interval(numbers.short, fit.law.exponent, fit.interval("exponent")),
        numbers.figure(fit.r2_log),
    ]


def _with_interval(write: Writer, value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    return write(value) if math.isnan(low) else f"{write(value)} [{write(low)}, {write(high)}]"


def _rungs(ladder: SweepSeries, named: bool) -> Html:
    headers = [
        "Rung", "Against the first", *map(_in_two_lines, ("FLOPs per example", "Dense parameters", "Table parameters",
        "Training FLOPs")), "Time", "Log-loss", "AUC", "Δ log-loss",
    ]  # fmt: skip
    rows = [_rung_row(ladder.result, rung) for rung in ladder.result.finished]
    tasks = ladder.result.tasks
    reading = f"Log-loss and AUC are means over the {len(tasks)} tasks, {' and '.join(tasks)}. " if tasks else ""
    reading += (
        "Means over seeds, ± their standard deviation. Training FLOPs are three forward passes of the dense part for "
        "every example; time is of training alone."
    )
    title = f"Rungs of {ladder.title}" if named else "Rungs"
    anchor = f"rungs-{ladder.colour}"
    return section(
        anchor, title, el("div", table(headers, rows, text_columns=2), cls="tight"), el("p", reading, cls="soft")
    )


def _in_two_lines(header: str) -> Html:
    """The header broken before its last word, so that ten columns fit on a page."""
    first, _, last = header.rpartition(" ")
    return join([first, " ", el("br"), last])


def _rung_row(result: ScaleResult, rung: RungResult) -> list[object]:
    first = result.finished[0]
    loss, start = (each.mean(result.split, "log_loss") for each in (rung, first))
    runs = rung.runs
    return [
        rung.number,
        el("span", _changes(first, rung), cls="wrap"),
        numbers.scaled(rung.size.flops),
        numbers.count(rung.size.dense_parameters),
        numbers.count(rung.size.table_parameters),
        numbers.scaled(statistics.fmean(run.training_flops for run in runs)),
        numbers.duration(statistics.fmean(run.seconds for run in runs)),
        _spread(rung.values(result.split, "log_loss")),
        _spread(rung.values(result.split, "auc")),
        None if rung is first else f"{100 * (loss / start - 1):+.2f} %".replace("-", "−"),
    ]


def _spread(values: Sequence[float]) -> str:
    mean = numbers.figure(statistics.fmean(values))
    return mean if len(values) < 2 else f"{mean} ± {numbers.figure(statistics.stdev(values))}"


def _changes(first: RungResult, rung: RungResult) -> str:
    changed = differing_keys({"model": first.model}, {"model": rung.model})
    return ", ".join(f"{key.removeprefix('model.')} {new}" for key, _, new in changed) or "–"


def _configs(ladders: Sequence[SweepSeries]) -> Html:
    parts = [
        el("details", el("summary", f"{ladder.title}: the first rung"), el("pre", as_yaml(ladder.result.config)))
        for ladder in ladders
    ]
    return section("config", "Config", *parts)
