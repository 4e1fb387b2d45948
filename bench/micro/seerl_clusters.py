"""Compares snapshots of a clustering policy that decide together with the last policy alone, at equal evaluations.

The policy is that of ``ziggurat search pipelines``, which draws the cluster of each column and is rewarded by the best
cross-validated score of the pipelines that the clusters got. ``last`` has a constant rate, and its last policy decides,
as the product does by default. The others have the cyclical rate. Of ``cyclical_last`` the last policy decides alone,
which tells what the rate gains from what an ensemble gains. Of the others the snapshots at the ends of the cycles
decide together by one of the rules for discrete actions: ``vote``, ``add`` or ``multiply``.

The first task has a known optimum: columns of planted groups, where an assignment's reward is the share of pairs of
columns that it puts together or apart as the groups do. The others are real tables with a logistic regression. A lead
is the contestant's figure less that of ``last``, seed by seed, or for ``over_rate`` less that of ``cyclical_last``.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.leads import lead
from bench.provenance import digest
from bench.quality.tabular.labelled import split
from bench.quality.tabular.measured import TASKS, begin, held_out
from bench.quality.tabular.sets import TABLES
from bench.resumable_cases import ResumableCases, measure_in_processes
from ziggurat.policies.discrete_rules import DiscreteRule
from ziggurat.search.pipelines.clustering.config import PolicyConfig
from ziggurat.search.pipelines.clustering.policy import ClusterPolicy
from ziggurat.search.pipelines.search import search_pipelines
from ziggurat.search.pipelines.table import Ints

CYCLES = 4
LAST, CYCLICAL = "last", "cyclical_last"
ENSEMBLES: tuple[DiscreteRule, ...] = get_args(DiscreteRule)
POLICIES: Mapping[str, PolicyConfig] = {
    LAST: PolicyConfig(),
    CYCLICAL: PolicyConfig(cycles=CYCLES, members=1),
    **{rule: PolicyConfig(cycles=CYCLES, rule=rule) for rule in ENSEMBLES},
}
COMPARED = (("lead", LAST, (CYCLICAL, *ENSEMBLES)), ("over_rate", CYCLICAL, ENSEMBLES))
"""Leads by their names, before whom, and whose."""
SEEDS, QUICK_SEEDS = 10, 1
BUDGET, QUICK_BUDGET = 60, 12
PLANTED = "planted"
GROUPS, COLUMNS, EPISODES, QUICK_EPISODES = 3, 24, 60, 8
NOISE = 0.1
SETS = ("breast_cancer", "wine", "iris", "german", "heart", "pima", "vehicle", "sonar")
"""Small tables of the benchmark ``p3s``."""

Found = dict[str, dict[str, float]]
"""Contestant -> its figures."""


def planted(seed: int, episodes: int) -> Found:
    """Returns, of each contestant, how well its likeliest clusters are the planted ones after so many rewards.

    Descriptors tell the groups apart by halves of a standard deviation, so that rewards have to decide, and rewards
    have noise.
    """
    draw = np.random.default_rng([seed, 61])
    groups = draw.permutation(np.arange(COLUMNS) % GROUPS)
    descriptors = draw.normal(size=(COLUMNS, 6)) + 0.5 * draw.normal(size=(GROUPS, 6))[groups]
    found: Found = {}
    for name, config in POLICIES.items():
        policy = ClusterPolicy(descriptors, config.model_copy(update={"clusters": GROUPS}), seed, episodes)
        noise = np.random.default_rng([seed, 62])
        for _ in range(episodes):
            assignment = policy.draw()
            policy.learn(assignment, agreement(assignment, groups) + NOISE * float(noise.normal()))
        found[name] = {"agreement": agreement(policy.likeliest(), groups)}
    return found


def agreement(ours: Ints, theirs: Ints) -> float:
    """Returns the share of pairs that both put together or both put apart (the Rand index)."""
    upper = np.triu_indices(len(ours), 1)
    pairs = [(each[:, None] == each[None, :])[upper] for each in (ours, theirs)]
    return float((pairs[0] == pairs[1]).mean())


def searched(name: str, seed: int, budget: int, folder: Path, data: Path | None) -> Found:
    """Returns, of each contestant, the scores of the pipelines that its search returns."""
    table = next(each for each in TABLES if each.name == name).load(folder, data)
    train, test = split(table, seed)
    task, found = TASKS["logistic_regression"], Found()
    for contestant, policy in POLICIES.items():
        outcome = search_pipelines(train, task, budget=budget, seed=seed, policy=policy)
        if outcome.signal is not None:
            raise KeyboardInterrupt
        scores = held_out(outcome.pipelines, task, train, test, seed)
        found[contestant] = {"searched": outcome.search_score, "fresh": outcome.score, "test": scores["test"]}
    return found


def run(context: Context) -> Result:
    seeds, budget = (QUICK_SEEDS, QUICK_BUDGET) if context.quick else (SEEDS, BUDGET)
    episodes = QUICK_EPISODES if context.quick else EPISODES
    sets = ("iris",) if context.quick else SETS
    folder = context.cache / "tabular"
    for table in TABLES:
        if table.name in sets:
            table.load(folder, context.data)  # fetched here, so that no two processes do
    with tempfile.TemporaryDirectory(dir=context.cache) as scratch:
        path = (Path(scratch) if context.quick else context.cache) / "seerl_clusters.jsonl"
        meaning = "quick" if context.quick else digest(ROOT, SEERL_CLUSTERS.depends_on)
        resumable = ResumableCases(path, meaning)
        for seed in range(seeds):
            resumable.get(f"{PLANTED} {seed}", partial(planted, seed, episodes))
        work = {
            f"{name} {seed}": partial(searched, name, seed, budget, folder, context.data)
            for seed in range(seeds)
            for name in sets
        }
        missing = {name: each for name, each in work.items() if name not in resumable}
        if context.quick:
            for name, measure in missing.items():
                resumable.get(name, measure)
        elif missing:
            spawn = multiprocessing.get_context("spawn")
            processes = min(len(missing), len(os.sched_getaffinity(0)))
            pool = ProcessPoolExecutor(processes, spawn, initializer=begin, initargs=(os.getpid(),))
            measure_in_processes(
                resumable, pool, missing, lambda number, name, _: context.say(f"{number}/{len(missing)} {name}")
            )
        found = {name: _of_seeds(resumable, name, seeds) for name in (PLANTED, *sets)}
        if not context.quick:
            resumable.forget()
    return Result(tuple(_figures(found)), 0, seeds, _notes(seeds, budget, episodes), cases=_cases(found))


def _of_seeds(resumable: ResumableCases, name: str, seeds: int) -> list[Found]:
    return [resumable.get(f"{name} {seed}", dict[str, dict[str, float]]) for seed in range(seeds)]


def _figures(found: Mapping[str, Sequence[Found]]) -> list[Figure]:
    figures = [
        Figure(f"{PLANTED} {name}.agreement", "", _samples(found[PLANTED], name, "agreement"), statistic="mean")
        for name in POLICIES
    ]
    for kind, behind, names in COMPARED:
        for name in names:
            samples = _lead(found[PLANTED], name, behind, "agreement")
            figures.append(lead(f"{PLANTED} {name}.{kind}", "", samples, f"before {behind}, a seed each"))
    real = [each for name, each in found.items() if name != PLANTED]
    for figure in ("searched", "fresh", "test"):
        for kind, behind, names in COMPARED:
            for name in names:
                leads = [_lead(each, name, behind, figure) for each in real]
                by_seed = tuple(float(np.mean(each)) for each in zip(*leads, strict=True))
                note = f"before {behind}, the mean over the tables, a seed each"
                figures.append(lead(f"tables {name}.{figure}_{kind}", "", by_seed, note))
    return figures


def _samples(seeds: Sequence[Found], name: str, figure: str) -> tuple[float, ...]:
    return tuple(each[name][figure] for each in seeds)


def _lead(seeds: Sequence[Found], name: str, behind: str, figure: str) -> tuple[float, ...]:
    return tuple(each[name][figure] - each[behind][figure] for each in seeds)


def _notes(seeds: int, budget: int, episodes: int) -> tuple[str, ...]:
    return (
        f"{seeds} seeds; {CYCLES} cycles; planted: {COLUMNS} columns in {GROUPS} groups, {episodes} episodes, rewards "
        f"with noise of {NOISE:g}; tables: {budget} evaluations of each search, logistic regression",
        "agreement: Rand index of the likeliest clusters and the planted groups; searched: cross-validated on the "
        "folds of the search; fresh: on others; test: on rows that no search saw",
    )


def _cases(found: Mapping[str, Sequence[Found]]) -> tuple[tuple[str, ...], ...]:
    rows: list[tuple[str, ...]] = [("task", "figure", *POLICIES)]
    for task, seeds in found.items():
        for figure in ("agreement",) if task == PLANTED else ("searched", "fresh", "test"):
            means = (float(np.mean(_samples(seeds, name, figure))) for name in POLICIES)
            rows.append((task, figure, *(f"{each:.4f}" for each in means)))
    return tuple(rows)


SEERL_CLUSTERS = Benchmark(
    name="seerl_clusters",
    claim="Snapshots of one training of the clustering policy decide better together than the last policy, at equal "
    "evaluations.",
    targets={
        f"{PLANTED} vote.lead": Target(0.0, "more than"),
        "tables vote.fresh_lead": Target(0.0, "more than"),
        "tables vote.test_lead": Target(0.0, "more than"),
    },
    depends_on=("bench/micro/seerl_clusters.py", "bench/quality/tabular"),
    run=run,
)
