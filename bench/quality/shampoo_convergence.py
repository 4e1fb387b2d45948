"""Steps and seconds to AdamW's best validation log-loss, each optimizer tuned with as many trials.

Every optimizer gets the same twelve drawn settings (learning rate, betas, weight decay), and is then trained from three
other seeds with the one that was best on the validation rows. Of each seed, AdamW's best loss is the goal: how many
steps others need to it, of those that AdamW took. Who never gets there has needed more than there are, which counts as
all of them and is said.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.noted import Noted
from bench.provenance import digest
from ziggurat.core.errors import DivergedError

if TYPE_CHECKING:
    from bench.quality.optimizer_tasks import Task
    from bench.quality.optimizer_trial import Curve

TRIALS, SEEDS = 12, (1, 2, 3)
TASKS = ("drawn", "digits", "frappe")
GOAL = "adamw"


def run(context: Context) -> Result:
    import torch

    from bench.quality.optimizer_tasks import tasks
    from bench.quality.optimizer_trial import OPTIMIZERS, PEERS

    torch.set_num_threads(1)
    trials, seeds = (2, SEEDS[:1]) if context.quick else (TRIALS, SEEDS)
    names = [name for name in OPTIMIZERS if PEERS.is_dir() or not name.startswith("peer")]
    figures: list[Figure] = []
    cases = [("task", "optimizer", "best log-loss", "steps", "of AdamW's", "seconds, of AdamW's", "learning rate")]
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="convergence-") as scratch:
        place = (Path(scratch) if context.quick else context.cache) / "convergence.jsonl"
        noted = Noted(place, digest(ROOT, SHAMPOO_CONVERGENCE.depends_on))
        chosen = tasks(context.data, context.quick)
        for task in chosen:
            best = {name: _tuned(context, noted, task, name, trials) for name in names}
            curves = {name: _trained(context, noted, task, name, best[name], seeds) for name in names}
            found, lines = compared(task.name, task.every, curves)
            figures += found
            cases += [(*line, f"{_lr(best[line[1]]):.2g}") for line in lines]
        noted.forget()
    notes = (
        f"{trials} settings, tuned from seed 0; then seeds {', '.join(map(str, seeds))}; one thread",
        *(f"{task.name}: {task.told}; {task.steps} steps, evaluated every {task.every}" for task in chosen),
        *(["the peers were left out: run bench/peers/install.py"] if len(names) < len(OPTIMIZERS) else []),
        *(["Frappe was left out: it wants --data"] if context.data is None else []),
    )
    return Result(tuple(figures), 0, len(seeds), notes, {}, tuple(cases))


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
        told = f"never reached by {late} of {len(mine)} seeds" if late else "to AdamW's best validation log-loss"
        if name != GOAL:
            fewer = tuple(100 * (1 - share) for share in shares)
            figures.append(Figure(f"{task}.{name}.fewer_steps", "%", fewer, told))
            figures.append(Figure(f"{task}.{name}.time", "x", tuple(times), f"of AdamW's, {told}"))
        losses = tuple(each.best for each in mine)
        figures.append(Figure(f"{task}.{name}.best", "log-loss", losses, "of the validation rows"))
        middle = [f"{sorted(each)[len(each) // 2]:.2f}" for each in (shares, times)]
        best = f"{sum(losses) / len(losses):.4f}"
        lines.append((task, name, best, " ".join(map(str, steps)) + (f" ({told})" if late else ""), *middle))
    return figures, lines


def _tuned(context: Context, noted: Noted, task: Task, name: str, trials: int) -> int:
    """Number of the setting that is best."""
    losses = [
        noted.get(f"{task.name} {name} trial {number}", partial(_best, context, task, name, number))
        for number in range(trials)
    ]
    return min(range(trials), key=lambda number: losses[number])


def _best(context: Context, task: Task, name: str, number: int) -> float:
    best = _curve(task, name, number, 0).best
    context.say(f"{task.name} {name} trial {number}: {best:.5f}")
    return min(best, 1e9)


def _trained(context: Context, noted: Noted, task: Task, name: str, number: int, seeds: Iterable[int]) -> list[Curve]:
    from bench.quality.optimizer_trial import Curve

    def measured(seed: int) -> Mapping[str, Any]:
        found = _curve(task, name, number, seed)
        context.say(f"{task.name} {name} seed {seed}: {found.best:.5f}")
        return asdict(found)

    return [Curve(**noted.get(f"{task.name} {name} seed {seed}", partial(measured, seed))) for seed in seeds]


def _curve(task: Task, name: str, number: int, seed: int) -> Curve:
    from bench.quality.optimizer_trial import Curve, Setting, curve

    with contextlib.suppress(DivergedError):  # that is what came of this setting
        return curve(task, name, Setting.drawn(number), seed)
    return Curve([], [])


def _lr(number: int) -> float:
    from bench.quality.optimizer_trial import Setting

    return Setting.drawn(number).lr


SHAMPOO_CONVERGENCE = Benchmark(
    name="shampoo_convergence",
    claim="Shampoo needs a fifth fewer steps than AdamW to AdamW's best validation log-loss.",
    targets={f"{task}.shampoo.fewer_steps": Target(20.0) for task in TASKS},
    depends_on=(
        "src/ziggurat/optim",
        "src/ziggurat/models",
        "src/ziggurat/interactions",
        "bench/quality/shampoo_convergence.py",
        "bench/quality/optimizer_tasks.py",
        "bench/quality/optimizer_trial.py",
    ),
    run=run,
)
