"""A film strip of an episode, as it is stored."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A body, drawn as a thick line.

    Attributes:
        x1, y1, x2, y2: its ends, in metres; y points upwards.
        width: its width.
    """

    x1: float
    y1: float
    x2: float
    y2: float
    width: float


@dataclass(frozen=True, slots=True)
class Frame:
    """What an environment looked like.

    Attributes:
        step: steps since the episode began.
        png: an image in base64; empty if there is none.
        lines: its bodies; empty if there is an image.
    """

    step: int
    png: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Film:
    """Frames of an episode.

    Attributes:
        seed: the seed of its environment.
        steps: its steps.
        total: its return.
        frames: frames, spread evenly; none if the environment cannot be shown here.
    """

    seed: int
    steps: int
    total: float
    frames: tuple[Frame, ...]
