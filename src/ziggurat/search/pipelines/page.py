"""Renders a search of pipelines as one self-contained HTML page: clusters, pipelines, rewards, evaluations, masks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from ziggurat.core.files import atomic_file
from ziggurat.report.html import page
from ziggurat.report.markup import Html, el, figure, join, section, table
from ziggurat.report.numbers import count, difference, duration
from ziggurat.report.numbers import figure as written
from ziggurat.search.pipelines import drawings
from ziggurat.search.pipelines.found import FoundPipelines, Trial
from ziggurat.search.pipelines.pipeline import Discretiser, NumericPipeline, Scaler, title, why_masked
from ziggurat.search.pipelines.scored_by import ScoredBy

_SHOWN = 50
"""The evaluations that are listed; of more, the best ones and all that failed."""


def write_page(path: str | Path, name: str, scored: ScoredBy, found: FoundPipelines) -> None:
    """Writes the page atomically.

    Args:
        path: the file.
        name: of the experiment or table.
        scored: what the scores are.
        found: the search, finished or not.

    Raises:
        DataError: the disk is full or the folder is not writable.
    """
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(render(name, scored, found), encoding="utf-8")


def render(name: str, scored: ScoredBy, found: FoundPipelines) -> str:
    """Returns the page; equal searches give equal bytes. Sections without content, and links to them, are left out."""
    sections = {
        "clusters": ("Clusters", _clusters(found)),
        "policy": ("Policy", _policy(found, scored.score)),
        "evaluations": ("Evaluations", _evaluations(found, scored.score)),
        "columns": ("Columns", _columns(found)),
        "masked": ("Masked", _masked()),
    }
    kept = {anchor: (link, drawn) for anchor, (link, drawn) in sections.items() if drawn is not None}
    links = [join([el("a", link, href=f"#{anchor}"), " "]) for anchor, (link, _) in kept.items()]
    return page(f"{name} – ziggurat search", _header(name, scored, found, links), [each for _, each in kept.values()])


def _header(name: str, scored: ScoredBy, found: FoundPipelines, links: list[Html]) -> Html:
    gain = found.score - found.standard
    optimism = found.search_score - found.score
    terms = [
        (scored.metric, written(scored.value(found.score)), scored.direction),
        ("standard scaling", written(scored.value(found.standard)), f"{difference(gain)} is gained"),
        (
            "over-fit of the choice",
            difference(optimism),
            "score that it was chosen by, minus that of a fresh judgement",
        ),
        ("evaluations", count(found.evaluations), f"in {duration(found.seconds)}"),
    ]
    headline = [el("div", el("dt", term), el("dd", value, el("small", note))) for term, value, note in terms]
    state = "" if found.finished else " The search is not finished."
    return el(
        "header",
        el("h1", f"{name}: search of preprocessing pipelines"),
        el(
            "p",
            f"{found.method}: a pipeline for every column, {scored.how}.{state}",
            cls="soft",
        ),
        el("dl", *headline, cls="headline"),
        el("nav", *links),
    )


def _clusters(found: FoundPipelines) -> Html:
    rows: list[list[object]] = []
    for cluster in sorted(set(found.clusters.values())):
        members = [name for name, own in found.clusters.items() if own == cluster]
        for kind in ("numeric", "categorical", "time"):
            own = [name for name in members if found.pipelines[name].kind == kind]
            for pipeline in dict.fromkeys(title(found.pipelines[name]) for name in own):
                alike = [name for name in own if title(found.pipelines[name]) == pipeline]
                names = el("span", ", ".join(alike), cls="wrap")
                rows.append([_numbered(cluster), kind, pipeline, names, count(len(alike))])
    tabled = table(["Cluster", "Kind", "Pipeline", "Columns", "Number"], rows, text_columns=4)
    if len(found.coordinates) != len(found.clusters):
        return section("clusters", "Pipelines", tabled)
    reading = (
        "A dot is a column, with the number of its cluster, in the plane that shows most of what the network "
        "clusters by (its principal components)."
    )
    return section("clusters", "Clusters of columns", figure(reading, drawings.feature_map(found)), tabled)


def _numbered(cluster: int) -> Html:
    return join([el("span", cls=f"swatch {drawings.colour(cluster)}"), str(cluster)])


def _policy(found: FoundPipelines, metric: str) -> Html | None:
    if not found.episodes:
        return None
    episodes = found.episodes
    drawn = [
        figure(
            "A dot is the best of an episode's pipelines; the line is the baseline, a moving mean of earlier rewards.",
            drawings.rewards(episodes, metric),
            caption="Reward",
        ),
        figure(
            "Mean entropy of the columns' assignments, in nats; it falls where the policy commits itself.",
            drawings.over_episodes("Entropy", episodes, [each.entropy for each in episodes]),
            caption="Entropy",
        ),
    ]
    for name in [each for each in episodes[0].losses if each != "entropy"]:
        losses = [each.losses[name] for each in episodes]
        loss = drawings.over_episodes(name, episodes, losses)
        drawn.append(figure("Before the step of each episode.", loss, caption=f"Loss: {name}"))
    return section("policy", "The policy over episodes", el("div", *drawn, cls="figures"))


def _evaluations(found: FoundPipelines, metric: str) -> Html | None:
    trials = found.trials
    if not any(each.scores for each in trials):
        return None
    ordered = sorted(trials, key=lambda each: (each.repeat == 0, -each.score, each.number))
    listed = ordered
    if len(trials) > _SHOWN:
        listed = [each for place, each in enumerate(ordered) if place < _SHOWN or not each.scores]
    rows = [_row(each, found) for each in listed]
    drawn = figure(
        "A dot is an evaluation, the line the best so far; dashed is standard scaling.",
        drawings.scores(found),
        caption=f"Score ({metric})",
    )
    note = f"{len(listed)} of {len(trials)} evaluations. Fresh folds come first: they decided nothing before the end."
    heads = ["Evaluation", "Proposed by", "Folds", "Pipelines", "Score", "Worst fold", "Best fold", "Time"]
    return section(
        "evaluations", "Evaluations", drawn, el("div", table(heads, rows, 4), cls="tight"), el("p", note, cls="soft")
    )


def _row(trial: Trial, found: FoundPipelines) -> list[object]:
    won = trial.pipelines == found.pipelines
    number = el("span", str(trial.number), cls="won") if won else str(trial.number)
    folds = f"fresh {trial.repeat}" if trial.repeat else "of the search"
    ends = [written(each(trial.scores)) if trial.scores else None for each in (min, max)]
    what = el("span", trial.reason or _summary(trial), cls="wrap")
    score = written(trial.score) if trial.scores else "failed"
    return [number, trial.origin, folds, what, score, *ends, duration(trial.seconds)]


def _summary(trial: Trial) -> str:
    """Returns the pipelines of a trial, the most frequent ones first, with how many columns have them."""
    counted: dict[str, int] = {}
    for pipeline in trial.pipelines.values():
        counted[title(pipeline)] = counted.get(title(pipeline), 0) + 1
    ordered = sorted(counted.items(), key=lambda each: -each[1])
    shown = "; ".join(f"{name} ({number})" for name, number in ordered[:3])
    return shown if len(ordered) <= 3 else f"{shown}; {len(ordered) - 3} more"


def _columns(found: FoundPipelines) -> Html | None:
    if not len(found.descriptors):
        return None
    rows: list[list[object]] = [
        [
            name,
            _numbered(cluster),
            title(found.pipelines[name]),
            *(written(float(each)) for each in found.descriptors[at]),
        ]
        for at, (name, cluster) in enumerate(found.clusters.items())
    ]
    heads = ["Column", "Cluster", "Pipeline", *found.descriptor_names]
    return section("columns", "Descriptors of the columns", el("div", table(heads, rows, 3), cls="tight"))


def _masked() -> Html:
    rows: list[list[object]] = [[scaler, discretiser, reason] for scaler, discretiser, reason in masked()]
    note = "What a search leaves out computes the same as a shorter pipeline, so that trying it would tell nothing."
    return section(
        "masked",
        "What was masked",
        el("p", note, cls="soft"),
        el(
            "details",
            el("summary", f"{len(rows)} combinations of numeric columns"),
            table(["Scaler", "Discretiser", "Why"], rows, text_columns=3),
        ),
    )


def masked() -> Sequence[tuple[str, str, str]]:
    """Returns scaler, discretiser and reason of each combination that no search draws."""
    return [
        (scaler, discretiser, reason)
        for scaler, discretiser in itertools.product(get_args(Scaler), get_args(Discretiser))
        if (reason := why_masked(NumericPipeline(scaler=scaler, discretiser=discretiser)))
    ]
