"""Measures the steps and seconds that optimizers need to reach AdamW's best validation log-loss.

Every optimizer is tuned on the same settings (learning rate, betas, weight decay) with seed 0. For AdamW the setting
with the lowest validation loss is selected. That loss is the goal of the others. For each of them the setting that
reaches the goal in the fewest steps is selected, or, if none reaches it, the setting with the lowest loss.

Then all optimizers are trained with three other seeds. For each seed, AdamW's best loss is the goal, and the steps to
reach it are compared with AdamW's steps. If an optimizer never reaches the goal, all steps count, and the note says so.
As a best loss may be a single lucky evaluation, the steps to a loss ten percent above it are reported too.
"""

from __future__ import annotations

import math
import multiprocessing
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.provenance import digest
from bench.resumable_cases import ResumableCases

if TYPE_CHECKING:
    from bench.quality.optimizer_trial import Curve

TRIALS, SEEDS = 6, (1, 2, 3)
JUDGED_TASKS = ("drawn", "drawn_wukong", "frappe", "frappe_once", "frappe_dlrm", "frappe_dlrm_once", "digits")
BASELINE = "adamw"
PROCESSES = 2
NEAR_FACTOR = 1.1
"""The factor by which a loss may exceed the goal to count as near it."""

Case = tuple[str, str, int, int]
"""A training: its task, its optimizer, the number of its setting, and its seed."""


def run(context: Context) -> Result:
    from bench.quality.optimizer_tasks import tasks
    from bench.quality.optimizer_trial import PEERS_FOLDER, Setting

    trials, seeds = (2, SEEDS[:1]) if context.quick else (TRIALS, SEEDS)
    chosen = tasks(context.data, context.quick)
    has_peers = PEERS_FOLDER.is_dir()
    names = {
        task.name: [each for each in task.optimizers if has_peers or not each.startswith("peer")] for task in chosen
    }
    figures: list[Figure] = []
    cases = [("task", "optimizer", "best log-loss", "steps", "of AdamW's", "seconds, of AdamW's", "learning rate")]
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(dir=context.cache, prefix="convergence-"))
        place = (Path(scratch) if context.quick else context.cache) / "convergence.jsonl"
        resumable = ResumableCases(place, digest(ROOT, SHAMPOO_CONVERGENCE.depends_on))
        pairs = [(task, name) for task, every in names.items() for name in every]
        tried = _trained(context, resumable, [(*pair, number, 0) for pair in pairs for number in range(trials)])
        best: dict[tuple[str, str], int] = {}
        for task, name in pairs:  # AdamW comes first
            mine = [tried[task, name, number, 0] for number in range(trials)]
            goal = None if name == BASELINE else tried[task, BASELINE, best[task, BASELINE], 0].best
            best[task, name] = tuned(mine, goal)
        found = _trained(context, resumable, [(*pair, best[pair], seed) for pair in pairs for seed in seeds])
        for task in chosen:
            curves = {
                name: [found[task.name, name, best[task.name, name], seed] for seed in seeds]
                for name in names[task.name]
            }
            more, lines = compared(task.name, task.every, curves)
            figures += more
            cases += [(*line, f"{Setting.drawn(best[task.name, line[1]]).lr:.2g}") for line in lines]
        resumable.forget()
    notes = (
        f"{trials} settings, tuned from seed 0; then seeds {', '.join(map(str, seeds))}; one thread each, "
        f"{PROCESSES} processes side by side; seconds of the processor",
        *(f"{task.name}: {task.description}; {task.steps} steps, evaluated every {task.every}" for task in chosen),
        *([] if has_peers else ["the peers were left out: run bench/peers/install.py"]),
        *(["Frappe was left out: it needs --data"] if context.data is None else []),
    )
    return Result(tuple(figures), 0, len(seeds), notes, {}, tuple(cases))


def tuned(curves: Sequence[Curve], goal: float | None) -> int:
    """Returns the index of the curve that reaches the goal first; without a goal or if none does, of the best curve."""
    reached = [None if goal is None else each.reached(goal) for each in curves]
    order = [(at or math.inf, each.best) for at, each in zip(reached, curves, strict=True)]
    return min(range(len(curves)), key=lambda number: order[number])


