"""The tasks of the benchmark ``seerl``, and one training with its evaluation."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from ziggurat.policies.agents.member import Member
    from ziggurat.policies.records import Rule

CYCLES, MEMBERS = 6, 3
"""Cycles of a training, and members of an ensemble."""
DIVERSITY = (0.0, 1.0, 10.0)
"""The values of λ whose ensembles the selection compares."""
CHOOSE_FROM, JUDGE_FROM, EPISODES_OF_A_SEED = 1_000_000, 2_000_000, 1_000
"""The first episode that chooses, the first one that judges, and how far apart those of two seeds begin."""
WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The values of λ that are swept, with every snapshot admitted."""


Schedule = Literal["cyclical", "constant"]


@dataclass(frozen=True, slots=True)
class Episodes:
    """How many episodes choose members and rules, and how many others judge."""

    choose: int
    judge: int


@dataclass(frozen=True, slots=True)
class Task:
    """A task with the settings of its training, which were chosen before and are the same for all contestants.

    Attributes:
        name: its name in the benchmark.
        env: id of the environment.
        steps: steps of a whole training.
        rate: the initial rate of the cycles, and the constant one.
        algorithm: settings of PPO.
        environments: environments that are stepped in turn.
        normalise: whether observations and rewards are standardised.
    """

    name: str
    env: str
    steps: int
    rate: float = 3e-4
    algorithm: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environments: int = 8
    normalise: bool = False

    def config(
        self,
        seed: int,
        schedule: Schedule,
        steps: int,
        cycles: int,
        episodes: Episodes,
        *,
        training_seed: int | None = None,
    ) -> dict[str, Any]:
        """Returns the config of a run of policies, as plain values.

        All contestants begin new episodes after the same number of steps, so that they see the same parts of episodes.

        Args:
            seed: that of the case, which says which episodes choose and judge.
            schedule: the rate.
            steps: steps of the training.
            cycles: its cycles.
            episodes: how many choose and judge.
            training_seed: the seed of the training; default: that of the case.
        """
        apart = EPISODES_OF_A_SEED * seed
        return {
            "name": self.name,
            "task": {"env": self.env, "normalise": self.normalise},
            "algorithm": {"name": "ppo", **self.algorithm},
            "training": {
                "steps": steps,
                "cycles": cycles,
                "schedule": schedule,
                "rate": self.rate,
                "environments": self.environments,
                "save_every": -(-self.steps // CYCLES),
                "seed": seed if training_seed is None else training_seed,
            },
            "selection": {
                "members": min(MEMBERS, cycles),
                "diversity": DIVERSITY,
                "episodes": episodes.choose,
                "first_seed": CHOOSE_FROM + apart,
            },
            "evaluation": {
                "episodes": episodes.judge,
                "first_seed": JUDGE_FROM + apart,
                "sweep": WEIGHTS if schedule == "cyclical" else (),
            },
        }

    def digest(self, seed: int, episodes: Episodes) -> str:
        """Returns eight characters that change with what its trainings are: a changed task is another case."""
        values = self.config(seed, "cyclical", self.steps, CYCLES, episodes)
        return hashlib.sha256(json.dumps([values, MEMBERS]).encode()).hexdigest()[:8]


_ATARI = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "clip_range": 0.1, "ent_coef": 0.01, "hidden": (256, 256)}
_MUJOCO = {"n_steps": 256, "batch_size": 64, "n_epochs": 10}

TASKS = (
    Task("boxing", "ALE/Boxing-v5", 300_000, 2.5e-4, _ATARI),
    Task("space_invaders", "ALE/SpaceInvaders-v5", 300_000, 2.5e-4, _ATARI),
    Task("half_cheetah", "HalfCheetah-v5", 600_000, 3e-4, _MUJOCO, normalise=True),
    Task("hopper", "Hopper-v5", 600_000, 3e-4, _MUJOCO, normalise=True),
    Task("walker2d", "Walker2d-v5", 600_000, 3e-4, _MUJOCO, normalise=True),
)
_QUICK = {"n_steps": 16, "batch_size": 32, "n_epochs": 2}
QUICK = (  # two classic tasks that a good policy plays perfectly: they cannot tell contestants apart, but are quick
    Task("cartpole", "CartPole-v1", 384, 1e-3, _QUICK, 4),
    Task("acrobot", "Acrobot-v1", 384, 1e-3, _QUICK, 4),
)

METHODS = ("seerl", "plain", "independent", "annealed")
"""The trainings: in cycles; with a constant rate; several of it with a share of the steps each; and with a rate that
falls once, as many steps as the cycles and the selection of their members take together."""

Outcome = dict[str, Any]


def trained(
    folder: Path, name: str, seed: int, method: str, episodes: Episodes, quick: bool, steps: int | None = None
) -> Outcome:
    """Trains and judges one contestant; a training that was interrupted goes on.

    Args:
        folder: where the folder of the run is, which stays until :func:`discard`.
        name: the task.
        seed: the seed of the case.
        method: one of :data:`METHODS`.
        episodes: how many choose and judge.
        quick: whether the task is one of the quick ones.
        steps: the steps of the training, of ``annealed`` alone.

    Returns:
        The mean return of each policy or ensemble of it in the evaluation's episodes, with the steps of its training
        and those of the episodes that chose members or rules; for ``seerl`` also those of the
        ensembles that each λ takes, with the divergences of their members.
    """
    import torch

    torch.set_num_threads(1)
    task = next(each for each in (QUICK if quick else TASKS) if each.name == name)
    run = folder_of(folder, name, seed, method)
    if method == "independent":
        return _independent(run, task, seed, episodes)
    if method == "annealed":
        assert steps is not None
        return _annealed(run, task, seed, episodes, steps)
    return _one(run, task, seed, "cyclical" if method == "seerl" else "constant", episodes)


