"""Atari games of the Arcade Learning Environment, whose ROMs come with ale-py; resized without OpenCV."""

from __future__ import annotations

from collections import deque
from typing import Any, cast

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.policies.config import AtariConfig

SIDE = 84
"""Rows and columns of an observation of pixels (Mnih et al. 2015)."""

Env = gym.Env[Any, Any]
Bytes = npt.NDArray[np.uint8]


def make_atari(name: str, config: AtariConfig, *, frames: bool) -> Env:
    """Returns the game with the preprocessing that the config states.

    A lost life ends no episode, and there are no random first steps: sticky actions already make episodes differ
    (arXiv 1709.06009, section 5). Frames are skipped here, since the greater of the last two is looked at.

    Raises:
        EnvironmentMismatch: ale-py is not installed.
        gymnasium.error.Error: there is no such game.
    """
    try:
        import ale_py
    except ModuleNotFoundError as error:
        raise EnvironmentMismatch(
            f"{name} needs ale-py, which is not installed", "pip install 'ziggurat[rl]'"
        ) from error
    gym.register_envs(ale_py)
    env = gym.make(
        name,
        obs_type="ram" if config.observations == "ram" else "grayscale",
        frameskip=1,
        repeat_action_probability=config.sticky,
        full_action_space=config.full_action_space,
        render_mode="rgb_array" if frames else None,
    )
    return AtariObservations(env, config)


class AtariObservations(gym.Wrapper[Any, Any, Any, Any]):
    """Repeats actions, and returns stacks of what the console's memory or screen shows then.

    Args:
        env: the game, without frames skipped.
        config: the preprocessing.
    """

    def __init__(self, env: Env, config: AtariConfig) -> None:
        super().__init__(env)
        self._config = config
        self._stack: deque[Any] = deque(maxlen=config.stack)
        if config.observations == "ram":
            self.observation_space = spaces.Box(0.0, 1.0, (128 * config.stack,), np.float32)
        else:
            self.observation_space = spaces.Box(0, 255, (config.stack, SIDE, SIDE), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seen, info = self.env.reset(seed=seed, options=options)
        first = self._observed(seen, seen)
        self._stack.extend([first] * self._config.stack)
        return self._stacked(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        total, before, seen = 0.0, None, None
        terminated = truncated = False
        info: dict[str, Any] = {}
        for _ in range(self._config.frame_skip):
            before = seen
            seen, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        self._stack.append(self._observed(seen, seen if before is None else before))
        return self._stacked(), total, terminated, truncated, info

    def _observed(self, seen: Any, before: Any) -> Any:
        if self._config.observations == "ram":
            return (np.asarray(seen, np.float32) / 255).astype(np.float32)
        return resized(np.maximum(cast("Bytes", seen), cast("Bytes", before)))

    def _stacked(self) -> Any:
        return np.concatenate(self._stack) if self._config.observations == "ram" else np.stack(self._stack)


def resized(frame_HW: Bytes, side: int = SIDE) -> Bytes:
    """Returns the frame averaged down to ``side`` × ``side``: each new pixel is the mean of the area that it covers."""
    rows, columns = (_area_weights(size, side) for size in frame_HW.shape)
    return np.rint(rows @ frame_HW.astype(np.float32) @ columns.T).astype(np.uint8)


_WEIGHTS: dict[tuple[int, int], npt.NDArray[np.float32]] = {}


def _area_weights(size: int, side: int) -> npt.NDArray[np.float32]:
    """Returns the share that each old row has in each new one, (side, size)."""
    if (size, side) not in _WEIGHTS:
        edges = np.arange(side + 1) * size / side
        old = np.arange(size)
        overlap = np.minimum(edges[1:, None], old + 1) - np.maximum(edges[:-1, None], old)
        _WEIGHTS[size, side] = (np.clip(overlap, 0, None) * side / size).astype(np.float32)
    return _WEIGHTS[size, side]
