"""What is kept of episodes that are played: states of all of them, and returns that are not clipped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

import gymnasium as gym

from ziggurat.core.errors import ConfigError
from ziggurat.policies.agents import play as playing
from ziggurat.policies.agents.environments import make_environment
from ziggurat.policies.agents.play import play
from ziggurat.policies.config import TaskConfig


def test_kept_states_are_drawn_evenly_from_all_steps() -> None:
    task = TaskConfig(env="CartPole-v1", max_steps=100)
    places: list[int] = []
    for keep_seed in range(10):
        seen: list[bytes] = []

        def act(observations: np.ndarray, seen: list[bytes] = seen) -> np.ndarray:
            seen += [each.tobytes() for each in observations]
            return (observations[:, 2] + observations[:, 3] > 0).astype(np.int64)

        found = play(task, act, range(3), keep=50, keep_seed=keep_seed)
        assert found.observations is not None
        assert found.returns == [100.0] * 3
        assert found.steps == len(seen) == 300
        order = {state: place for place, state in enumerate(seen)}
        own = [order[each.tobytes()] for each in found.observations]
        assert len(set(own)) == 50
        places += own
    quarters = np.bincount(np.array(places) // 75, minlength=4)
    assert quarters.min() > 90, quarters  # 125 each, within four standard deviations
    assert quarters.max() < 160, quarters


@pytest.mark.parametrize("at_a_time", [1, 3, 16])
def test_more_episodes_than_at_a_time_have_their_own_returns(at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each episode has the return of its seed, in the order of the seeds, whichever runs beside it."""

    def act(observations: np.ndarray) -> np.ndarray:
        return (observations[:, 3] > 0).astype(np.int64)

    task = TaskConfig(env="CartPole-v1", max_steps=200)
    seeds = [*range(40, 20, -1), 3]
    alone = [play(task, act, [seed]) for seed in seeds]
    assert len({each.returns[0] for each in alone}) > 5
    monkeypatch.setattr(playing, "AT_A_TIME", at_a_time)
    found = play(task, act, seeds)
    assert found.returns == [each.returns[0] for each in alone]
    assert found.steps == sum(each.steps for each in alone) == sum(found.returns)


def test_a_task_without_a_limit_of_steps_is_refused() -> None:
    gym.register("Endless-v0", entry_point="gymnasium.envs.classic_control:PendulumEnv")
    try:
        with pytest.raises(ConfigError, match=r"task\.max_steps: Endless-v0 states no limit of its own"):
            make_environment(TaskConfig(env="Endless-v0"))
        make_environment(TaskConfig(env="Endless-v0", max_steps=5)).close()
    finally:
        del gym.registry["Endless-v0"]


def rewards(training: bool) -> tuple[list[float], float]:
    """Returns the rewards of an episode with an action drawn for each step, and the return that it states."""
    env: Any = make_environment(TaskConfig(env="ALE/SpaceInvaders-v5", max_steps=150), training=training)
    env.reset(seed=0)
    draw, found, info = np.random.default_rng(0), list[float](), dict[str, Any]()
    while "episode" not in info:
        _, reward, _, _, info = env.step(int(draw.integers(6)))
        found.append(float(reward))
    return found, float(info["episode"]["r"])


def test_rewards_are_clipped_in_training_alone_and_returns_never() -> None:
    pytest.importorskip("ale_py")
    whole, total = rewards(training=False)
    assert max(whole) >= 5.0
    assert sum(whole) == total
    clipped, same = rewards(training=True)
    assert clipped == np.clip(whole, -1, 1).tolist()
    assert same == total
