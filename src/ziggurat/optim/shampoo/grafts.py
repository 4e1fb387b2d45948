"""Whose step sizes Shampoo takes: another optimizer's, block by block, in a direction of its own.

Anil et al. 2020, section 5.2. A graft alone, before Shampoo starts, is that optimizer: ``torch.optim``'s to rounding.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from ziggurat.core.config import Config
from ziggurat.optim.numbers import Beta, Rate


class NoGraft(Config):
    """Shampoo's own step sizes."""

    name: Literal["none"] = "none"


class SGDGraft(Config):
    """The gradient's norm."""

    name: Literal["sgd"] = "sgd"


class AdagradGraft(Config):
    """Of G/(√ΣG² + eps)."""

    name: Literal["adagrad"] = "adagrad"

    eps: Rate = 1e-10
    """Added to the root."""


class RMSpropGraft(Config):
    """Of G/(√v + eps), v the moving mean of G²."""

    name: Literal["rmsprop"] = "rmsprop"

    beta2: Beta = 0.99
    """Decay of v."""

    eps: Rate = 1e-8
    """Added to the root."""


class AdamGraft(Config):
    """Of G/(√v̂ + eps), v̂ the moving mean of G² without the zeros it began with."""

    name: Literal["adam"] = "adam"

    beta2: Beta = 0.999
    """Decay of v."""

    eps: Rate = 1e-8
    """Added to the root."""


GraftConfig = Annotated[NoGraft | SGDGraft | AdagradGraft | RMSpropGraft | AdamGraft, Field(discriminator="name")]
"""Any of them, told apart by ``name``."""


def has_moment(graft: GraftConfig) -> bool:
    """Whether it keeps a second moment of each number."""
    return not isinstance(graft, NoGraft | SGDGraft)


def weights(graft: GraftConfig) -> tuple[float, float]:
    """What the second moment keeps of itself, and takes of G²."""
    match graft:
        case AdamGraft() | RMSpropGraft():
            return graft.beta2, 1 - graft.beta2
        case _:
            return 1.0, 1.0


def correction(graft: GraftConfig, step: int) -> float:
    """By what the second moment is to be divided at step ``step``, from 1."""
    return 1 - graft.beta2**step if isinstance(graft, AdamGraft) else 1.0


def eps(graft: GraftConfig) -> float:
    """Added to the root of the second moment."""
    return graft.eps if isinstance(graft, AdagradGraft | RMSpropGraft | AdamGraft) else 0.0
