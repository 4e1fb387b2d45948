"""Compares an ensemble of the snapshots of one training run with single policies and other ensembles at equal samples.

For each task and seed three trainings make the same number of steps: one in cycles, one with a constant rate, and three
independent ones with a third of the steps each. A fourth one makes as many as the first and the selection of its
members take together. Of these come the contestants:

- ``ensemble``: members chosen from the snapshots of the cycles (SEERL);
- ``last`` and ``best``: the last of these snapshots, and the best by the selection's episodes;
- ``plain``: the last policy of the constant rate;
- ``plain_snapshots``: members chosen from snapshots of the constant rate at the same steps, in the same way;
- ``independent``: the three independent policies together;
- ``annealed``: the policy at the end of the fourth training, whose rate falls once along a cosine. It has what the
  selection's episodes cost as samples to learn from.

Discrete actions of Atari games are drawn from the probabilities, as the product does, of all contestants alike. Scores
are mean returns in episodes that chose nothing, others for each seed, normalised by task: random actions have 0, the
best of all contestants and seeds has 1. Aggregates are interquartile means over all tasks and seeds with intervals of a
stratified bootstrap, and performance profiles (Agarwal et al., arXiv 2108.13264). The settings of PPO are common ones
and were not tuned for any contestant.
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
from bench.quality.seerl_tasks import (
    CYCLES,
    DIVERSITY,
    MEMBERS,
    METHODS,
    QUICK,
    TASKS,
    WEIGHTS,
    Episodes,
    Outcome,
    Task,
    discard,
    folder_of,
    trained,
)
from bench.resumable_cases import ResumableCases, kept_in_repository, measure_in_processes
from ziggurat.policies.scores import interquartile_interval, paired_difference, performance_profile

SEEDS, PROCESSES = 5, 2
EPISODES, QUICK_EPISODES = Episodes(choose=10, judge=20), Episodes(choose=3, judge=3)
MEASURED = "version 3"
"""What the outcomes of a training mean; outcomes of another version are measured again."""
CONTESTANTS = ("ensemble", "last", "best", "plain", "plain_snapshots", "independent", "annealed")
CHOOSING = ("ensemble", "plain_snapshots", "independent")
"""Contestants that choose in the selection's episodes, in the order of the trainings."""
LEVELS = (0.25, 0.5, 0.75, 0.9)
"""Scores at which the performance profiles are tabulated."""

MIDDLE = 10.0
"""The λ that is neither little nor much: the diversity of three members of six is then worth some λ · 3·2 / (6·5) = 2,
and the sums of their standardised returns differ by as much."""

Found = Mapping[tuple[str, int, str], Outcome]


def run(context: Context) -> Result:
    tasks, seeds = (QUICK, 1) if context.quick else (TASKS, SEEDS)
    episodes = QUICK_EPISODES if context.quick else EPISODES
    names = [task.name for task in tasks]
    with ExitStack() as stack:
        folder = context.cache / f"seerl-{MEASURED.replace(' ', '-')}"  # trainings that go on have these settings
        if context.quick:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=context.cache, prefix="seerl-")))
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / "cases.jsonl" if context.quick else kept_in_repository("seerl")
        cases = _Cases(context, ResumableCases(kept, MEASURED), folder, tasks, episodes)
        for seed in range(seeds):
            cases.measure([(name, seed, method) for name in names for method in METHODS if method != "annealed"])
            cases.measure([(name, seed, "annealed") for name in names])
        found = cases.found
        scores, sweep, dots = _scores(found, names, seeds, may_be_random=context.quick)
        if not context.quick:
            drawn = {
                name: scores[name] for name in CONTESTANTS if name != "plain_snapshots"
            }  # no more can be told apart
            write(context.cache / "seerl.html", drawn, sweep, dots)
            context.say(f"drawn: {context.cache / 'seerl.html'}")
        figures = [*_figures(scores, sweep, names), _subsets(found), *_returns(found, names, seeds)]
    notes = (
        f"PPO; {CYCLES} cycles, {MEMBERS} members, of λ = {', '.join(f'{each:g}' for each in DIVERSITY)} the best, δ = "
        f"half the range of the snapshots' returns; {seeds} seeds; {episodes.choose} episodes choose, {episodes.judge} "
        "others judge, those of each seed on their own",
        "Atari: 128 bytes of memory, four stacked; every action repeated 4 times; sticky actions (0.25); rewards "
        "clipped in training; a lost life ends no episode; actions drawn from the probabilities. MuJoCo: observations "
        "and rewards standardised by running statistics",
        *(f"{task.name}: {task.env}, {task.steps:,} steps" for task in tasks),
        f"all trainings begin new episodes after each {CYCLES}th of the steps of a whole one",
        "the selection's episodes train nothing and are not counted as samples, except for annealed, whose training "
        "has as many steps more; their steps are in the table, of the contestants that choose members or a rule in "
        "them. Last and plain choose nothing",
        "the sweep admits every snapshot, so that λ alone decides who takes part",
        cases.commits,
    )
    header = (
        "task",
        "seed",
        *CONTESTANTS,
        "random",
        "rule",
        "members",
        *(f"steps of {each}" for each in METHODS),
        *(f"selection of {each}" for each in CHOOSING),
    )
    return Result(tuple(figures), 0, seeds, notes, {}, (header, *_lines(found, names, seeds)))


