"""Grafting: each block steps in Shampoo's direction, with the step size of another optimizer, the graft.

Anil et al. 2020, section 5.2. Before Shampoo starts, a step is the graft's alone, which equals ``torch.optim``'s
optimizer of that name up to rounding.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ziggurat.core.config import Config
from ziggurat.optim.numbers import Beta, Rate


class NoGraft(Config):
    """Keeps Shampoo's own step sizes."""

    name: Literal["none"] = "none"


class SGDGraft(Config):
    """The step size is the norm of the gradient."""

    name: Literal["sgd"] = "sgd"


class AdagradGraft(Config):
    """The step size is the norm of G/(√ΣG² + eps)."""

    name: Literal["adagrad"] = "adagrad"

    eps: Rate = 1e-10
    """Added to the root."""


class RMSpropGraft(Config):
    """The step size is the norm of G/(√v + eps), with v the moving mean of G²."""

    name: Literal["rmsprop"] = "rmsprop"

    beta2: Beta = 0.99
    """Decay of v."""

    eps: Rate = 1e-8
    """Added to the root."""


class AdamGraft(Config):
    """The step size is the norm of G/(√v̂ + eps), with v̂ the bias-corrected moving mean of G²."""

    name: Literal["adam"] = "adam"

    beta2: Beta = 0.999
    """Decay of v."""

    eps: Rate = 1e-8
    """Added to the root."""


GraftConfig = Annotated[NoGraft | SGDGraft | AdagradGraft | RMSpropGraft | AdamGraft, Field(discriminator="name")]
"""The config of any graft, discriminated by ``name``."""


def has_moment(graft: GraftConfig) -> bool:
    """Returns whether the graft keeps an elementwise second moment."""
    return not isinstance(graft, NoGraft | SGDGraft)


def weights(graft: GraftConfig) -> tuple[float, float]:
    """Returns the factors of the old second moment and of G² in an update of the second moment."""
    match graft:
        case AdamGraft() | RMSpropGraft():
            return graft.beta2, 1 - graft.beta2
        case _:
            return 1.0, 1.0


def correction(graft: GraftConfig, step: int) -> float:
    """Returns the bias correction by which the second moment is divided at step ``step``, counted from 1."""
    return 1 - graft.beta2**step if isinstance(graft, AdamGraft) else 1.0


def eps(graft: GraftConfig) -> float:
    """Returns the constant added to the root of the second moment."""
    return graft.eps if isinstance(graft, AdagradGraft | RMSpropGraft | AdamGraft) else 0.0
