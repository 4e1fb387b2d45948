"""Trains an agent from one save point to the next."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from stable_baselines3 import DQN
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger

from ziggurat.policies.agents.snapshot_callback import SnapshotCallback
from ziggurat.policies.config import TrainingConfig
from ziggurat.policies.run_folder import Episode

_SHOW_EVERY = 500
"""Steps of the environments between reports of progress."""


def train_segment(
    agent: BaseAlgorithm,
    point: int,
    training: TrainingConfig,
    rate: Callable[[int], float],
    seed: int,
    *,
    on_snapshot: Callable[[int, BaseAlgorithm], None],
    on_episode: Callable[[Episode], None],
    on_steps: Callable[[int], None],
    stop: Callable[[], signal.Signals | None],
) -> None:
    """Trains until ``point`` steps of all environments are reached, or ``stop`` returns a signal.

    All environments begin new episodes, and all random numbers are drawn from ``seed``. The last rollout is completed,
    so that a few steps more than ``point`` may be made.
    """
    agent.set_random_seed(seed)
    agent._last_obs = None  # pyright: ignore[reportPrivateUsage] - learn resets the environments then
    agent.set_logger(Logger(None, []))  # without outputs; the default one creates a folder in /tmp
    snapshots = SnapshotCallback(training.steps, training.cycles, rate, on_snapshot)
    watch = _Watch(training.steps, on_episode, on_steps, stop)
    agent.learn(point - agent.num_timesteps, callback=[watch, snapshots], log_interval=10**9, reset_num_timesteps=False)


class _Watch(BaseCallback):
    """Reports episodes and steps, and ends training when it is asked to."""

    def __init__(
        self,
        total: int,
        on_episode: Callable[[Episode], None],
        on_steps: Callable[[int], None],
        stop: Callable[[], signal.Signals | None],
    ) -> None:
        super().__init__()
        self._total, self._on_episode, self._on_steps, self._stop = total, on_episode, on_steps, stop
        self._shown = 0

    def _on_training_start(self) -> None:
        # Exploration that shrinks with the training does so over all of it, not over this call of learn.
        self.model._total_timesteps = self._total  # pyright: ignore[reportPrivateUsage]
        self._shown = self.model.num_timesteps
        if isinstance(self.model, DQN):  # it sets its rate of exploration after a step, and begins with 0
            remaining = 1.0 - self._shown / max(1, self._total)
            self.model.exploration_rate = self.model.exploration_schedule(remaining)

    def _on_step(self) -> bool:
        agent = self.model
        infos: list[dict[str, Any]] = self.locals["infos"]
        for info in infos:
            if (ended := info.get("episode")) is not None:
                self._on_episode(Episode(agent.num_timesteps, float(ended["r"]), int(ended["l"])))
        if agent.num_timesteps - self._shown >= _SHOW_EVERY:
            self._shown = agent.num_timesteps
            self._on_steps(agent.num_timesteps)
        return self._stop() is None
