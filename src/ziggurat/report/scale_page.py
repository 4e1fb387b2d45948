"""Ladders as one HTML page: the drawing, the laws, the rungs, the configs; self-contained as the report is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.core.files import atomic_file
from ziggurat.metrics.power_law import PowerLaw, PowerLawFit
from ziggurat.report import numbers
from ziggurat.report.charts import legend
from ziggurat.report.html import page
from ziggurat.report.markup import Html, el, figure, join, section, table
from ziggurat.report.scale_chart import COLOURS, Ladder, scaling
from ziggurat.training.experiment import as_yaml, differing_keys
from ziggurat.training.scale_result import FEWEST_RUNGS, RungResult, ScaleResult

Writer = Callable[[float], str]

NARROW = 10.0
"""Times between the smallest and the largest size below which a law says little about others."""


def write_scale(path: Path, results: Sequence[ScaleResult]) -> list[PowerLawFit | None]:
    """Draw ladders into one HTML file, whole or not at all; returns their laws, None for one of fewer than three rungs.

    Raises:
        ConfigError: ladders that cannot be compared, being of other data or another split, or without a finished run.
        DataError: a log-loss is undefined, the disk is full or the folder not writable.
    """
    _check(results)
    titles = _titles(results)
    ladders = [
        Ladder(title, result, result.fit(), colour)
        for title, result, colour in zip(titles, results, COLOURS, strict=False)
    ]
    with atomic_file(path) as temporary:
        temporary.write_text(render_scale(ladders), encoding="utf-8")
    return [ladder.fit for ladder in ladders]


def render_scale(ladders: Sequence[Ladder]) -> str:
    """The page: the same ladders give the same bytes."""
    title = " and ".join(dict.fromkeys(ladder.result.name for ladder in ladders))
    return page(
        f"{title} – ziggurat scale",
        _header(title, ladders),
        [_drawing(ladders), *(_rungs(ladder, len(ladders) > 1) for ladder in ladders), _configs(ladders)],
    )


def _check(results: Sequence[ScaleResult]) -> None:
    for result in results:
        if not result.finished:
            raise ConfigError(f"{result.name}: no run is finished", "run the same `ziggurat scale` again to go on")
        for what in ("dataset", "split"):
            ours, theirs = getattr(results[0], what), getattr(result, what)
            if ours != theirs:
                raise ConfigError(
                    f"ladders of different {what}s cannot be compared: {results[0].name} has {ours[:12]}, "
                    f"{result.name} has {theirs[:12]}",
                    "train both with the same data, features and --split",
                )
    if len(results) > len(COLOURS):
        raise ConfigError(
            f"{len(results)} ladders in one drawing cannot be told apart", f"compare {len(COLOURS)} at most"
        )


def _titles(results: Sequence[ScaleResult]) -> list[str]:
    """The model's name, with the experiment's where two share it, and numbered where they share both."""
    for titles in ([each.model for each in results], [f"{each.model}, {each.name}" for each in results]):
        if len(set(titles)) == len(titles):
            return titles
    return [f"{each.model}, {each.name}, {number}" for number, each in enumerate(results, 1)]


def _header(title: str, ladders: Sequence[Ladder]) -> Html:
    first = ladders[0].result
    sizes = [rung.size.flops for ladder in ladders for rung in ladder.result.finished]
    runs = sum(ladder.result.finished_runs for ladder in ladders)
    line = (
        f"{', '.join(ladder.title for ladder in ladders)} · {numbers.scaled(min(sizes), 'FLOP')} to "
        f"{numbers.scaled(max(sizes), 'FLOP')} per example · {runs} runs · figures on {first.split}"
    )
    return el(
        "header",
        el("h1", f"{title}: quality over compute"),
        el("p", line, cls="soft"),
        *(paragraph for ladder in ladders for paragraph in _said(ladder, len(ladders) > 1)),
    )


def _said(ladder: Ladder, named: bool) -> list[Html]:
    """What the law amounts to, and what limits it."""
    prefix = f"{ladder.title}: " if named else ""
    if ladder.fit is None:
        count = len(ladder.result.finished)
        return [el("p", f"{prefix}{count} of the {FEWEST_RUNGS} rungs that a law needs are trained.", cls="note")]
    said = [el("p", prefix, ladder.fit.verdict, cls="" if ladder.fit.visible else "note")]
    sizes = [rung.size.flops for rung in ladder.result.finished]
    if max(sizes) < NARROW * min(sizes):
        ratio = max(sizes) / min(sizes)
        narrow = f"{prefix}The largest size is only {ratio:.1f} times the smallest: the law says little beyond them."
        said.append(el("p", narrow, cls="note"))
    return said


def _drawing(ladders: Sequence[Ladder]) -> Html:
    reading = (
        "Each dot is the mean of a size's seeds, its bar their range; the line is the fitted law, the shade where 95 % "
        "of the resampled laws lie."
    )
    laws = [ladder for ladder in ladders if ladder.fit is not None]
    formulas = [
        el("p", f"{ladder.title}: " if len(ladders) > 1 else "", _formula(ladder.fit.law))
        for ladder in laws
        if ladder.fit is not None and ladder.fit.visible is not False
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
            "middle 95 % of a bootstrap over seeds. R² is of the logarithm of the log-loss.",
            cls="soft",
        ),
    )


def _formula(law: PowerLaw) -> Html:
    power = el("sup", f"−{law.exponent:.3g}")
    return join(["log-loss = ", numbers.figure(law.floor), " + ", numbers.short(law.scale), " · FLOPs", power])


def _law_row(ladder: Ladder) -> list[object]:
    fit = ladder.fit
    assert fit is not None
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


def _rungs(ladder: Ladder, named: bool) -> Html:
    headers = [
        "Rung", "Against the first", "FLOPs / example", "Dense parameters", "Table parameters", "Training FLOPs",
        "Time", "Log-loss", "AUC", "Δ log-loss",
    ]  # fmt: skip
    rows = [_rung_row(ladder.result, rung) for rung in ladder.result.finished]
    reading = (
        "Means over seeds, ± their standard deviation. Training FLOPs are three forward passes of the dense part for "
        "every example; time is of training alone."
    )
    title = f"Rungs of {ladder.title}" if named else "Rungs"
    anchor = f"rungs-{ladder.colour}"
    return section(anchor, title, table(headers, rows, text_columns=2), el("p", reading, cls="soft"))


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


def _configs(ladders: Sequence[Ladder]) -> Html:
    parts = [
        el("details", el("summary", f"{ladder.title}: the first rung"), el("pre", as_yaml(ladder.result.config)))
        for ladder in ladders
    ]
    return section("config", "Config", *parts)
