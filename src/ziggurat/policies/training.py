"""Trains one policy in cycles, and keeps a snapshot of each; it resumes to the bit.

Training is divided at save points. At each of them, and not only after an interruption, all environments begin new
episodes and all random numbers are seeded anew from the run's seed and the number of the save point. So what happens
after a save point depends on the saved state alone, whatever environment, and no state of an environment has to be
stored. Rollouts never cross a save point, so that nothing is learned from an episode's cut as if it were its end. The
price is that some episodes are not played to their end (docs/decisions/0065). So save points are as rare as may be: the
ends of the cycles, unless the config asks for more (docs/decisions/0076).
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ziggurat.core.errors import ConfigError, DivergedError
from ziggurat.core.files import locked_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.policies import run_folder
from ziggurat.policies.config import A2CConfig, PoliciesConfig, PPOConfig, TrainingConfig, differences
from ziggurat.policies.run_folder import Episode
from ziggurat.policies.schedule import CyclicalRate, cycle_ends

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

Stop = Callable[[], signal.Signals | None]
"""Returns the signal by which the user has asked to stop, or None."""


@dataclass(frozen=True, slots=True)
class Trained:
    """How a training ended.

    Attributes:
        folder: the run.
        steps: steps of all environments that are saved.
        snapshots: how many snapshots there are.
        signal: the signal that stopped it, if any.
    """

    folder: Path
    steps: int
    snapshots: int
    signal: signal.Signals | None


def save_points(training: TrainingConfig) -> tuple[int, ...]:
    """Returns the steps after which the state is saved, rising: the end of each cycle, and points within if the config
    asks for them."""
    found: list[int] = []
    start = 0
    for end in cycle_ends(training.steps, training.cycles):
        every = training.save_every or end - start
        found += [*range(start + every, end, every), end]
        start = end
    return tuple(found)


def rate_of(training: TrainingConfig) -> Callable[[int], float]:
    """Returns the rate of each step, counted from 1."""
    if training.schedule == "constant":
        return lambda step: training.rate
    return CyclicalRate(training.rate, training.steps, training.cycles).rate


def train(
    config: PoliciesConfig,
    folder: Path | str | None = None,
    *,
    progress: Progress | None = None,
    stop: Stop = lambda: None,
) -> Trained:
    """Trains a run, or resumes it: the result is the same to the bit, on the same machine with the same versions.

    Args:
        config: the config.
        folder: the run; default: ``policies/NAME``.
        progress: where to show progress.
        stop: asked between steps; after a signal, training stops, and goes on from the last save point when called
            again.

    Raises:
        ConfigError: the task or the algorithm is not possible, or a cycle would leave no snapshot.
        EnvironmentMismatch: the extra ``rl`` is not installed.
        DivergedError: the policy has weights that are no finite numbers.
        RunFolderError: the folder holds something else, a run of another task, algorithm or training, or is damaged.
        FolderInUse: another process works in the folder.
    """
    from ziggurat.policies.agents.environments import training_environments
    from ziggurat.policies.agents.learner import make_agent

    folder = Path("policies") / config.name if folder is None else Path(folder)
    progress = progress or Silent()
    run_folder.check_free(folder)
    _check_cycles(config)
    envs = training_environments(config.task, config.training.environments, config.algorithm.gamma)
    try:
        agent = make_agent(config.algorithm, config.task, envs, config.training.rate, config.training.seed)
        with locked_folder(folder, "training policies"):
            if (folder / run_folder.MARKER).is_file():
                known = run_folder.read_config(folder)
                run_folder.check_same(folder, known, config, ("task", "algorithm", "training"))
                _tell_of_selection(folder, known, config, progress)
            run_folder.write_config(folder, config)
            return _Training(config, folder, agent, progress, stop).run()
    finally:
        envs.close()


class _Training:
    def __init__(self, config: PoliciesConfig, folder: Path, agent: Any, progress: Progress, stop: Stop) -> None:
        self._config, self._folder, self._agent = config, folder, agent
        self._progress, self._stop = progress, stop
        self._episodes: list[Episode] = []

    def run(self) -> Trained:
        from ziggurat.policies.agents.agent_tensors import agent_arrays, replay_arrays, restore_agent, restore_replay
        from ziggurat.policies.agents.segment import train_segment

        agent, folder, training = self._agent, self._folder, self._config.training
        seconds = 0.0
        record = run_folder.read_record(folder)
        if record is not None:
            arrays, replay = run_folder.read_state(folder, record)
            where = run_folder.state_path(folder)
            restore_agent(agent, arrays, where, run_folder.DAMAGE)
            restore_replay(agent, replay, where, run_folder.DAMAGE)
            seconds, self._episodes = record.seconds, list(record.episodes)
        points = save_points(training)
        steps, caught = int(agent.num_timesteps), None
        if steps < training.steps:
            _tell_of_cuts(self._config, agent.get_env(), self._progress)
        self._progress.start("train", training.steps, "steps")
        for number, point in enumerate(points):
            if point <= steps:  # told by steps, as an earlier version had other points
                continue
            started, known = time.monotonic(), len(self._episodes)
            seed = int(np.random.SeedSequence([training.seed, number]).generate_state(1)[0] % 2**31)
            with _told_if_diverged(folder, agent, training):
                train_segment(
                    agent, point, training, rate_of(training), seed,
                    on_snapshot=self._keep, on_episode=self._episodes.append, on_steps=self._show, stop=self._stop,
                )  # fmt: skip
            self._show(int(agent.num_timesteps))
            caught = self._stop()
            if caught is not None:
                del self._episodes[known:]
                break
            seconds += time.monotonic() - started
            steps = int(agent.num_timesteps)
            run_folder.write_state(
                folder, agent_arrays(agent), replay_arrays(agent), number + 1, steps, seconds, self._episodes
            )
        self._progress.finish()
        missing = caught is not None and steps < cycle_ends(training.steps, training.cycles)[0]
        return Trained(folder, steps, 0 if missing else len(run_folder.read_snapshots(folder)), caught)

    def _keep(self, cycle: int, agent: Any) -> None:
        from ziggurat.policies.agents.agent_tensors import agent_arrays

        if self._stop() is None and _is_finite(agent):
            name = self._config.algorithm.name
            run_folder.write_snapshot(self._folder, cycle, int(agent.num_timesteps), name, agent_arrays(agent))

    def _show(self, steps: int) -> None:
        latest = [each.total for each in self._episodes[-20:]]
        figures = {"return": f"{np.mean(latest):.4g}"} if latest else {}
        self._progress.advance(min(steps, self._config.training.steps), **figures)


@contextlib.contextmanager
def _told_if_diverged(folder: Path, agent: Any, training: TrainingConfig) -> Generator[None]:
    """Raises an error that can be understood if the weights of an agent are not finite any more.

    Raises:
        DivergedError: they are not; what was saved before is unchanged.
    """
    failed: Exception | None = None
    try:
        yield
    except (ValueError, RuntimeError) as error:  # torch refuses distributions of such numbers
        failed = error
    if not _is_finite(agent):
        raise DivergedError(
            f"{folder}: the policy diverged within {agent.num_timesteps:,} steps: it has weights that are no finite "
            f"numbers; training.rate is {training.rate:g}",
            "use a smaller training.rate, and another folder with --run",
        ) from failed
    if failed is not None:
        raise failed


def _is_finite(agent: Any) -> bool:
    return all(bool(each.isfinite().all()) for each in agent.policy.parameters())


def _check_cycles(config: PoliciesConfig) -> None:
    """Refuses a training after which the snapshot of a cycle would be missing.

    Cycles have ⌈T/M⌉ steps, which may not fit M times into T; and one snapshot stands for all cycles that end in the
    same rollout.

    Raises:
        ConfigError: it is one.
    """
    training = config.training
    ends = cycle_ends(training.steps, training.cycles)
    if len(ends) < training.cycles:
        raise ConfigError(
            f"training.cycles: {training.cycles} cycles of {ends[0]} steps, ⌈T/M⌉, do not fit into "
            f"{training.steps} steps",
            f"use {len(ends)} cycles, or {ends[0] * training.cycles} steps",
        )
    key = "n_steps" if isinstance(config.algorithm, A2CConfig | PPOConfig) else "train_freq"
    rollout = int(getattr(config.algorithm, key)) * training.environments
    steps = taken = 0
    for point in save_points(training):
        while steps < point:
            steps += rollout
            ended = sum(end <= steps for end in ends)
            if ended > taken + 1:
                raise ConfigError(
                    f"training.cycles: cycles {taken + 1} and {ended}, of {ends[0]} steps, end in the same rollout of "
                    f"{rollout} steps, algorithm.{key} of each environment; one snapshot would stand for both",
                    f"use fewer cycles, at most {max(training.steps // rollout, 1)}, more steps, fewer environments or "
                    f"a smaller {key}",
                )
            taken = ended


def _tell_of_cuts(config: PoliciesConfig, envs: VecEnv, progress: Progress) -> None:
    """Notes if all environments begin new episodes before an episode of the greatest length can end."""
    training = config.training
    longest: int | None = config.task.max_steps
    if longest is None:
        longest = envs.get_attr("spec", 0)[0].max_episode_steps  # of Atari games none is known
    steps = min(np.diff([0, *save_points(training)]).tolist())
    if longest is None or steps >= longest * training.environments:
        return
    remedy = "use more steps, fewer cycles or fewer environments"
    if training.save_every is not None:
        cycle = cycle_ends(training.steps, training.cycles)[0]
        remedy = f"use a greater training.save_every that divides the {cycle:,} steps of a cycle, or fewer environments"
    each = steps // training.environments
    progress.note(
        f"{steps:,} steps between two save points, in {training.environments} environments, cut episodes off: an "
        f"episode may take {longest:,} steps, and each environment makes {each:,} before all begin new ones; {remedy}"
    )


def _tell_of_selection(folder: Path, known: PoliciesConfig, config: PoliciesConfig, progress: Progress) -> None:
    """Notes if members were chosen with other settings than the config has now; they stay chosen."""
    if (folder / run_folder.SELECTION_FILE).exists():
        for name, theirs, mine in differences(known, config, ("selection", "ensemble")):
            progress.note(
                f"{folder}: members were chosen with {name} {theirs!r}, the config has {mine!r}; they stay chosen "
                f"until `ziggurat policies select {folder}` chooses anew"
            )
