"""A callback for any training with stable-baselines3: it sets the rate in cycles, and hands out a snapshot of each."""

from __future__ import annotations

from collections.abc import Callable

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import Schedule

from ziggurat.policies.schedule import cycle_ends


class SnapshotCallback(BaseCallback):
    """Sets the learning rate by steps of the environments, and calls ``on_snapshot`` at the end of each cycle.

    Updates are made between rollouts. An update has the rate of the first step of the rollout that it learns from, and
    a cycle ends with the first rollout that reaches its last step, whose update still belongs to it. The agent's own
    schedule of the rate is replaced.

        callback = SnapshotCallback(steps, cycles, CyclicalRate(3e-4, steps, cycles).rate, keep)
        PPO("MlpPolicy", env).learn(steps, callback=callback)

    It may serve one training after another, each of which begins with the first cycle.

    Args:
        steps: T, the steps of the whole training, of all environments together.
        cycles: M.
        rate: the rate of each step, counted from 1; None leaves the agent's own.
        on_snapshot: called with the number of the cycle, from 1, and the agent as it is then.
    """

    def __init__(
        self,
        steps: int,
        cycles: int,
        rate: Callable[[int], float] | None,
        on_snapshot: Callable[[int, BaseAlgorithm], None],
    ) -> None:
        super().__init__()
        self._ends, self._rate, self._steps, self._on_snapshot = cycle_ends(steps, cycles), rate, steps, on_snapshot
        self._next: int | None = None
        self._rollout_start = 0

    def _on_training_start(self) -> None:
        agent = self.model
        self._rollout_start = agent.num_timesteps
        # Of a training that goes on, cycles that ended before have their snapshots; another training begins at none.
        ended = sum(end <= agent.num_timesteps for end in self._ends)
        self._next = ended if self._next is None else min(self._next, ended)
        if self._rate is not None:
            agent.lr_schedule = self._scheduled(self._rate)

    def _scheduled(self, rate: Callable[[int], float]) -> Schedule:
        def schedule(progress_remaining: float) -> float:
            del progress_remaining  # it says how much of this call of learn is left, not of the training
            return rate(min(self._rollout_start + 1, self._steps))

        return schedule

    def _on_rollout_start(self) -> None:
        self._snapshot()
        self._rollout_start = self.model.num_timesteps

    def _on_training_end(self) -> None:
        self._snapshot()

    def _snapshot(self) -> None:
        assert self._next is not None
        reached = sum(end <= self.model.num_timesteps for end in self._ends)
        if (
            reached > self._next
        ):  # of cycles shorter than a rollout, several may have ended: one snapshot stands for them
            self._next = reached
            self._on_snapshot(reached, self.model)

    def _on_step(self) -> bool:
        return True
