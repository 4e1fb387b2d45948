"""Renders a search of architectures as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.files import atomic_file
from ziggurat.report.html import page
from ziggurat.report.markup import Html, el, figure, section, table
from ziggurat.report.numbers import count, duration, short
from ziggurat.report.numbers import figure as written
from ziggurat.search.architecture import drawings
from ziggurat.search.architecture.found import FoundArchitectures
from ziggurat.search.architecture.records import ArchitectureTrial
from ziggurat.search.architecture.space.decision import chosen

PAGE_FILE = "search.html"
_TIMES = "Time", "Processor time"


def write_page(path: Path, found: FoundArchitectures) -> None:
    """Writes the page atomically.

    Raises:
        DataError: the disk is full or the folder is not writable.
    """
    with atomic_file(path) as temporary:
        temporary.write_text(render(found), encoding="utf-8")


def render(found: FoundArchitectures) -> str:
    """Returns the page; equal searches give equal bytes."""
    sections = [*_chosen(found), *_front(found), *_super_net(found), *_over_time(found), _trials(found)]
    return page(f"{found.name} – ziggurat search", _header(found), sections)


def _header(found: FoundArchitectures) -> Html:
    own = found.trials[0]
    best = found.best
    way = "higher" if found.higher_is_better else "lower"
    terms = [
        ("best on validation", written(None if best is None else best.value), f"{found.method}, trained from scratch"),
        ("the config as it was", written(own.value), "trial 0"),
        (
            "architectures trained",
            count(sum(each.state == "complete" and each.number > 0 for each in found.trials)),
            "",
        ),
        ("time of the search", duration(found.search.seconds), _trainings(found)),
    ]
    headline = [el("div", el("dt", name), el("dd", value, el("small", note))) for name, value, note in terms]
    return el(
        "header",
        el("h1", f"{found.name}: search of architectures"),
        el(
            "p",
            f"{found.monitor} on validation decides; {way} is better. Weights of the super-net are in no figure.",
            cls="soft",
        ),
        *([el("p", el("strong", found.keeps_config))] if found.keeps_config else []),
        el("dl", *headline, cls="headline"),
    )


def _trainings(found: FoundArchitectures) -> str:
    if found.trainings is None:
        return ""
    return (
        f"{duration(found.search.cpu_seconds)} of processor time: {short(found.trainings)} trainings of the config as "
        "it was"
    )


def _chosen(found: FoundArchitectures) -> list[Html]:
    best, own = found.best, found.trials[0]
    if best is None:
        return [section("chosen", "What was chosen", el("p", "No architecture is trained to its end yet."))]
    values = chosen(found.decisions, best.choices)
    rows: list[list[object]] = [
        [each.name, str(values[each.name]), ", ".join(map(str, each.choices))] for each in found.decisions
    ]
    costs: list[list[object]] = [
        [name, written(own.costs.get(name)), written(value), written(found.limits.get(name))]  # pyright: ignore
        for name, value in best.costs.items()
    ]
    test, before = found.test.get(best.number, {}), found.test.get(0, {})
    figures: list[list[object]] = [
        [name, written(own.figures.get(name)), written(value), written(before.get(name)), written(test.get(name))]
        for name, value in best.figures.items()
    ]
    note = "Test figures were computed once, after the choice." if test else "Test figures follow at the end."
    return [
        section(
            "chosen",
            f"What was chosen: trial {best.number}",
            table(["Metric", "Validation: the config", "Chosen", "Test: the config", "Chosen"], figures),
            el("p", note, cls="soft"),
            table(["Cost", "The config", "Chosen", "Limit"], costs),
            table(["Decision", "Chosen", "Choices"], rows, text_columns=3),
        )
    ]


def _costs(found: FoundArchitectures) -> list[str]:
    """Returns the names of all costs: the config as it is has no measured time."""
    return list(dict.fromkeys(name for trial in found.trials for name in trial.costs))


def _front(found: FoundArchitectures) -> list[Html]:
    valued = [each for each in found.trials if each.value is not None]
    costs = [name for name in _costs(found) if any(name in each.costs for each in valued)]
    if not costs:
        return []
    caption = "Orange: the config as it was. The large dot was chosen. The line is the Pareto front."
    drawn = [
        figure(f"{found.monitor} over {cost}", drawings.cost_and_value(found, cost), caption=caption) for cost in costs
    ]
    return [section("front", "Cost and quality", *drawn)]


def _super_net(found: FoundArchitectures) -> list[Html]:
    if not found.history:
        return []
    caption = "Each bar is a decision, each segment the final probability of a choice; the frame marks what was chosen."
    return [
        section(
            "super-net",
            "The super-net",
            el("figure", el("div", drawings.super_net(found), el("figcaption", caption), cls="scroll")),
        )
    ]


def _over_time(found: FoundArchitectures) -> list[Html]:
    if len(found.history) < 2:
        return []
    drawn = [
        figure(each.name, drawings.over_time(each, found.history), caption=", ".join(map(str, each.choices)))
        for each in found.decisions
        if each.is_open
    ]
    last = found.history[-1]
    rows: list[list[object]] = [
        [count(point.step), written(point.temperature), written(point.weights_loss), written(point.architecture_loss),
         *(written(point.costs.get(name)) for name in last.costs)]
        for point in found.history[:: max(1, len(found.history) // 20)]
    ]  # fmt: skip
    heads = [
        "Step",
        "Temperature",
        "Loss of weights",
        "Loss of the architecture",
        *(f"Expected {n}" for n in last.costs),
    ]
    return [section("time", "Probabilities over time", *drawn, table(heads, rows))]


def _trials(found: FoundArchitectures) -> Html:
    costs = _costs(found)
    sign = -1 if found.higher_is_better else 1
    ordered = sorted(found.trials, key=lambda each: (each.value is None, sign * (each.value or 0.0), each.number))
    rows = [_row(each, costs) for each in ordered]
    return section(
        "trials",
        "All architectures that were trained from scratch",
        el("div", table(["Trial", "State", found.monitor, *costs, "Steps", *_TIMES], rows, 2), cls="tight"),
    )


def _row(trial: ArchitectureTrial, costs: list[str]) -> list[object]:
    name = "0 (the config)" if not trial.number else str(trial.number)
    state = trial.state if not trial.reason else f"{trial.state}: {trial.reason}"
    return [
        name, state, written(trial.value), *(written(trial.costs.get(cost)) for cost in costs), count(trial.steps),
        duration(trial.seconds), duration(trial.cpu_seconds),
    ]  # fmt: skip
