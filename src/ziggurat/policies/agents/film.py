"""Frames of an episode: what the environment renders, or lines that show where its bodies are."""

from __future__ import annotations

import base64
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.policies.agents.environments import make_environment
from ziggurat.policies.agents.play import Act
from ziggurat.policies.config import TaskConfig
from ziggurat.policies.film_record import Film, Frame, Line

FRAMES = 8


@dataclass(slots=True)
class _Kept:
    """Frames of an episode whose length is not known before: when there are too many, every other one is dropped."""

    frames: list[Frame]
    every: int = 1

    def add(self, step: int, frame: Frame) -> None:
        self.frames.append(frame)
        if len(self.frames) >= 2 * FRAMES:
            self.frames, self.every = self.frames[::2], 2 * self.every


def film(task: TaskConfig, act: Act, seed: int) -> Film:
    """Plays the episode with this seed, and returns frames of it, spread evenly, with what it brought.

    Environments that need a library for rendering which is not installed are drawn as lines, where it is known how.
    """
    try:
        env = make_environment(task, frames=True)
        observed, _ = env.reset(seed=seed)
        _frame(env, 0)
    except (EnvironmentMismatch, gym.error.Error, ImportError, RuntimeError, AttributeError):
        env = make_environment(task)  # without rendering
        observed, _ = env.reset(seed=seed)
    kept, step, total, ended = _Kept([]), 0, 0.0, False
    try:
        while not ended:
            if step % kept.every == 0 and (frame := _frame(env, step)) is not None:
                kept.add(step, frame)
            observed, _, terminated, truncated, info = env.step(act(np.asarray(observed)[None])[0])
            step += 1
            ended = terminated or truncated
            if ended:
                total = float(info["episode"]["r"])
        if (frame := _frame(env, step)) is not None:
            kept.frames.append(frame)
    finally:
        env.close()
    places = np.unique(np.linspace(0, len(kept.frames) - 1, FRAMES).round().astype(int)) if kept.frames else []
    return Film(seed, step, total, tuple(kept.frames[int(place)] for place in places))


def _frame(env: gym.Env[Any, Any], step: int) -> Frame | None:
    """Returns what the environment looks like, or None if that cannot be shown."""
    inner: Any = env.unwrapped
    drawn = _lines(inner)
    if drawn is not None:
        return Frame(step, "", drawn)
    if env.render_mode != "rgb_array":
        return None
    image = env.render()
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3:
        return None
    return Frame(step, base64.b64encode(png(image)).decode(), ())


def _lines(inner: Any) -> tuple[Line, ...] | None:
    """Returns the bodies of an environment as lines, in metres; None if it is not known how."""
    kind, state = type(inner).__name__, getattr(inner, "state", None)
    match kind:
        case "CartPoleEnv" if state is not None:
            x, _, angle, _ = (float(each) for each in state)
            tip = (x + float(np.sin(angle)), float(np.cos(angle)))
            return (Line(-2.4, 0.0, 2.4, 0.0, 0.02), Line(x - 0.25, 0.0, x + 0.25, 0.0, 0.2), Line(x, 0.1, *tip, 0.08))
        case "AcrobotEnv" if state is not None:
            first, second = float(state[0]), float(state[0] + state[1])
            elbow = (float(np.sin(first)), -float(np.cos(first)))
            tip = (elbow[0] + float(np.sin(second)), elbow[1] - float(np.cos(second)))
            return (Line(-2.1, 1.0, 2.1, 1.0, 0.02), Line(0.0, 0.0, *elbow, 0.12), Line(*elbow, *tip, 0.12))
        case "PendulumEnv" if state is not None:
            angle = float(state[0])
            return (
                Line(0.0, 0.0, float(-np.sin(angle)), float(np.cos(angle)), 0.15),
                Line(-1.2, -1.1, 1.2, -1.1, 0.02),
            )
        case _:
            return _of_mujoco(inner) if hasattr(inner, "model") and hasattr(inner, "data") else None


def _of_mujoco(inner: Any) -> tuple[Line, ...] | None:
    """Returns the capsules and spheres of a MuJoCo model as seen from the side, around its first body."""
    import mujoco

    kinds: Any = mujoco.mjtGeom  # pyright: ignore[reportAttributeAccessIssue] - made by its C++

    model, data = inner.model, inner.data
    centre = float(data.xpos[1][0]) if len(data.xpos) > 1 else 0.0
    found: list[Line] = [Line(-1.5, 0.0, 1.5, 0.0, 0.02)]
    for geom in range(model.ngeom):
        kind, size = int(model.geom_type[geom]), model.geom_size[geom]
        x, z = float(data.geom_xpos[geom][0]) - centre, float(data.geom_xpos[geom][2])
        along: npt.NDArray[np.float64] = np.zeros(3)
        if kind in (int(kinds.mjGEOM_CAPSULE), int(kinds.mjGEOM_CYLINDER)):
            along = data.geom_xmat[geom].reshape(3, 3)[:, 2] * size[1]
        elif kind != int(kinds.mjGEOM_SPHERE):
            continue
        dx, dz = float(along[0]), float(along[2])
        found.append(Line(x - dx, z - dz, x + dx, z + dz, 2 * float(size[0])))
    return tuple(found) if len(found) > 1 else None


def png(image_HWC: npt.NDArray[np.uint8]) -> bytes:
    """Returns an RGB image as PNG, a format that needs nothing but zlib (ISO/IEC 15948, filter 0)."""
    height, width, channels = image_HWC.shape
    assert channels == 3, channels
    rows = np.concatenate([np.zeros((height, 1), np.uint8), image_HWC.reshape(height, 3 * width)], 1)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
