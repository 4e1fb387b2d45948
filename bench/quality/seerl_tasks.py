"""The tasks of the benchmark ``seerl``, and one training with its evaluation."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CYCLES, MEMBERS = 6, 3
"""Cycles of a training, and members of an ensemble."""
WEIGHTS = (0.0, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The values of λ that are swept."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task with the settings of its training, which were chosen before and are the same for all contestants.

    Attributes:
        name: its name in the benchmark.
        kind: ``classic``, ``atari`` or ``mujoco``.
        env: id of the environment.
        steps: steps of a whole training.
        rate: the initial rate of the cycles, and the constant one.
        algorithm: settings of PPO.
        environments: environments that are stepped in turn.
        normalise: whether observations and rewards are standardised.
    """

    name: str
    kind: str
    env: str
    steps: int
    rate: float = 3e-4
    algorithm: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environments: int = 8
    normalise: bool = False

    def config(self, seed: int, schedule: str, steps: int, cycles: int, episodes: int) -> dict[str, Any]:
        """Returns the config of a run of policies, as plain values.

        All contestants begin new episodes after the same number of steps, so that they see the same parts of episodes.
        """
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
                "seed": seed,
            },
            "selection": {"members": min(MEMBERS, cycles), "diversity": (1.0,), "episodes": episodes},
            "evaluation": {"episodes": episodes, "sweep": WEIGHTS if schedule == "cyclical" else ()},
        }


_ATARI = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "clip_range": 0.1, "ent_coef": 0.01, "hidden": (256, 256)}
_MUJOCO = {"n_steps": 256, "batch_size": 64, "n_epochs": 10}

TASKS = (
    Task("cartpole", "classic", "CartPole-v1", 40_000, 1e-3, {"n_steps": 64, "batch_size": 128}, 4),
    Task("acrobot", "classic", "Acrobot-v1", 80_000, 1e-3, {"n_steps": 64, "batch_size": 128}, 4),
    Task("boxing", "atari", "ALE/Boxing-v5", 300_000, 2.5e-4, _ATARI),
    Task("space_invaders", "atari", "ALE/SpaceInvaders-v5", 300_000, 2.5e-4, _ATARI),
    Task("half_cheetah", "mujoco", "HalfCheetah-v5", 300_000, 3e-4, _MUJOCO, normalise=True),
    Task("hopper", "mujoco", "Hopper-v5", 300_000, 3e-4, _MUJOCO, normalise=True),
    Task("walker2d", "mujoco", "Walker2d-v5", 300_000, 3e-4, _MUJOCO, normalise=True),
)
_QUICK = {"n_steps": 16, "batch_size": 32, "n_epochs": 2}
QUICK = (
    Task("cartpole", "classic", "CartPole-v1", 384, 1e-3, _QUICK, 4),
    Task("acrobot", "classic", "Acrobot-v1", 384, 1e-3, _QUICK, 4),
)

METHODS = ("seerl", "plain", "independent")
"""The trainings: in cycles; with a constant rate; several of it with a share of the steps each."""

Outcome = dict[str, Any]


def trained(folder: Path, name: str, seed: int, method: str, episodes: int, quick: bool) -> Outcome:
    """Trains and judges one contestant; a training that was interrupted goes on.

    Returns:
        The mean return of each policy or ensemble of it in the evaluation's episodes, with the steps of its training
        and those of the episodes that chose members or rules; for ``seerl`` also those of the
        ensembles that each λ takes, with the divergences of their members.
    """
    import torch

    torch.set_num_threads(1)
    task = next(each for each in (QUICK if quick else TASKS) if each.name == name)
    run = folder / f"{name}-{seed}-{method}"
    found = (
        _independent(run, task, seed, episodes) if method == "independent" else _one(run, task, seed, method, episodes)
    )
    shutil.rmtree(run, ignore_errors=True)
    return found


def _one(run: Path, task: Task, seed: int, method: str, episodes: int) -> Outcome:
    from ziggurat.policies.choosing import choose
    from ziggurat.policies.config import PoliciesConfig
    from ziggurat.policies.judging import judge
    from ziggurat.policies.training import train

    schedule = "cyclical" if method == "seerl" else "constant"
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
    }
    if method == "seerl":
        found["sweep"] = [
            {"weight": weight, "mean": each.mean, "divergence": each.divergence, "members": list(each.members)}
            for weight, each in zip(judged.weights, judged.sweep, strict=True)
        ]
        found["rules"] = {each.rule: each.mean for each in judged.rules}
    return found


def _independent(run: Path, task: Task, seed: int, episodes: int) -> Outcome:
    """Trains as many policies as an ensemble has members, each with its share of the steps, and lets all act together;
    the rule is chosen as elsewhere, in the selection's episodes."""
    from ziggurat.policies.agents.ensemble_policy import EnsemblePolicy
    from ziggurat.policies.agents.load_members import load_members
    from ziggurat.policies.agents.member import Member
    from ziggurat.policies.agents.play import play
    from ziggurat.policies.choosing import rules_of
    from ziggurat.policies.config import PoliciesConfig
    from ziggurat.policies.run_folder import read_snapshots
    from ziggurat.policies.training import train

    members: list[Member] = []
    settings: list[PoliciesConfig] = []
    steps = 0
    for number in range(MEMBERS):
        own = task.config(1000 + MEMBERS * seed + number, "constant", task.steps // MEMBERS, 1, episodes)
        settings.append(PoliciesConfig.model_validate(own))
        steps += train(settings[-1], run / str(number)).steps
        members += load_members(run / str(number), settings[-1], read_snapshots(run / str(number)))
    config = settings[0]
    rules = rules_of(config, members[0].action_space)
    chooses = range(config.selection.first_seed, config.selection.first_seed + episodes)
    judges = range(config.evaluation.first_seed, config.evaluation.first_seed + episodes)

    def played(policies: Sequence[Member], rule: Any, seeds: range) -> tuple[float, int]:
        found = play(config.task, EnsemblePolicy(policies, rule).act, seeds)
        return float(np.mean(found.returns)), found.steps

    together = {rule: played(members, rule, chooses) for rule in rules}
    alone = [played([member], rules[0], chooses) for member in members]
    chosen = max(rules, key=lambda rule: together[rule][0])
    best = members[int(np.argmax([mean for mean, _ in alone]))]
    return {
        "steps": steps,
        "selection": sum(each for _, each in (*together.values(), *alone)),
        "best": played([best], rules[0], judges)[0],
        "ensemble": played(members, chosen, judges)[0],
        "rule": chosen,
    }
