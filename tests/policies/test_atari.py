"""The preprocessing of Atari games, and film strips."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest

from ziggurat.policies.config import AtariConfig, TaskConfig

pytest.importorskip("stable_baselines3")
pytest.importorskip("ale_py")

from ziggurat.policies.agents.environments import make_environment

GAME = "ALE/Freeway-v5"


def make(training: bool = False, **atari: Any) -> Any:
    return make_environment(TaskConfig(env=GAME, atari=AtariConfig(**atari)), training=training)


def test_frames_are_averaged_by_area() -> None:
    from ziggurat.policies.agents.atari import resized

    image = np.random.default_rng(0).integers(0, 256, (210, 160), np.uint8)
    blocks = image[:, :].reshape(105, 2, 80, 2).mean((1, 3))
    assert resized(np.kron(image, np.ones((1, 1), np.uint8)), 210).shape == (210, 210)
    halves = resized(image[:168, :], 84)  # 168 rows make 84 of two each; 160 columns overlap
    rows = image[:168].reshape(84, 2, 160).mean(1)
    edges = np.arange(85) * 160 / 84
    for column in (0, 1, 41, 83):
        first, last = edges[column], edges[column + 1]
        weights = np.clip(np.minimum(last, np.arange(160) + 1) - np.maximum(first, np.arange(160)), 0, None)
        expected = rows @ weights / weights.sum()
        assert np.abs(halves[:, column] - expected).max() <= 0.51
    assert blocks.shape == (105, 80)


def test_observations_of_both_kinds_and_stacks() -> None:
    ram = make()
    observed, _ = ram.reset(seed=1)
    assert (observed.shape, observed.dtype) == ((512,), np.float32)
    assert observed.max() <= 1.0
    np.testing.assert_array_equal(observed[:128], observed[384:])
    following, *_ = ram.step(1)
    np.testing.assert_array_equal(following[:384], observed[128:])
    assert (following[384:] != observed[384:]).any()
    pixels = make(observations="pixels", stack=2)
    observed, _ = pixels.reset(seed=1)
    assert (observed.shape, observed.dtype) == ((2, 84, 84), np.uint8)
    following, *_ = pixels.step(1)
    np.testing.assert_array_equal(following[0], observed[1])
    assert pixels.observation_space.contains(following)


def test_pixels_are_the_greater_of_the_last_two_frames() -> None:
    import ale_py
    import gymnasium as gym

    from ziggurat.policies.agents.atari import resized

    gym.register_envs(ale_py)
    game = "ALE/Asteroids-v5"
    task = TaskConfig(env=game, atari=AtariConfig(observations="pixels", stack=1, sticky=0.0))
    env = make_environment(task)
    plain: Any = gym.make(game, obs_type="grayscale", frameskip=1, repeat_action_probability=0.0)
    first, _ = plain.reset(seed=0)
    np.testing.assert_array_equal(env.reset(seed=0)[0][0], resized(first))
    differ = 0
    for step in range(15):
        action = step % 6
        frames = [plain.step(action)[0] for _ in range(4)]
        seen = env.step(action)[0][0]
        np.testing.assert_array_equal(seen, resized(np.maximum(frames[2], frames[3])))
        differ += bool((seen != resized(frames[3])).any())
    assert differ == 15  # this game draws half of its bodies in every other frame


def test_equal_seeds_play_equal_games_and_frames_are_skipped() -> None:
    def returns(seed: int, **atari: Any) -> list[np.ndarray]:
        env = make(**atari)
        env.reset(seed=seed)
        return [env.step(1)[0] for _ in range(20)]

    np.testing.assert_array_equal(returns(3), returns(3))
    assert (np.array(returns(3)) != np.array(returns(4))).any()  # sticky actions draw
    single = make(frame_skip=1, stack=1, sticky=0.0)
    single.reset(seed=0)
    last = [single.step(1)[0] for _ in range(4)][-1]
    skipping = make(frame_skip=4, stack=1, sticky=0.0)
    skipping.reset(seed=0)
    np.testing.assert_array_equal(skipping.step(1)[0], last)


def test_a_film_has_frames_of_the_episode() -> None:
    from PIL import Image

    from ziggurat.policies.agents.film import film, png

    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(png(image)))), image)
    task = TaskConfig(env="CartPole-v1", max_steps=40)
    still = film(task, lambda observed: np.array([int(observed[0][2] + observed[0][3] > 0)]), 5)
    assert still.steps == still.total == 40
    assert len(still.frames) == 8
    assert [each.step for each in still.frames] == sorted({each.step for each in still.frames})
    assert still.frames[0].step == 0
    assert still.frames[-1].step == 40
    assert all(len(each.lines) == 3 for each in still.frames)
    atari = film(TaskConfig(env=GAME, max_steps=10), lambda observed: np.array([1]), 5)
    shown = Image.open(io.BytesIO(base64.b64decode(atari.frames[-1].png)))
    assert shown.size == (160, 210)
