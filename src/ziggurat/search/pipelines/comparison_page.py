"""Renders methods compared over several data sets as one page: ranks with critical differences, and every score."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ziggurat.core.files import atomic_file
from ziggurat.metrics.method_ranks import Floats, critical_difference, friedman, ranks, signed_rank
from ziggurat.report.html import page
from ziggurat.report.markup import Html, el, figure, section, table
from ziggurat.report.numbers import count, difference, percent, short
from ziggurat.report.numbers import figure as written
from ziggurat.report.rank_chart import critical_differences

Scores = Mapping[str, Mapping[str, tuple[float, ...]]]
"""Data set -> method -> a score for each seed; more is better, and every set has the same methods."""
_REGION = 0.001
"""Differences of mean scores that count as none in the signed-rank test."""


def write_comparison(path: str | Path, title: str, groups: Mapping[str, Scores], ours: str) -> None:
    """Writes the page atomically.

    Args:
        path: the file.
        title: of the page.
        groups: what was trained -> its scores; at least two sets and three methods each.
        ours: the method that the others are compared with.

    Raises:
        DataError: the disk is full or the folder is not writable.
    """
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(render_comparison(title, groups, ours), encoding="utf-8")


def render_comparison(title: str, groups: Mapping[str, Scores], ours: str) -> str:
    """Returns the page; equal scores give equal bytes."""
    terms = [(name, count(len(scores)), "data sets") for name, scores in groups.items()]
    headline = [el("div", el("dt", term), el("dd", value, el("small", note))) for term, value, note in terms]
    header = el("header", el("h1", title), el("dl", *headline, cls="headline"))
    return page(title, header, [_group(name, scores, ours) for name, scores in groups.items()])


def _group(name: str, scores: Scores, ours: str) -> Html:
    methods = list(next(iter(scores.values())))
    means_NM = np.array([[np.mean(own[method]) for method in methods] for own in scores.values()], np.float64)
    ranks_NM = ranks(means_NM)
    mean_ranks = ranks_NM.mean(0).tolist()
    gap = critical_difference(len(methods), len(scores))
    test = friedman(ranks_NM)
    drawn = figure(
        "A dot is the mean rank of a method over the data sets; a bar below joins methods that Nemenyi's test at 5 % "
        f"does not tell apart. Friedman's test that all are equal: p = {short(test.p)}.",
        critical_differences(methods, mean_ranks, gap, ours),
        caption="Ranks",
    )
    place = methods.index(ours)
    rows: list[list[object]] = []
    for at, method in enumerate(methods):
        if method == ours:
            continue
        gains = means_NM[:, place] - means_NM[:, at]
        outcome = signed_rank(gains, _REGION)
        rows.append(
            [
                method,
                difference(float(gains.mean())),
                *(percent(float(each.mean())) for each in (gains > 0, gains == 0)),
                *(percent(each) for each in (outcome.above, outcome.equal, outcome.below)),
            ]
        )
    heads = [f"{ours} against", "Mean gain", "Sets won", "Sets tied", "P(better)", "P(alike)", "P(worse)"]
    note = f"P: Bayesian signed-rank test; differences up to {_REGION:g} are alike."
    return section(
        name,
        name,
        drawn,
        table(heads, rows),
        el("p", note, cls="soft"),
        el("details", el("summary", "Every data set"), el("div", _every(scores, methods, ranks_NM), cls="tight")),
    )


def _every(scores: Scores, methods: list[str], ranks_NM: Floats) -> Html:
    rows: list[list[object]] = []
    for (name, own), places in zip(scores.items(), ranks_NM, strict=True):
        cells: list[object] = [name]
        for method, rank in zip(methods, places.tolist(), strict=True):
            mean, spread = (
                float(np.mean(own[method])),
                float(np.std(own[method], ddof=1)) if len(own[method]) > 1 else 0.0,
            )
            text = f"{written(mean)} ± {written(spread)}"
            cells.append(el("span", text, cls="won") if rank == 1 else text)
        rows.append(cells)
    return table(["Data set", *methods], rows)
