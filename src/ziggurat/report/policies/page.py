"""Renders a run of policies as one self-contained HTML page."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ziggurat.core.files import atomic_file
from ziggurat.policies import run_folder
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.film_record import Film
from ziggurat.policies.judging import read_selection
from ziggurat.policies.records import EvaluationRecord, Judged, SelectionRecord
from ziggurat.policies.run_folder import Episode, TrainingRecord
from ziggurat.policies.schedule import cycle_ends
from ziggurat.policies.scores import mean_interval
from ziggurat.policies.training import rate_of
from ziggurat.report.html import page
from ziggurat.report.markup import Html, el, figure, section, table
from ziggurat.report.numbers import count, duration, short
from ziggurat.report.policies import drawings


def write_policies(folder: str | Path, path: str | Path | None = None) -> Path:
    """Writes the page of a run of policies atomically, with what is known so far, and returns its path.

    Args:
        folder: the run.
        path: the file; default: ``policies.html`` in the run.

    Raises:
        RunFolderError: the folder is no run of policies, or is damaged.
        DataError: the disk is full or the folder is not writable.
    """
    folder = Path(folder)
    target = folder / run_folder.PAGE_FILE if path is None else Path(path)
    text = render_policies(
        run_folder.read_config(folder),
        run_folder.read_record(folder),
        read_selection(folder),
        run_folder.read_result(folder, run_folder.EVALUATION_FILE, EvaluationRecord),
        run_folder.read_result(folder, run_folder.FILM_FILE, Film),
    )
    with atomic_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


def render_policies(
    config: PoliciesConfig,
    record: TrainingRecord | None,
    selection: SelectionRecord | None,
    evaluation: EvaluationRecord | None,
    film: Film | None,
) -> str:
    """Returns the page; equal runs give equal bytes. What is not known yet is left out."""
    sections = [_training(config, record.episodes if record is not None else ())]
    if selection is not None:
        sections.append(_selection(selection))
    if evaluation is not None:
        sections += [_evaluation(evaluation), _diversity(evaluation)]
    if film is not None:
        sections.append(_film(film))
    return page(f"{config.name} – ziggurat policies", _header(config, record, evaluation), sections, images=True)


def _header(config: PoliciesConfig, record: TrainingRecord | None, evaluation: EvaluationRecord | None) -> Html:
    training = config.training
    terms: list[tuple[str, str, str]] = []
    if evaluation is not None:
        terms += [
            (what, short(each.mean), f"{len(each.returns)} episodes, {note}")
            for what, each, note in (
                (
                    "ensemble",
                    evaluation.ensemble,
                    f"{len(evaluation.ensemble.members)} members, {evaluation.ensemble.rule}",
                ),
                ("last snapshot", evaluation.last, f"cycle {evaluation.last.members[0]}"),
                ("best snapshot", evaluation.best_snapshot, f"cycle {evaluation.best}, by the selection's episodes"),
            )
        ]
    if record is not None:
        terms.append(("steps", count(record.steps), f"of {count(training.steps)}, in {duration(record.seconds)}"))
    headline = [el("div", el("dt", name), el("dd", value, el("small", note))) for name, value, note in terms]
    line = f"{config.task.env} · {config.algorithm.name} · {training.cycles} cycles · seed {training.seed}"
    return el(
        "header",
        el("h1", f"{config.name}: policies of one training run"),
        el("p", line, cls="soft"),
        el("dl", *headline, cls="headline"),
    )


def _training(config: PoliciesConfig, episodes: tuple[Episode, ...]) -> Html:
    training = config.training
    ends = cycle_ends(training.steps, training.cycles)
    rate = figure(
        "Where it jumps back, the parameters move on to another optimum."
        if training.schedule == "cyclical"
        else "It is constant.",
        drawings.rate_over_steps(rate_of(training), training.steps),
        caption="Learning rate",
    )
    if not episodes:
        return section("training", "Training", el("p", "No episode has ended yet."), rate)
    returns = figure(
        "Episodes with exploration, each point the mean of several; a dashed line is a snapshot.",
        drawings.returns_over_steps(episodes, ends, max(training.steps, episodes[-1].step)),
        caption="Return",
    )
    return section("training", "Training", el("div", returns, rate, cls="figures"))


def _selection(selection: SelectionRecord) -> Html:
    members = selection.ensemble.members
    rows: list[list[object]] = [
        [
            el("span", str(cycle), cls="won") if cycle in members else str(cycle),
            "member" if cycle in members else "",
            *_bounds(returns),
        ]
        for cycle, returns in zip(selection.cycles, selection.returns, strict=True)
    ]
    tried: list[list[object]] = [
        [
            el("span", _named(each.members), cls="won") if place == selection.chosen else _named(each.members),
            each.rule,
            short(each.diversity_weight),
            short(each.divergence),
            *_bounds(each.returns),
        ]
        for place, each in enumerate(selection.candidates)
    ]
    note = (
        f"Chosen in {len(selection.returns[0])} episodes that evaluation does not use; snapshots more than "
        f"{short(selection.tolerance)} below the best one take no part. "
        f"Discrete actions are {'drawn from the probabilities' if selection.drawn else 'the most favoured ones'}."
    )
    matrix = figure(
        "The stronger the colour, the farther two snapshots are apart; pairs of members are outlined.",
        drawings.divergence_matrix(selection),
        caption="Divergence between the snapshots of cycles",
    )
    return section(
        "selection",
        "Selection",
        matrix,
        table(["Cycle", "", "Mean return", "95 % interval"], rows, 2),
        el("h3", "Ensembles that were compared"),
        table(["Members", "Rule", "λ", "Divergence", "Mean return", "95 % interval"], tried, 2),
        el("p", note, cls="soft"),
    )


def _evaluation(evaluation: EvaluationRecord) -> Html:
    named: list[tuple[str, Judged]] = [
        ("the ensemble", evaluation.ensemble),
        ("the last snapshot", evaluation.last),
        ("the best snapshot by the selection's episodes", evaluation.best_snapshot),
        *(
            (f"the same members, {each.rule}", each)
            for each in evaluation.rules
            if each.rule != evaluation.ensemble.rule
        ),
        *((f"cycle {each.members[0]}", each) for each in evaluation.snapshots),
    ]
    rows: list[list[object]] = [[name, _named(each.members), *_bounds(each.returns)] for name, each in named]
    rows.append(["random actions", "", *_bounds(evaluation.random)])
    note = "Returns of episodes that decided nothing. Intervals come of a bootstrap over episodes."
    return section(
        "evaluation",
        "Evaluation",
        table(["Policy", "Cycles", "Mean return", "95 % interval"], rows, 2),
        el("p", note, cls="soft"),
    )


def _diversity(evaluation: EvaluationRecord) -> Html:
    figures = [
        figure(
            "A dot is an ensemble of the sweep; orange the chosen one.",
            drawings.score_over_diversity(evaluation),
            caption="Return over the diversity of the members",
        )
    ]
    if evaluation.weights:
        weight = figure(
            "Each λ chooses its own members; nothing was chosen by these returns.",
            drawings.score_over_weight(evaluation),
            caption="Return over λ, the weight of diversity",
        )
        figures.insert(0, weight)
    return section("diversity", "Diversity", el("div", *figures, cls="figures"))


def _film(film: Film) -> Html:
    line = f"The ensemble in the episode with seed {film.seed}: {count(film.steps)} steps, return {short(film.total)}."
    if not film.frames:
        return section("film", "An episode", el("p", f"{line} This environment cannot be drawn here."))
    return section("film", "An episode", drawings.film_strip(film), el("p", line, cls="soft"))


def _bounds(returns: tuple[float, ...]) -> list[object]:
    middle, low, high = mean_interval(np.array(returns))
    return [short(middle), f"{short(low)} to {short(high)}"]


def _named(members: tuple[int, ...]) -> str:
    return ", ".join(map(str, members))
