"""Renders a search as one self-contained HTML page: the best trial, charts, and a table of all trials."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.files import atomic_file
from ziggurat.report.html import page
from ziggurat.report.markup import Html, el, figure, section, table
from ziggurat.report.numbers import count, duration, percent
from ziggurat.report.numbers import figure as written
from ziggurat.search import plots
from ziggurat.search.outputs import Found, changes, lead_words, shown
from ziggurat.search.study import WHOLE, TrialRecord

PAGE_FILE = "search.html"


def write_page(path: Path, found: Found) -> None:
    """Writes the page atomically.

    Raises:
        DataError: the disk is full or the folder is not writable.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(render_search(found), encoding="utf-8")


def render_search(found: Found) -> str:
    """Returns the page; equal searches give equal bytes."""
    sections = [_best(found), *_ensemble(found), _charts(found), _space(found), _trials(found)]
    return page(f"{found.name} – ziggurat search", _header(found), sections)


def _header(found: Found) -> Html:
    states = [each.state for each in found.trials]
    kinds = [
        f"{states.count(state)} {state}" for state in ("complete", "pruned", "failed", "running") if state in states
    ]
    way = "higher" if found.higher_is_better else "lower"
    first = found.trials[0]
    terms = [
        ("best on validation", written(found.best.value), f"trial {found.best.number}"),
        ("the config as it was", written(first.value), "trial 0"),
        ("trials", count(len(found.trials)), ", ".join(kinds)),
        ("time of all trials", duration(sum(each.seconds for each in found.trials)), "of their processes"),
    ]
    headline = [el("div", el("dt", name), el("dd", value, el("small", note))) for name, value, note in terms]
    return el(
        "header",
        el("h1", f"{found.name}: search of hyperparameters"),
        el("p", f"{found.monitor} on validation decides; {way} is better.", cls="soft"),
        el("dl", *headline, cls="headline"),
    )


def _best(found: Found) -> Html:
    rows: list[list[object]] = [list(each) for each in changes(found.best.settings, found.own)]
    same = el("p", "No trial was better than the config as it was." if found.lead is None else "")
    lead = [] if found.lead is None else [el("p", lead_words(found.lead))]
    figures: list[list[object]] = [
        [name, written(value), written(found.test.get(name))]
        for name, value in found.best.figures.items()
        if value is not None
    ]
    note = "Test figures were computed once, for this trial alone, after it had been chosen on validation."
    return section(
        "best",
        f"The best trial: {found.best.number}",
        *lead,
        table(["Key", "The config", "The best trial"], rows) if rows else same,
        table(["Metric", "Validation", "Test"], figures),
        el("p", note if found.test else "The search is not finished; test figures follow at its end.", cls="soft"),
    )


def _ensemble(found: Found) -> list[Html]:
    together = found.ensemble
    if together is None:
        return []
    labels = together.built.chosen
    heads = [f"{what} {label}" if len(labels) > 1 else what for label in labels for what in ("Weight", "Loss")]
    rows: list[list[object]] = []
    for at, trial in enumerate(together.trials):
        row: list[object] = [f"trial {trial}"]
        for chosen in labels.values():
            row += [percent(chosen.weights_M[at]), written(chosen.losses_M[at])]
        rows.append(row)
    rows.append(["the ensemble", *(each for chosen in labels.values() for each in (None, written(chosen.loss)))])
    figures: list[list[object]] = [
        [name, written(value), written(together.test.get(name))] for name, value in together.validation.items()
    ]
    note = "The mean of the logits of the best trials; validation chose the weights. Test decided nothing."
    return [
        section(
            "ensemble",
            "The ensemble",
            table(["", *heads], rows),
            table(["Metric", "Validation", "Test"], figures),
            el("p", note, cls="soft"),
        )
    ]


def _charts(found: Found) -> Html:
    way = "upwards" if found.higher_is_better else "downwards"
    importances: list[Html] = []
    if found.importances:
        caveat = "By fANOVA over the complete trials. Few trials tell little: ranking keys takes dozens."
        importances = [el("h3", "Importance"), plots.importances(found), el("p", caveat, cls="soft")]
    reading = "A line is a complete trial: blue the best, orange the best fifth, grey the others."
    lines = [plots.parallel_coordinates(found), el("figcaption", reading)]
    return section(
        "charts",
        "Trials",
        figure(
            f"A dot is a complete trial; the line, the best so far, goes {way}.",
            plots.history(found),
            caption=found.monitor,
        ),
        *importances,
        el("h3", "Settings and values"),
        el("figure", el("div", *lines, cls="scroll"), style="max-width:none"),
    )


def _space(found: Found) -> Html:
    rows: list[list[object]] = [
        [key, shown(dimension.to_json()), shown(found.own[key])] for key, dimension in found.space.items()
    ]
    return section("space", "The space", table(["Key", "Possible values", "The config"], rows, text_columns=3))


def _trials(found: Found) -> Html:
    keys = [*found.space]
    ordered = sorted(found.trials, key=lambda each: _rank(each, found))
    rows = [_row(each, keys, each.number == found.best.number) for each in ordered]
    return section(
        "trials",
        "All trials",
        el("div", table(["Trial", "State", found.monitor, "Done", "Steps", "Time", *keys], rows, 2), cls="tight"),
    )


def _rank(record: TrialRecord, found: Found) -> tuple[int, float, int]:
    if record.value is None:
        return (1, 0.0, record.number)
    return (0, -record.value if found.higher_is_better else record.value, record.number)


def _row(record: TrialRecord, keys: list[str], won: bool) -> list[object]:
    number = el("span", str(record.number), cls="won") if won else str(record.number)
    state = record.state if not record.reason else el("span", f"{record.state}: {record.reason}", cls="wrap")
    if record.same_as is not None:
        state = f"{record.state}, as trial {record.same_as}"
    value = record.value if record.value is not None else record.history[-1][1] if record.history else None
    done = percent(record.history[-1][0] / WHOLE) if record.history else None
    settings = [shown(record.settings[key]) for key in keys]
    return [number, state, written(value), done, count(record.steps), duration(record.seconds), *settings]
