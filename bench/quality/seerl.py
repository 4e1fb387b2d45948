"""Compares an ensemble of the snapshots of one training run with single policies and other ensembles at equal samples.

For each task and seed three trainings make the same number of steps: one in cycles, one with a constant rate, and three
independent ones with a third of the steps each. Of these come the contestants:

- ``ensemble``: members chosen from the snapshots of the cycles (SEERL);
- ``last`` and ``best``: the last of these snapshots, and the best by the selection's episodes;
- ``plain``: the last policy of the constant rate;
- ``plain_snapshots``: members chosen from snapshots of the constant rate at the same steps, in the same way;
- ``independent``: the three independent policies together.

Scores are mean returns in episodes that chose nothing, normalised by task: random actions have 0, the best of all
contestants and seeds has 1. Aggregates are interquartile means over all tasks and seeds with intervals of a stratified
bootstrap, and performance profiles (Agarwal et al., arXiv 2108.13264). The settings of PPO are common ones and were not
tuned for any contestant.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.quality.seerl_page import Floats, write
from bench.quality.seerl_tasks import CYCLES, MEMBERS, METHODS, QUICK, TASKS, WEIGHTS, Outcome, trained
from bench.resumable_cases import ResumableCases, kept_in_repository, measure_in_processes
from ziggurat.policies.scores import interquartile_interval, paired_difference, performance_profile

SEEDS, EPISODES, PROCESSES = 5, 20, 2
MEASURED = "version 2"
"""What the outcomes of a training mean; outcomes of another version are measured again."""
CONTESTANTS = ("ensemble", "last", "best", "plain", "plain_snapshots", "independent")
CHOOSING = ("ensemble", "plain_snapshots", "independent")
"""Contestants that choose in the selection's episodes, in the order of the trainings."""
LEVELS = (0.25, 0.5, 0.75, 0.9)
"""Scores at which the performance profiles are tabulated."""

Found = Mapping[tuple[str, int, str], Outcome]


def run(context: Context) -> Result:
    tasks, seeds, episodes = (QUICK, 1, 3) if context.quick else (TASKS, SEEDS, EPISODES)
    names = [task.name for task in tasks]
    with ExitStack() as stack:
        folder = context.cache / f"seerl-{MEASURED.replace(' ', '-')}"  # trainings that go on have these settings
        if context.quick:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=context.cache, prefix="seerl-")))
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "cases.jsonl" if context.quick else kept_in_repository("seerl")
        resumable = ResumableCases(kept, MEASURED)
        cases = [(task, seed, method) for seed in range(seeds) for task in names for method in METHODS]
        found = _all(context, resumable, folder, cases, episodes)
        scores, sweep, dots = _scores(found, names, seeds)
        if not context.quick:
            write(context.cache / "seerl.html", scores, sweep, dots)
            context.say(f"drawn: {context.cache / 'seerl.html'}")
        figures = [*_figures(scores, sweep, names), *_returns(found, names, seeds)]
    notes = (
        f"PPO; {CYCLES} cycles, {MEMBERS} members, λ = 1, δ = half the range of the snapshots' returns; {seeds} seeds; "
        f"{episodes} episodes choose, {episodes} others judge",
        "Atari: 128 bytes of memory, four stacked; every action repeated 4 times; sticky actions (0.25); rewards "
        "clipped in training; a lost life ends no episode. MuJoCo: observations and rewards standardised by running "
        "statistics",
        *(f"{task.name}: {task.env}, {task.steps:,} steps" for task in tasks),
        f"all trainings begin new episodes after each {CYCLES}th of the steps of a whole one",
        "the selection's episodes train nothing and are not counted as samples; their steps are in the table, of the "
        "contestants that choose members or a rule in them. Last and plain choose nothing",
        resumable.commits,
    )
    header = (
        "task",
        "seed",
        *CONTESTANTS,
        "random",
        "rule",
        "members",
        "steps",
        *(f"selection of {each}" for each in CHOOSING),
    )
    return Result(tuple(figures), 0, seeds, notes, {}, (header, *_lines(found, names, seeds)))


def contestants(found: Found, task: str, seed: int) -> dict[str, float]:
    """Returns contestant -> its mean return."""
    cyclical, plain, independent = (found[task, seed, method] for method in METHODS)
    return {
        "ensemble": cyclical["ensemble"],
        "last": cyclical["last"],
        "best": cyclical["best"],
        "plain": plain["last"],
        "plain_snapshots": plain["ensemble"],
        "independent": independent["ensemble"],
    }


