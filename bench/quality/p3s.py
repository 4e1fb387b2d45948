"""Compares six ways to choose preprocessing pipelines at equal budgets, on real tables and with CTR models.

A case is a table, a downstream model and a seed, which is that of the split, the folds and the searches. Each method
cross-validates on the training rows, and returns one pipeline for each column, chosen on folds that did not propose
it, or standard scaling if nothing is ahead of it there: all methods alike. Test rows are looked at once, by the
pipelines that were returned. Cases are stored one by one and in the repository, the first seed of all tables first, so
that several sessions can finish a run.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.quality.tabular import ctr
from bench.quality.tabular.figures import Outcomes, lines, log_figures, model_figures, points
from bench.quality.tabular.labelled import ROWS, TEST_SHARE, labelled
from bench.quality.tabular.measured import BUDGETS, FOLDS, OURS, TASKS, Outcome, begin, compared, measured
from bench.quality.tabular.others import drawn
from bench.quality.tabular.sets import LOGS, TABLES
from bench.resumable_cases import ResumableCases, kept_in_repository, measure_in_processes
from ziggurat.search.pipelines.comparison_page import write_comparison
from ziggurat.search.pipelines.search import METHODS

SEEDS, PROCESSES = 5, 2
MEASURED = "version 2"
"""What the outcomes mean; raise it when a method, a pipeline or a downstream model computes something else."""
CTR = "ctr"
_QUICK = "iris"
_HEADER = ("set", "model", *METHODS, "rank of ours")
_BUDGETS = {**BUDGETS, CTR: ctr.BUDGET}

Case = tuple[str, str, int]


def run(context: Context) -> Result:
    if context.quick:
        return _quick(context)
    cases = ResumableCases(kept_in_repository("p3s"), MEASURED)
    logs = [log.name for log in LOGS if context.data is not None or not log.given]
    each_seed = [(table.name, model) for model in TASKS for table in TABLES] + [(log, CTR) for log in logs]
    wanted = [(*what, seed) for seed in range(SEEDS) for what in each_seed]
    try:
        _all(context, cases, wanted)
    except KeyboardInterrupt:
        _so_far(context, cases, wanted)
        raise
    return _result(context, _grouped(cases, wanted), cases.commits)


def _all(context: Context, cases: ResumableCases, wanted: Sequence[Case]) -> None:
    """Measures the cases that are missing, two at a time."""
    missing = [case for case in wanted if _named(case) not in cases]
    context.say(f"{len(missing)} of {len(wanted)} cases to go")
    folder = context.cache / "tabular"
    for table in TABLES if missing else ():  # fetched here, so that no two processes do
        table.load(folder, context.data)

    def say(number: int, case: str, outcome: Outcome) -> None:
        shown = ", ".join(f"{method} {each['test']:.4f}" for method, each in outcome.items())
        context.say(f"{number}/{len(missing)} {case}: {shown}")

    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(PROCESSES, spawn, initializer=begin, initargs=(os.getpid(),))
    work = {_named(case): partial(_outcome, case, folder, context.data) for case in missing}
    measure_in_processes(cases, pool, work, say)


def _outcome(case: Case, folder: Path, data: Path | None) -> Outcome:
    name, model, seed = case
    if model == CTR:
        return ctr.measured_log(name, seed, folder, data)
    return measured(name, model, seed, folder, data)


def _named(case: Case) -> str:
    name, model, seed = case
    return f"{name}, {model}, budget {_BUDGETS[model]}, seed {seed}"


def _grouped(cases: ResumableCases, wanted: Sequence[Case]) -> dict[str, dict[str, list[Any]]]:
    """Returns model -> table -> the outcome of each seed, of the cases that are measured."""
    found: dict[str, dict[str, list[Any]]] = {}
    for name, model, seed in wanted:
        if _named((name, model, seed)) in cases:
            own = found.setdefault(model, {}).setdefault(name, [])
            own.append(cases.get(_named((name, model, seed)), dict[str, Any]))
    return found


def _so_far(context: Context, cases: ResumableCases, wanted: Sequence[Case]) -> None:
    """Says what the seeds that are measured on every table give; it is no result."""
    for seeds in range(SEEDS, 0, -1):
        complete = [case for case in wanted if case[2] < seeds]
        for model in TASKS:
            own = [case for case in complete if case[1] == model]
            if all(_named(case) in cases for case in own):
                context.say(f"{model}, the first {seeds} seeds:")
                for figure in model_figures(model, _grouped(cases, own)[model]):
                    context.say(f"  {figure.name} {figure.value:.4g} {figure.unit} {figure.note}")


def _result(context: Context, groups: Mapping[str, Outcomes], commits: str) -> Result:
    figures: list[Figure] = []
    table: list[tuple[str, ...]] = []
    for model, outcomes in groups.items():
        if model == CTR:
            figures += log_figures(outcomes)
        else:
            figures += [*model_figures(model, outcomes), *points(model, outcomes)]
        table += lines(model, outcomes)
    _draw(context, {model: outcomes for model, outcomes in groups.items() if model != CTR})
    seeds = len(next(iter(next(iter(groups.values())).values())))
    notes = (
        f"{len(TABLES)} tables of at most {ROWS:,} rows, {100 * TEST_SHARE:.0f} % of them test; {FOLDS} folds; AUC, "
        "for more classes the mean of each against the rest; a rank is that of the mean over the seeds",
        "budget in cross-validated evaluations, with those that judge finalists: "
        + ", ".join(f"{model} {budget}" for model, budget in _BUDGETS.items()),
        f"{OURS}: ours; shared and per_feature: random search of one pipeline for all columns of a kind, and of one "
        "for each column; kmeans: clusters that are not learnt; tpe: Optuna's over columns; standard: no search",
        "all methods choose among their finalists on fresh folds, and fall back on standard scaling alike: equal "
        "choices tie",
        f"{CTR}: AUC and NE of a DeepFM trained on the config that a search returns; the "
        "searches judge by logistic regression, at most 6,000 rows: " + ", ".join(groups.get(CTR, {})),
        commits,
    )
    return Result(tuple(figures), 0, seeds, notes, {}, (_HEADER, *table))


def _draw(context: Context, groups: Mapping[str, Outcomes]) -> None:
    path = context.cache / "p3s.html"
    scores = {
        model: {
            name: {method: tuple(each[method]["test"] for each in own) for method in own[0]}
            for name, own in outcomes.items()
        }
        for model, outcomes in groups.items()
    }
    write_comparison(path, "p3s: preprocessing pipelines at equal budgets", scores, OURS)
    context.say(f"drawn: {path}")


def _quick(context: Context) -> Result:
    """Searches on a small table, which stands for two, with a few evaluations, and trains on a small log."""
    table = next(each for each in TABLES if each.name == _QUICK).load(context.cache, None)
    outcome = compared(table, TASKS["logistic_regression"], 4, 0)
    outcomes = {_QUICK: [outcome], f"{_QUICK} again": [outcome]}
    log = labelled("drawn", drawn(300), 300)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=context.cache, prefix="p3s-")))
        trained = ctr.compared_on_log(log, 0, 4, folder, ("cluster", "standard"), epochs=1)
        groups = {**dict.fromkeys(TASKS, outcomes), CTR: {"drawn": [trained]}}
        return _result(Context(True, None, folder, context.say), groups, "small tables: these figures mean nothing")


P3S = Benchmark(
    name="p3s",
    claim="Pipelines that are proposed for learnt clusters of columns, by a cheap look at each column and by single "
    "changes have the best mean rank at an equal budget, beat a shared pipeline found by random search on most tables, "
    "and are never much behind standard scaling.",
    targets={
        "ctr.logs_ahead_of_standard": Target(1),
    }
    | {
        f"{model}.{name}": target
        for model in TASKS
        for name, target in {
            "rank_ahead": Target(0.0),
            "won_against_shared": Target(65.0),
            "worst_against_standard": Target(-0.5),
        }.items()
    },
    depends_on=("bench/quality/p3s.py",),
    run=run,
    layout="ranks",
)
