"""Searches a pipeline for every column of a table by one of six methods, all with the same budget of evaluations."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.core.files import locked_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.sealed import read_sealed_json, write_sealed_json
from ziggurat.core.untrusted import Damage
from ziggurat.search.pipelines.campaign import Campaign, Stopped
from ziggurat.search.pipelines.choosing import judge, reserved
from ziggurat.search.pipelines.clustering.config import PolicyConfig
from ziggurat.search.pipelines.downstream import LogisticRegressionTask, MLPTask
from ziggurat.search.pipelines.evaluation import AnyPipeline, divided, key_of, mean_score
from ziggurat.search.pipelines.found import FoundPipelines, Trial
from ziggurat.search.pipelines.methods.proposals import Notes, Proposals
from ziggurat.search.pipelines.methods.simple import only_standard, per_feature, shared
from ziggurat.search.pipelines.methods.tpe import tpe
from ziggurat.search.pipelines.records import Records
from ziggurat.search.pipelines.table import Ints, Table
from ziggurat.search.pipelines.workers import Judges, Workers
from ziggurat.training.run_folder.own_folder import check_own_folder
from ziggurat.training.signals import StopRequest

MethodName = Literal["cluster", "kmeans", "shared", "per_feature", "tpe", "standard"]
METHODS: tuple[MethodName, ...] = get_args(MethodName)
SETTINGS_FILE = "pipelines.json"
_DAMAGE = Damage(RunFolderError, "restore it from a copy, or search in another folder")
_SEARCH_SHARE = 0.75
"""The share of the hours after which no pipeline is proposed: finalists are judged by a quarter of the evaluations."""
_BATCH = 8
_MOST_JOBS = 256
SEEDS = 2**32
"""Seeds are below this: those of NumPy's and scikit-learn's generators are."""


def search_pipelines(
    table: Table,
    task: LogisticRegressionTask | MLPTask,
    *,
    method: MethodName = "cluster",
    budget: int = 100,
    seed: int = 0,
    folder: Path | None = None,
    hours: float | None = None,
    jobs: int = 1,
    policy: PolicyConfig | None = None,
    progress: Progress | None = None,
) -> FoundPipelines:
    """Searches pipelines whose downstream model has the best cross-validated score, or resumes such a search.

    Every method begins with standard scaling, and returns it if nothing is ahead of it on fresh folds. A budget below 8
    has none for these: the best of the search is returned then. A search that a signal stops returns standard scaling.

    Args:
        table: the training rows; rows that test have no business here.
        task: the downstream model, its metric and the number of folds.
        method: ``cluster`` learns which columns share a pipeline; ``kmeans`` shares within clusters that are not
            learnt; ``shared`` draws one pipeline for each kind of column, ``per_feature`` one for each column; ``tpe``
            is Optuna's tree-structured Parzen estimator over columns; ``standard`` scales and nothing else.
        budget: cross-validated evaluations in all, with those of the finalists.
        seed: seeds the folds, the method and the downstream model.
        folder: where each evaluation is recorded, so that the same call resumes; default: nowhere.
        hours: after so long this call ends; the same call resumes it.
        jobs: evaluations at a time, each in a process of its own; the result is the same.
        policy: how ``cluster`` learns clusters, and how many there are for ``kmeans``, too.
        progress: where to show progress.

    Raises:
        ConfigError: an argument is not possible, or a class has fewer rows than there are folds.
        RunFolderError: the folder holds another search, or is damaged.
        EnvironmentMismatch: Optuna is not installed.
    """
    judged = judged_by_folds(table, task, seed, jobs, method, budget, hours)
    search = partial(
        search_with, table, judged, method=method, budget=budget, seed=seed, hours=hours, policy=policy,
        progress=progress,
    )  # fmt: skip
    if folder is None:
        return search(folder=None)
    with own_folder(folder):
        return search(folder=folder)


@dataclass(frozen=True, slots=True)
class Judged:
    """How pipelines are judged.

    Attributes:
        judges: makes what computes evaluations.
        rows: rows of the table on which descriptors and the screen are computed.
        settings: what says how evaluations are computed, as JSON; a folder holds searches of one kind alone.
        scores: how many scores an evaluation has.
    """

    judges: Callable[[], Judges]
    rows: Ints
    settings: dict[str, Any]
    scores: int


def judged_by_folds(
    table: Table, task: LogisticRegressionTask | MLPTask, seed: int, jobs: int, method: MethodName, budget: int,
    hours: float | None,
) -> Judged:  # fmt: skip
    """Returns the judgement by cross-validation, after a check of all arguments; see :func:`search_pipelines`.

    Raises:
        ConfigError: an argument is not possible, or a class has fewer rows than there are folds.
    """
    _check(table, task, method, budget, seed, hours, jobs)
    rows = divided(table, task.folds, seed, 0)[0][0]
    return Judged(lambda: Workers(table, task, seed, jobs), rows, {"task": task.model_dump(mode="json")}, task.folds)


@contextlib.contextmanager
def own_folder(folder: Path) -> Generator[None]:
    """Holds the folder of a search, which is marked as one from its beginning.

    Raises:
        RunFolderError: it holds something else.
        FolderInUse: another process searches in it.
    """
    check_own_folder(folder, SETTINGS_FILE, "search of pipelines")
    with locked_folder(folder, "searching"):
        if not (folder / SETTINGS_FILE).exists():
            write_sealed_json(folder / SETTINGS_FILE, {})
        yield


def search_with(
    table: Table, judged: Judged, *, method: MethodName, budget: int, seed: int, folder: Path | None,
    hours: float | None, policy: PolicyConfig | None, progress: Progress | None,
) -> FoundPipelines:  # fmt: skip
    """Searches as :func:`search_pipelines`, in a folder that is held already: see :func:`own_folder`."""
    progress, policy = progress or Silent(), policy or PolicyConfig()
    if folder is not None:
        settings = {"table": table.digest(), **judged.settings, "method": method, "seed": seed}
        settings["policy"] = policy.model_dump(mode="json")
        before = read_sealed_json(folder / SETTINGS_FILE, _DAMAGE)
        differing = [key for key, value in settings.items() if before and before.get(key) != value]
        if differing:
            raise RunFolderError(f"{folder}: holds a search with another {differing[0]}", "search in another folder")
        write_sealed_json(folder / SETTINGS_FILE, settings)
    return _searched(table, judged, method, budget, seed, folder, hours, policy, progress)


def _searched(
    table: Table, judged: Judged, method: MethodName, budget: int, seed: int, folder: Path | None,
    hours: float | None, policy: PolicyConfig, progress: Progress,
) -> FoundPipelines:  # fmt: skip
    began, notes = time.monotonic(), Notes()
    ends = [began + 3600 * hours * share for share in (_SEARCH_SHARE, 1.0)] if hours is not None else [math.inf] * 2
    records = Records(folder)
    progress.start("pipelines", budget, "evaluations")
    with StopRequest() as stop, judged.judges() as workers:
        end = ends[0]
        campaign = Campaign(
            table, workers, records, lambda: stop.signal is not None or time.monotonic() > end, progress
        )
        finished, chosen = True, None
        try:
            searching = budget - (0 if method == "standard" else reserved(budget, judged.scores))
            campaign.run(_method(method, table, judged.rows, seed, searching, policy, notes), searching)
        except Stopped:
            finished = False
            # As if the budget had been what the time allowed.
            most = max(2, reserved(len(campaign.trials) * 4 // 3, judged.scores))
            budget = min(budget, len(campaign.trials) + most)
        end = ends[1]
        if stop.signal is None and campaign.trials:
            chosen, is_judged = judge(campaign, budget) if method != "standard" else (campaign.trials[0], True)
            finished = finished and is_judged
    if not campaign.trials:
        raise ConfigError("the search was stopped before its first evaluation", "give it more time, or run it again")
    chosen = chosen or campaign.trials[0]
    progress.finish(f"score {_score(campaign.trials, chosen.pipelines):.5g}")
    if not chosen.scores:
        raise ConfigError(f"{table.name}: no pipeline could be evaluated: {campaign.trials[0].reason}")
    return FoundPipelines(
        method=method, pipelines=dict(chosen.pipelines), clusters=_clusters(table, chosen.pipelines, notes),
        score=_score(campaign.trials, chosen.pipelines), search_score=chosen.score,
        standard=_score(campaign.trials, campaign.trials[0].pipelines), evaluations=len(campaign.trials),
        seconds=time.monotonic() - began, trials=tuple(campaign.trials), episodes=tuple(notes.episodes),
        descriptors=notes.descriptors, descriptor_names=notes.descriptor_names, coordinates=notes.coordinates,
        signal=stop.signal, finished=finished,
    )  # fmt: skip


def _method(
    method: MethodName, table: Table, rows: Ints, seed: int, budget: int, policy: PolicyConfig, notes: Notes
) -> Proposals:
    match method:
        case "standard":
            return only_standard(table)
        case "shared":
            return shared(table, seed, _BATCH)
        case "per_feature":
            return per_feature(table, seed, _BATCH)
        case "kmeans":
            from ziggurat.search.pipelines.methods.kmeans import kmeans

            return kmeans(table, rows, seed, _BATCH, policy.clusters, notes)
        case "tpe":
            return tpe(table, seed)
        case "cluster":
            from ziggurat.search.pipelines.methods.cluster import cluster

            return cluster(table, rows, seed, budget, policy, notes)


def _score(trials: list[Trial], pipelines: dict[str, AnyPipeline]) -> float:
    """Returns the mean score of an assignment over its fresh folds; over those of the search if it has no others."""
    key = key_of(pipelines, 0)
    same = [each for each in trials if each.scores and key_of(each.pipelines, 0) == key]
    fresh = [score for each in same if each.repeat for score in each.scores]
    return mean_score(fresh or [score for each in same for score in each.scores])


def _clusters(table: Table, pipelines: dict[str, AnyPipeline], notes: Notes) -> dict[str, int]:
    """Returns the clusters of the method; else columns of equal pipelines are one."""
    if notes.clusters:
        return dict(notes.clusters)
    numbers: dict[Any, int] = {}
    return {each.name: numbers.setdefault(pipelines[each.name], len(numbers)) for each in table.columns}


def check_arguments(method: str, budget: int, seed: int, hours: float | None, jobs: int) -> None:
    """Raises ConfigError for an argument of a search that is not possible, whatever judges."""
    if method not in METHODS:
        raise ConfigError(f"method: received {method!r}", f"give one of {', '.join(METHODS)}")
    for name, value, most in (("budget", budget, None), ("jobs", jobs, _MOST_JOBS)):
        if value < 1 or (most is not None and value > most):
            raise ConfigError(f"{name}: received {value}", f"give 1 {'or more' if most is None else f'to {most}'}")
    if not 0 <= seed < SEEDS:
        raise ConfigError(f"seed: received {seed}", f"give 0 to {SEEDS - 1:,}")
    if hours is not None and not hours > 0:
        raise ConfigError(f"hours: received {hours}", "give more than 0, or leave it out")


def _check(table: Table, task: Any, method: str, budget: int, seed: int, hours: float | None, jobs: int) -> None:
    check_arguments(method, budget, seed, hours, jobs)
    counts = [int((table.labels == each).sum()) for each in range(len(table.classes))]
    if max(counts) < task.folds:
        raise ConfigError(
            f"{table.name}: the largest class has {max(counts)} rows, which is fewer than {task.folds} folds",
            "give more rows, or fewer folds",
        )
