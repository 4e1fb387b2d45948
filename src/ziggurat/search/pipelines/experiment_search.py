"""``ziggurat search pipelines``: from an experiment to the same experiment with a pipeline for every feature."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from ziggurat.core.engine import check_engine
from ziggurat.core.files import atomic_file
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.sealed import write_sealed_json
from ziggurat.search.pipelines.clustering.config import PolicyConfig
from ziggurat.search.pipelines.downstream import LogisticRegressionTask, MLPTask, TableMetric
from ziggurat.search.pipelines.experiment_table import table_of, with_pipelines
from ziggurat.search.pipelines.found import FoundPipelines
from ziggurat.search.pipelines.model_judges import ModelJudges
from ziggurat.search.pipelines.page import write_page
from ziggurat.search.pipelines.pipeline import title
from ziggurat.search.pipelines.replaceable import replaceable
from ziggurat.search.pipelines.scored_by import ScoredBy, by_folds, by_model
from ziggurat.search.pipelines.search import (
    Judged,
    MethodName,
    check_arguments,
    judged_by_folds,
    own_folder,
    search_with,
)
from ziggurat.search.pipelines.table import Table
from ziggurat.training.experiment import Experiment, as_experiment, as_yaml

BEST_FILE = "best.yaml"
FOUND_FILE = "found.json"
Downstream = Literal["logistic_regression", "mlp", "model"]
PAGE_FILE = "pipelines.html"


@dataclass(frozen=True, slots=True)
class SearchedPipelines:
    """How a search over an experiment ended.

    Attributes:
        folder: the folder of the search.
        found: what it found.
        experiment: the experiment with the pipelines.
        left: feature that was left as it is -> why; empty if no pipeline is made for its kind.
        page: the page.
    """

    folder: Path
    found: FoundPipelines
    experiment: Experiment
    left: Mapping[str, str]
    page: Path


def search_feature_pipelines(
    experiment: Experiment | str | Path,
    folder: str | Path | None = None,
    *,
    method: MethodName = "cluster",
    downstream: Downstream = "logistic_regression",
    metric: TableMetric = "auc",
    budget: int = 100,
    rows: int = 20_000,
    folds: int = 5,
    seed: int = 0,
    hours: float | None = None,
    jobs: int = 1,
    prepared: str | Path | None = None,
    policy: PolicyConfig | None = None,
    progress: Progress | None = None,
) -> SearchedPipelines:
    """Searches a pipeline for every number, category and time of an experiment, or resumes such a search.

    The training rows alone are searched. With ``downstream="model"`` each evaluation trains the experiment's model and
    is judged by ``training.monitor`` on the validation split; else it is a cross-validation of the training rows. A
    search that a signal stops writes no config; the same call resumes it.

    Args:
        experiment: the experiment, or its YAML file.
        folder: the folder of the search; default: ``searches/NAME-pipelines``.
        method: see :func:`~ziggurat.search.pipelines.search.search_pipelines`.
        downstream: what judges pipelines.
        metric: of the cross-validation.
        budget: evaluations in all.
        rows: the most training rows in the table, drawn by ``seed``.
        folds: of the cross-validation.
        seed: seeds folds, method and model.
        hours: after so long this call ends; the same call resumes it.
        jobs: evaluations at a time.
        prepared: folder of the raw values as a dataset; default: ``FOLDER/raw``.
        policy: how clusters are learnt.
        progress: where to show progress.

    Raises:
        ConfigError: an argument or the config is not possible.
        RunFolderError: the folder holds another search.
        ZigguratError: the data cannot be prepared, or a model cannot be trained.
    """
    check_engine()
    experiment = as_experiment(experiment)
    experiment.check()
    progress = progress or Silent()
    folder = Path("searches") / f"{experiment.name}-pipelines" if folder is None else Path(folder)
    parts = replaceable(experiment)
    with own_folder(folder):
        raw = folder / "raw" if prepared is None else Path(prepared)
        table = table_of(experiment, parts.searched, rows, seed, raw, progress)
        if downstream == "model":
            check_arguments(method, budget, seed, hours, jobs)
            judged, scored = _judged_by_model(experiment, table, folder, jobs), by_model(experiment.training.monitor)
        else:
            kind = LogisticRegressionTask if downstream == "logistic_regression" else MLPTask
            judged = judged_by_folds(table, kind(metric=metric, folds=folds), seed, jobs, method, budget, hours)
            scored = by_folds(metric)
        found = search_with(
            table, judged, method=method, budget=budget, seed=seed, folder=folder, hours=hours, policy=policy,
            progress=progress,
        )  # fmt: skip
        write_found(folder / FOUND_FILE, found)
        write_page(folder / PAGE_FILE, experiment.name, scored, found)
        best = with_pipelines(experiment, found.pipelines, f"{experiment.name}-best")
        if found.signal is None:
            best.check()
            write_best(folder / BEST_FILE, best, found, scored, parts.left)
    return SearchedPipelines(folder, found, best, parts.left, folder / PAGE_FILE)


def _judged_by_model(experiment: Experiment, table: Table, folder: Path, jobs: int) -> Judged:
    threads = max(1, len(os.sched_getaffinity(0)) // jobs)
    rows = np.arange(len(table.labels))
    settings = {"experiment": experiment.model_dump(mode="json")}
    return Judged(lambda: ModelJudges(experiment, folder, jobs, threads), rows, settings, 1)


def write_best(
    path: Path, experiment: Experiment, found: FoundPipelines, scored: ScoredBy, left: Mapping[str, str]
) -> None:
    """Writes the config with the pipelines, atomically, with comments that say how it was found."""
    comments = [
        f"Found by `ziggurat search pipelines` ({found.method}): {found.evaluations} evaluations, {scored.how}.",
        f"{scored.metric} {scored.shown(found.score)}; of standard scaling {scored.shown(found.standard)}.",
        *(f"  {name}: cluster {found.clusters[name]}: {title(each)}" for name, each in found.pipelines.items()),
    ]
    if left:
        comments.append(f"Left as they are: {left_words(left)}")
    comments.append(f"Train it: ziggurat train {path}")
    header = "".join(f"# {line}\n" for line in comments)
    with atomic_file(path) as temporary:
        temporary.write_text(header + as_yaml(experiment.model_dump(mode="json")), encoding="utf-8")


def left_words(left: Mapping[str, str]) -> str:
    """Returns the features that were left as they are, with the reasons that are known."""
    return ", ".join(f"{name} ({why})" if why else name for name, why in left.items())


def write_found(path: Path, found: FoundPipelines) -> None:
    """Writes what was found as sealed JSON, which the page is drawn from."""
    values = {
        "method": found.method,
        "pipelines": {name: each.model_dump(mode="json") for name, each in found.pipelines.items()},
        "clusters": found.clusters,
        "score": found.score,
        "search_score": found.search_score,
        "standard": found.standard,
        "evaluations": found.evaluations,
        "seconds": found.seconds,
        "finished": found.finished,
        "episodes": [asdict(each) for each in found.episodes],
        "trials": [
            {
                "number": each.number, "origin": each.origin, "repeat": each.repeat, "scores": list(each.scores),
                "seconds": each.seconds, "reason": each.reason,
                "pipelines": {name: pipeline.model_dump(mode="json") for name, pipeline in each.pipelines.items()},
            }
            for each in found.trials
        ],
        "descriptors": found.descriptors.tolist(),
        "descriptor_names": list(found.descriptor_names),
        "coordinates": found.coordinates.tolist(),
    }  # fmt: skip
    write_sealed_json(path, values)