def folder_of(folder: Path, name: str, seed: int, method: str) -> Path:
    """Returns the folder of a training."""
    return folder / f"{name}-{seed}-{method}"


def discard(run: Path) -> None:
    """Deletes the folder of a training whose outcome is stored; a folder that is half deleted is never taken for one
    that goes on."""
    gone = run.with_name(f".{run.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    if run.exists():
        run.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _one(run: Path, task: Task, seed: int, schedule: Schedule, episodes: Episodes) -> Outcome:
    from ziggurat.policies.choosing import choose
    from ziggurat.policies.config import PoliciesConfig
    from ziggurat.policies.judging import judge
    from ziggurat.policies.training import train

    settings = PoliciesConfig.model_validate(task.config(seed, schedule, task.steps, CYCLES, episodes))
    steps = train(settings, run).steps
    selection = choose(run)
    judged = judge(run)
    found: Outcome = {
        "steps": steps,
        "selection": selection.steps,
        "last": judged.last.mean,
        "best": judged.best_snapshot.mean,
        "ensemble": judged.ensemble.mean,
        "random": float(np.mean(judged.random)),
        "rule": judged.ensemble.rule,
        "members": list(judged.ensemble.members),
        "snapshots": [each.mean for each in judged.snapshots],
    }
    if schedule == "cyclical":
        found["sweep"] = [
            {"weight": weight, "mean": each.mean, "divergence": each.divergence, "members": list(each.members)}
            for weight, each in zip(judged.weights, judged.sweep, strict=True)
        ]
        found["rules"] = {each.rule: each.mean for each in judged.rules}
    return found


def _annealed(run: Path, task: Task, seed: int, episodes: Episodes, steps: int) -> Outcome:
    """Trains one policy with a rate that falls along one cosine."""
    members, done = _policies(run, task.config(seed, "cyclical", steps, 1, episodes))
    mean, _ = _played(task, seed, episodes, members, None, judges=True)
    return {"steps": done, "last": mean}


def _independent(run: Path, task: Task, seed: int, episodes: Episodes) -> Outcome:
    """Trains as many policies as an ensemble has members, each with its share of the steps, and lets all act together;
    the rule is chosen as elsewhere, in the selection's episodes."""
    from ziggurat.policies.choosing import rules_of
    from ziggurat.policies.config import PoliciesConfig

    members: list[Member] = []
    steps = 0
    for number in range(MEMBERS):
        share, own = task.steps // MEMBERS, 1000 + MEMBERS * seed + number
        values = task.config(seed, "constant", share, 1, episodes, training_seed=own)
        found, done = _policies(run / str(number), values)
        members += found
        steps += done
    whole = PoliciesConfig.model_validate(task.config(seed, "constant", task.steps, 1, episodes))
    rules = rules_of(whole, members[0].action_space)
    together = {rule: _played(task, seed, episodes, members, rule, judges=False) for rule in rules}
    chosen = max(rules, key=lambda rule: together[rule][0])
    return {
        "steps": steps,
        "selection": sum(taken for _, taken in together.values()),
        "ensemble": _played(task, seed, episodes, members, chosen, judges=True)[0],
        "rule": chosen,
    }


def _policies(run: Path, values: Mapping[str, Any]) -> tuple[list[Member], int]:
    """Trains a run and returns its snapshots, with the steps that it took."""
    from ziggurat.policies.agents.load_members import load_members
    from ziggurat.policies.config import PoliciesConfig
    from ziggurat.policies.run_folder import read_snapshots
    from ziggurat.policies.training import train

    config = PoliciesConfig.model_validate(values)
    steps = train(config, run).steps
    return load_members(run, config, read_snapshots(run)), steps


def _played(
    task: Task, seed: int, episodes: Episodes, members: Sequence[Member], rule: Rule | None, *, judges: bool
) -> tuple[float, int]:
    """Returns the mean return of policies that act together in the episodes that choose or judge, and their steps.

    Args:
        task: the task.
        seed: the seed of the case.
        episodes: how many choose and judge.
        members: the policies.
        rule: how they act; None for the first one that is allowed, for a single policy.
        judges: whether the episodes are those that judge.
    """
    from ziggurat.policies.agents.ensemble_policy import acting
    from ziggurat.policies.agents.play import play
    from ziggurat.policies.choosing import rules_of
    from ziggurat.policies.config import PoliciesConfig

    config = PoliciesConfig.model_validate(task.config(seed, "constant", task.steps, 1, episodes))
    section = config.evaluation if judges else config.selection
    seeds = range(section.first_seed, section.first_seed + section.episodes)
    rule = rules_of(config, members[0].action_space)[0] if rule is None else rule
    found = play(config.task, acting(config, members, rule, seeds).act, seeds)
    return float(np.mean(found.returns)), found.steps
