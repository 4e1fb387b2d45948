"""Plays episodes with chosen seeds, several at a time, and returns what they brought."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.policies.agents.environments import make_environment
from ziggurat.policies.config import TaskConfig

Act = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
AT_A_TIME = 16
"""Episodes that are played side by side, so that networks see batches."""


@dataclass(slots=True)
class Played:
    """What episodes brought.

    Attributes:
        returns: the return of each episode, in the order of the seeds.
        steps: steps of all episodes together.
        observations: some observations of them, (N, …); None if none were asked for.
    """

    returns: list[float]
    steps: int
    observations: npt.NDArray[Any] | None = field(default=None)


def play(task: TaskConfig, act: Act, seeds: Sequence[int], *, keep: int = 0, keep_seed: int = 0) -> Played:
    """Plays one episode for each seed.

    Args:
        task: the task.
        act: observations (N, …) -> actions (N, …).
        seeds: the seed of each episode's environment.
        keep: how many observations to return, drawn evenly from all steps.
        keep_seed: seeds that draw.
    """
    returns, steps = dict[int, float](), 0
    draw = np.random.default_rng([keep_seed, 17])
    kept: list[npt.NDArray[Any]] = []
    seen = 0
    envs = [make_environment(task) for _ in range(min(AT_A_TIME, len(seeds)))]
    waiting = list(reversed(list(seeds)))
    try:
        running: dict[int, tuple[int, Any]] = {}
        for slot, env in enumerate(envs):
            seed = waiting.pop()
            running[slot] = (seed, env.reset(seed=seed)[0])
        while running:
            slots = sorted(running)
            observations = np.stack([running[slot][1] for slot in slots])
            for each in observations if keep else ():
                seen += 1
                if len(kept) < keep:
                    kept.append(each)
                elif (place := int(draw.integers(seen))) < keep:
                    kept[place] = each
            actions = act(observations)
            for slot, action in zip(slots, actions, strict=True):
                observed, _, terminated, truncated, info = envs[slot].step(action)
                steps += 1
                seed = running[slot][0]
                running[slot] = (seed, observed)
                if terminated or truncated:
                    returns[seed] = float(info["episode"]["r"])
                    del running[slot]
                    if waiting:
                        seed = waiting.pop()
                        running[slot] = (seed, envs[slot].reset(seed=seed)[0])
    finally:
        for env in envs:
            env.close()
    return Played([returns[seed] for seed in seeds], steps, np.stack(kept) if kept else None)


def play_randomly(task: TaskConfig, seeds: Sequence[int]) -> Played:
    """Plays one episode for each seed, with actions drawn evenly from those possible."""
    env = make_environment(task)
    space = env.action_space
    space.seed(int(seeds[0]))
    env.close()
    return play(task, lambda observations: np.stack([space.sample() for _ in observations]), seeds)