def _all(
    context: Context, resumable: ResumableCases, folder: Path, cases: Sequence[tuple[str, int, str]], episodes: int
) -> dict[tuple[str, int, str], Outcome]:
    """Returns the outcome of each case; missing ones are trained, two at a time."""
    named = {case: " ".join(map(str, case)) for case in cases}
    missing = [case for case, name in named.items() if name not in resumable]
    context.say(f"{len(missing)} of {len(cases)} trainings to go")
    if context.quick:
        for case in missing:
            outcome = trained(folder, *case, episodes, True)
            resumable.get(named[case], lambda outcome=outcome: outcome)
    else:

        def say(number: int, name: str, outcome: Outcome) -> None:
            context.say(f"{number}/{len(missing)} {name}: {outcome['ensemble']:.4g}")

        pool = ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("forkserver"))
        work = {named[case]: partial(trained, folder, *case, episodes, False) for case in missing}
        measure_in_processes(resumable, pool, work, say)
    return {case: resumable.get(name, dict[str, Any]) for case, name in named.items()}


def _scores(
    found: Found, tasks: Sequence[str], seeds: int
) -> tuple[dict[str, Floats], dict[float, Floats], list[tuple[float, float]]]:
    """Returns normalised scores (seeds, tasks) of each contestant and of each λ, and points of score over diversity."""
    scores = {name: np.zeros((seeds, len(tasks))) for name in CONTESTANTS}
    sweep = {weight: np.zeros((seeds, len(tasks))) for weight in WEIGHTS}
    dots: list[tuple[float, float]] = []
    for column, task in enumerate(tasks):
        low = float(np.mean([found[task, seed, "seerl"]["random"] for seed in range(seeds)]))
        high = max(max(contestants(found, task, seed).values()) for seed in range(seeds))
        span = max(high - low, 1e-9)
        for seed in range(seeds):
            for name, mean in contestants(found, task, seed).items():
                scores[name][seed, column] = (mean - low) / span
            swept = found[task, seed, "seerl"]["sweep"]
            farthest = max(each["divergence"] for each in swept) or 1.0
            most = max(each["mean"] for each in swept)
            for each in swept:
                sweep[each["weight"]][seed, column] = (each["mean"] - low) / span
            for divergence, mean in {(each["divergence"], each["mean"]) for each in swept}:
                dots.append((divergence / farthest, (mean - most) / span))
    return scores, sweep, sorted(dots)


def _figures(scores: Mapping[str, Floats], sweep: Mapping[float, Floats], tasks: Sequence[str]) -> list[Figure]:
    found: list[Figure] = []
    for name, each in scores.items():
        middle, low, high = interquartile_interval(each)
        found.append(Figure(f"{name}.iqm", "", (middle,), f"95 % interval {low:.3f} to {high:.3f}"))
    for name in CONTESTANTS[1:]:
        ahead, low, high = paired_difference(scores["ensemble"], scores[name])
        note = f"interquartile mean of the ensemble minus that of {name}; 95 % interval {low:.3f} to {high:.3f}"
        found.append(Figure(f"ahead_of_{name}", "", (ahead,), note))
        found.append(Figure(f"ahead_of_{name}.low", "", (low,), "lower end of that interval"))
        level = tuple(100.0 * (scores["ensemble"][:, k].mean() >= scores[name][:, k].mean()) for k in range(len(tasks)))
        found.append(Figure(f"tasks_not_behind_{name}", "%", level, "of the tasks, by the mean over the seeds", "mean"))
    for name, each in scores.items():
        shares = performance_profile(each, np.array(LEVELS))
        for level, share in zip(LEVELS, shares.tolist(), strict=True):
            found.append(Figure(f"{name}.above_{level:g}", "%", (100 * share,), "of all runs; performance profile"))
    for weight, each in sweep.items():
        middle, low, high = interquartile_interval(each)
        found.append(Figure(f"lambda_{weight:g}.iqm", "", (middle,), f"95 % interval {low:.3f} to {high:.3f}"))
    return found


def _returns(found: Found, tasks: Sequence[str], seeds: int) -> list[Figure]:
    return [
        Figure(
            f"{task}.{name}", "", tuple(contestants(found, task, seed)[name] for seed in range(seeds)), "return", "mean"
        )
        for task in tasks
        for name in CONTESTANTS
    ]


def _lines(found: Found, tasks: Sequence[str], seeds: int) -> list[tuple[str, ...]]:
    lines: list[tuple[str, ...]] = []
    for task in tasks:
        for seed in range(seeds):
            own = found[task, seed, "seerl"]
            means = contestants(found, task, seed)
            shown = (f"{each:.4g}" for each in (*means.values(), own["random"]))
            steps = (
                f"{each:,}" for each in (own["steps"], *(found[task, seed, method]["selection"] for method in METHODS))
            )
            lines.append((task, str(seed), *shown, own["rule"], " ".join(map(str, own["members"])), *steps))
    return lines


def _missing() -> str | None:
    absent = [name for name in ("stable_baselines3", "gymnasium", "ale_py", "mujoco") if find_spec(name) is None]
    return f"{', '.join(absent)}: pip install 'ziggurat[rl]'" if absent else None


SEERL = Benchmark(
    name="seerl",
    claim="An ensemble of snapshots of one training run beats plain training at equal samples.",
    targets={
        "tasks_not_behind_plain": Target(66.6),
        "ahead_of_plain.low": Target(0.0),
    },
    depends_on=("bench/quality/seerl.py",),
    run=run,
    missing=_missing,
)