def contestants(found: Found, task: str, seed: int) -> dict[str, float]:
    """Returns contestant -> its mean return."""
    cyclical, plain, independent, annealed = (found[task, seed, method] for method in METHODS)
    return {
        "ensemble": cyclical["ensemble"],
        "last": cyclical["last"],
        "best": cyclical["best"],
        "plain": plain["last"],
        "plain_snapshots": plain["ensemble"],
        "independent": independent["ensemble"],
        "annealed": annealed["last"],
    }


class _Cases:
    """The outcomes of trainings, stored one by one.

    Attributes:
        found: the outcomes so far, by task, seed and method.
    """

    def __init__(
        self, context: Context, resumable: ResumableCases, folder: Path, tasks: Sequence[Task], episodes: Episodes
    ) -> None:
        self._context, self._resumable, self._folder, self._episodes = context, resumable, folder, episodes
        self._tasks = {task.name: task for task in tasks}
        self.found: dict[tuple[str, int, str], Outcome] = {}

    @property
    def commits(self) -> str:
        return self._resumable.commits

    def measure(self, cases: Sequence[tuple[str, int, str]]) -> None:
        """Reads what is stored and trains what is missing, two at a time."""
        named = {self._name(*case): case for case in cases}
        missing = {name: case for name, case in named.items() if name not in self._resumable}
        for name in named.keys() - missing.keys():  # it was stored, and the process ended before this
            discard(folder_of(self._folder, *named[name]))
        if missing:
            self._context.say(f"seed {cases[0][1]}: {len(missing)} of {len(cases)} trainings to go")
        if self._context.quick:
            for name, case in missing.items():
                self._resumable.get(name, self._training(case))
                discard(folder_of(self._folder, *case))
        else:

            def say(number: int, name: str, outcome: Outcome) -> None:
                self._context.say(f"{number}/{len(missing)} {name}: {outcome.get('ensemble', outcome.get('last')):.4g}")
                discard(folder_of(self._folder, *missing[name]))

            pool = ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("forkserver"))
            work = {name: self._training(case) for name, case in missing.items()}
            measure_in_processes(self._resumable, pool, work, say)
        for name, case in named.items():
            self.found[case] = self._resumable.get(name, dict[str, Any])

    def _name(self, task: str, seed: int, method: str) -> str:
        steps = self._steps(task, seed, method)
        parts = (
            task,
            seed,
            method,
            self._tasks[task].digest(seed, self._episodes),
            *(() if steps is None else (steps,)),
        )
        return " ".join(map(str, parts))

    def _training(self, case: tuple[str, int, str]) -> partial[Outcome]:
        return partial(trained, self._folder, *case, self._episodes, self._context.quick, self._steps(*case))

    def _steps(self, task: str, seed: int, method: str) -> int | None:
        """Returns the steps of a training that depend on how many another one took."""
        if method != "annealed":
            return None
        cyclical = self.found[task, seed, "seerl"]
        return cyclical["steps"] + cyclical["selection"]


