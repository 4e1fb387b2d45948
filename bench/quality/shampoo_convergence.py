"""Steps and seconds to AdamW's best validation log-loss, each optimizer tuned with as many trials.

Every optimizer gets the same settings to try (learning rate, betas, weight decay), from seed 0. AdamW keeps the one
with the best loss on validation rows; that loss is the others' goal, and each keeps the setting that gets there in the
fewest steps, or the one with the best loss where none does. Then all are trained from three other seeds, of each of
which AdamW's best loss is the goal again: how many steps others need to it, of those that AdamW took. Who never gets
there has needed more than there are, which counts as all of them and is said. A best loss is one lucky evaluation, so
the steps to a loss a tenth above it are told as well.
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
JUDGED = ("drawn", "drawn_wukong", "frappe", "frappe_once", "frappe_dlrm", "frappe_dlrm_once", "digits")
GOAL = "adamw"
PROCESSES = 2
NEAR = 1.1
"""Times the goal."""

Case = tuple[str, str, int, int]
"""A task, an optimizer, the number of a setting, a seed."""


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
            goal = None if name == GOAL else tried[task, GOAL, best[task, GOAL], 0].best
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
        *(["Frappe was left out: it wants --data"] if context.data is None else []),
    )
    return Result(tuple(figures), 0, len(seeds), notes, {}, tuple(cases))


def tuned(curves: Sequence[Curve], goal: float | None) -> int:
    """Number of the curve that reaches the goal first, or, where there is none or nobody does, of the best one."""
    reached = [None if goal is None else each.reached(goal) for each in curves]
    order = [(at or math.inf, each.best) for at, each in zip(reached, curves, strict=True)]
    return min(range(len(curves)), key=lambda number: order[number])


def compared(
    task: str, every: int, curves: Mapping[str, Sequence[Curve]]
) -> tuple[list[Figure], list[tuple[str, ...]]]:
    """Figures and lines of a task, by optimizer its curves, seed by seed."""
    goals = [each.best for each in curves[GOAL]]
    needed = [every * (each.reached(goal) or 0) for each, goal in zip(curves[GOAL], goals, strict=True)]
    seconds = [each.seconds[steps // every - 1] for each, steps in zip(curves[GOAL], needed, strict=True)]
    figures: list[Figure] = []
    lines: list[tuple[str, ...]] = []
    for name, mine in curves.items():
        reached = [each.reached(goal) for each, goal in zip(mine, goals, strict=True)]
        late = sum(each is None for each in reached)
        steps = [every * (at or len(goal.losses)) for at, goal in zip(reached, curves[GOAL], strict=True)]
        shares = [mine_s / theirs for mine_s, theirs in zip(steps, needed, strict=True)]
        times = [
            (each.seconds[(at or len(each.seconds)) - 1] if each.seconds else float("inf")) / theirs
            for each, at, theirs in zip(mine, reached, seconds, strict=True)
        ]
        note = f"never reached by {late} of {len(mine)} seeds" if late else "to AdamW's best validation log-loss"
        if name != GOAL:
            fewer = tuple(100 * (1 - share) for share in shares)
            figures.append(Figure(f"{task}.{name}.fewer_steps", "%", fewer, note))
            figures.append(Figure(f"{task}.{name}.time", "x", tuple(times), f"of AdamW's, {note}"))
            near = tuple(
                100 * (1 - (each.reached(NEAR * goal) or len(other.losses)) / (other.reached(NEAR * goal) or 1))
                for each, other, goal in zip(mine, curves[GOAL], goals, strict=True)
            )
            figures.append(Figure(f"{task}.{name}.fewer_steps_near", "%", near, "to a tenth above it"))
        losses = tuple(each.best for each in mine)
        figures.append(Figure(f"{task}.{name}.best", "log-loss", losses, "of the validation rows"))
        middle = [f"{sorted(each)[len(each) // 2]:.2f}" for each in (shares, times)]
        best = f"{sum(losses) / len(losses):.4f}"
        lines.append((task, name, best, " ".join(map(str, steps)) + (f" ({note})" if late else ""), *middle))
    return figures, lines


def _trained(context: Context, resumable: ResumableCases, cases: Iterable[Case]) -> dict[Case, Curve]:
    """All of them, those side by side that are not measured yet."""
    from bench.quality.optimizer_trial import Curve, trained

    every = {case: " ".join(map(str, case)) for case in cases}
    missing = [case for case, name in every.items() if name not in resumable]
    if missing:
        context.say(f"{len(missing)} of {len(every)} trainings to go")
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool, ExitStack() as stack:
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # where this is interrupted
        started = {pool.submit(trained, context.data, context.quick, *case): every[case] for case in missing}
        for number, done in enumerate(as_completed(started), 1):
            curve, name = done.result(), started[done]
            resumable.get(name, lambda curve=curve: asdict(curve))
            context.say(f"{number}/{len(missing)} {name}: {curve.best:.5f}")
    return {case: Curve(**resumable.get(name, dict)) for case, name in every.items()}


SHAMPOO_CONVERGENCE = Benchmark(
    name="shampoo_convergence",
    claim="Shampoo needs a fifth fewer steps than AdamW to AdamW's best validation log-loss.",
    targets={f"{task}.shampoo.fewer_steps": Target(20.0) for task in JUDGED},
    depends_on=("bench/quality/shampoo_convergence.py",),
    run=run,
)