def compared(
    task: str, every: int, curves: Mapping[str, Sequence[Curve]]
) -> tuple[list[Figure], list[tuple[str, ...]]]:
    """Returns the figures and the table lines of a task.

    Args:
        task: the name of the task.
        every: the steps between evaluations.
        curves: optimizer -> its curves, one per seed.
    """
    goals = [each.best for each in curves[BASELINE]]
    needed = [every * (each.reached(goal) or 0) for each, goal in zip(curves[BASELINE], goals, strict=True)]
    seconds = [each.seconds[steps // every - 1] for each, steps in zip(curves[BASELINE], needed, strict=True)]
    figures: list[Figure] = []
    lines: list[tuple[str, ...]] = []
    for name, mine in curves.items():
        reached = [each.reached(goal) for each, goal in zip(mine, goals, strict=True)]
        late = sum(each is None for each in reached)
        steps = [every * (at or len(goal.losses)) for at, goal in zip(reached, curves[BASELINE], strict=True)]
        shares = [mine_s / theirs for mine_s, theirs in zip(steps, needed, strict=True)]
        times = [
            (each.seconds[(at or len(each.seconds)) - 1] if each.seconds else float("inf")) / theirs
            for each, at, theirs in zip(mine, reached, seconds, strict=True)
        ]
        note = f"never reached by {late} of {len(mine)} seeds" if late else "to AdamW's best validation log-loss"
        if name != BASELINE:
            fewer = tuple(100 * (1 - share) for share in shares)
            figures.append(Figure(f"{task}.{name}.fewer_steps", "%", fewer, note))
            figures.append(Figure(f"{task}.{name}.time", "x", tuple(times), f"of AdamW's, {note}"))
            near = tuple(
                100
                * (
                    1
                    - (each.reached(NEAR_FACTOR * goal) or len(other.losses)) / (other.reached(NEAR_FACTOR * goal) or 1)
                )
                for each, other, goal in zip(mine, curves[BASELINE], goals, strict=True)
            )
            figures.append(Figure(f"{task}.{name}.fewer_steps_near", "%", near, "to a loss a tenth above it"))
        losses = tuple(each.best for each in mine)
        figures.append(Figure(f"{task}.{name}.best", "log-loss", losses, "of the validation rows"))
        middle = [f"{sorted(each)[len(each) // 2]:.2f}" for each in (shares, times)]
        best = f"{sum(losses) / len(losses):.4f}"
        lines.append((task, name, best, " ".join(map(str, steps)) + (f" ({note})" if late else ""), *middle))
    return figures, lines


def _trained(context: Context, resumable: ResumableCases, cases: Iterable[Case]) -> dict[Case, Curve]:
    """Returns the curves of all cases; missing ones are trained in parallel."""
    from bench.quality.optimizer_trial import Curve, trained

    every = {case: " ".join(map(str, case)) for case in cases}
    missing = [case for case, name in every.items() if name not in resumable]
    if missing:
        context.say(f"{len(missing)} of {len(every)} trainings to go")
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("forkserver")) as pool:
        try:
            started = {pool.submit(trained, context.data, context.quick, *case): every[case] for case in missing}
            for number, done in enumerate(as_completed(started), 1):
                curve, name = done.result(), started[done]
                resumable.get(name, lambda curve=curve: asdict(curve))
                context.say(f"{number}/{len(missing)} {name}: {curve.best:.5f}")
        except BaseException:  # else the pool's processes are waited for, without which this one may never end
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {case: Curve(**resumable.get(name, dict)) for case, name in every.items()}


SHAMPOO_CONVERGENCE = Benchmark(
    name="shampoo_convergence",
    claim="Shampoo needs a fifth fewer steps than AdamW to reach AdamW's best validation log-loss.",
    targets={f"{task}.shampoo.fewer_steps": Target(20.0) for task in JUDGED_TASKS},
    depends_on=("bench/quality/shampoo_convergence.py",),
    run=run,
)