def _scores(
    found: Found, tasks: Sequence[str], seeds: int, *, may_be_random: bool = False
) -> tuple[dict[str, Floats], dict[float, Floats], list[tuple[float, float]]]:
    """Returns normalised scores (seeds, tasks) of each contestant and of each λ, and points of score over diversity.

    Args:
        found: the outcomes.
        tasks, seeds: whose.
        may_be_random: for smoke runs; scores of a task where no policy is better than random actions are returns then.

    Raises:
        ValueError: no policy is better than random actions in a task.
    """
    scores = {name: np.zeros((seeds, len(tasks))) for name in CONTESTANTS}
    sweep = {weight: np.zeros((seeds, len(tasks))) for weight in WEIGHTS}
    dots: list[tuple[float, float]] = []
    for column, task in enumerate(tasks):
        low = float(np.mean([found[task, seed, "seerl"]["random"] for seed in range(seeds)]))
        span = max(max(contestants(found, task, seed).values()) for seed in range(seeds)) - low
        if span <= 0:
            if not may_be_random:
                raise ValueError(f"{task}: no policy is better than random actions, which bring {low:g}: no scores")
            span = 1.0
        for seed in range(seeds):
            for name, mean in contestants(found, task, seed).items():
                scores[name][seed, column] = (mean - low) / span
            swept = found[task, seed, "seerl"]["sweep"]
            for each in swept:
                sweep[each["weight"]][seed, column] = (each["mean"] - low) / span
            subsets = {(each["divergence"], each["mean"]) for each in swept}
            if len(subsets) > 1:
                farthest, middle = max(each[0] for each in subsets), float(np.mean([each[1] for each in subsets]))
                dots += [(divergence / farthest, (mean - middle) / span) for divergence, mean in subsets]
    return scores, sweep, sorted(dots)


def _figures(scores: Mapping[str, Floats], sweep: Mapping[float, Floats], tasks: Sequence[str]) -> list[Figure]:
    found = [_middle(name, each) for name, each in scores.items()]
    for name in CONTESTANTS[1:]:
        found += _ahead(f"ahead_of_{name}", scores["ensemble"], scores[name], f"of the ensemble minus that of {name}")
        found.append(_tasks_not_behind(name, scores["ensemble"] - scores[name], tasks))
    for name, each in scores.items():
        shares = performance_profile(each, np.array(LEVELS))
        for level, share in zip(LEVELS, shares.tolist(), strict=True):
            found.append(Figure(f"{name}.above_{level:g}", "%", (100 * share,), "of all runs; performance profile"))
    found += [_middle(f"lambda_{weight:g}", each) for weight, each in sweep.items()]
    for weight in (WEIGHTS[0], WEIGHTS[-1]):
        name, note = f"lambda_{MIDDLE:g}.ahead_of_{weight:g}", f"of λ = {MIDDLE:g} minus that of λ = {weight:g}"
        found += _ahead(name, sweep[MIDDLE], sweep[weight], note)
    return found


def _middle(name: str, scores: Floats) -> Figure:
    middle, low, high = interquartile_interval(scores)
    return Figure(f"{name}.iqm", "", (middle,), f"95 % interval {low:.3f} to {high:.3f}")


def _ahead(name: str, mine: Floats, theirs: Floats, note: str) -> list[Figure]:
    """Returns the lead of an interquartile mean before another one, and the lower end of its interval."""
    ahead, low, high = paired_difference(mine, theirs)
    full = f"interquartile mean {note}; 95 % interval {low:.3f} to {high:.3f}"
    return [Figure(name, "", (ahead,), full), Figure(f"{name}.low", "", (low,), "lower end of that interval")]


def _tasks_not_behind(name: str, lead: Floats, tasks: Sequence[str]) -> Figure:
    """Returns on how many tasks the ensemble is not behind, and on which it is ahead, level or behind."""
    means = dict(zip(tasks, lead.mean(0).tolist(), strict=True))
    sides = (
        ("ahead", [task for task, mean in means.items() if mean > 0]),
        ("level", [task for task, mean in means.items() if mean == 0]),
        ("behind", [task for task, mean in means.items() if mean < 0]),
    )
    listed = "; ".join(f"{side}: {', '.join(names)}" for side, names in sides if names)
    samples = tuple(100.0 * (mean >= 0) for mean in means.values())
    return Figure(
        f"tasks_not_behind_{name}", "%", samples, f"of the tasks, by the mean over the seeds. {listed}", "mean"
    )


def _subsets(found: Found) -> Figure:
    """Returns how many different ensembles the values of λ take in a run."""
    runs = (outcome["sweep"] for (_, _, method), outcome in found.items() if method == "seerl")
    samples = tuple(float(len({tuple(each["members"]) for each in swept})) for swept in runs)
    return Figure(
        "sweep.subsets", "", samples, f"different ensembles of {len(WEIGHTS)} values of λ, a run each", "mean"
    )


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
            outcomes = [found[task, seed, method] for method in METHODS]
            chose = [each["selection"] for each in outcomes if "selection" in each]
            steps = (f"{each:,}" for each in (*(each["steps"] for each in outcomes), *chose))
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
        "ahead_of_plain.low": Target(0.0, "more than"),
        **{f"lambda_{MIDDLE:g}.ahead_of_{weight:g}": Target(0.0, "more than") for weight in (WEIGHTS[0], WEIGHTS[-1])},
    },
    depends_on=("bench/quality/seerl.py",),
    run=run,
    missing=_missing,
)
