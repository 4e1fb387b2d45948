"""Optimizers of everything that is not an embedding table: the usual four, from torch, and Shampoo, our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import nn
from torch.distributed.tensor import DTensor

from ziggurat.core.config import Config
from ziggurat.core.errors import ConfigError
from ziggurat.optim.numbers import Beta, Decay, Rate
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.optim.shampoo.shampoo import Shampoo


class Adam(Config):
    """Adam; weight decay is added to the gradient, so that it passes through the moments (Kingma and Ba 2015)."""

    name: Literal["adam"] = "adam"

    lr: Rate = 1e-3
    """Learning rate; the schedule multiplies it."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the first and of the second moment."""

    eps: Rate = 1e-8
    """Added to the root of the second moment."""

    weight_decay: Decay = 0.0
    """L2 penalty's factor. Not applied to biases, norms and other vectors."""


class AdamW(Config):
    """Adam with decoupled weight decay: weights shrink by lr·weight_decay a step (Loshchilov and Hutter 2019)."""

    name: Literal["adamw"] = "adamw"

    lr: Rate = 1e-3
    """Learning rate; the schedule multiplies it."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the first and of the second moment."""

    eps: Rate = 1e-8
    """Added to the root of the second moment."""

    weight_decay: Decay = 0.0
    """Weights shrink by this share, times lr, a step. Not applied to biases, norms and other vectors."""


class SGD(Config):
    """Stochastic gradient descent, with classical momentum if asked for."""

    name: Literal["sgd"] = "sgd"

    lr: Rate = 1e-2
    """Learning rate; the schedule multiplies it."""

    momentum: Beta = 0.0
    """Share of the last step that is repeated."""

    weight_decay: Decay = 0.0
    """L2 penalty's factor. Not applied to biases, norms and other vectors."""


class Adagrad(Config):
    """Adagrad: steps shrink with the root of the sum of squared gradients (Duchi et al. 2011)."""

    name: Literal["adagrad"] = "adagrad"

    lr: Rate = 1e-2
    """Learning rate; the schedule multiplies it."""

    eps: Rate = 1e-10
    """Added to the root of the sum."""

    weight_decay: Decay = 0.0
    """L2 penalty's factor. Not applied to biases, norms and other vectors."""


DenseOptimizerConfig = Annotated[Adam | AdamW | SGD | Adagrad | ShampooConfig, Field(discriminator="name")]
"""The config of any dense optimizer, told apart by ``name``."""

_OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "sgd": torch.optim.SGD,
    "adagrad": torch.optim.Adagrad,
}


def build_optimizer(config: DenseOptimizerConfig, parameters: Mapping[str, nn.Parameter]) -> torch.optim.Optimizer:
    """The optimizer that ``config`` describes.

    Two groups, matrices first: weight decay is for parameters of two or more dimensions; biases, norms' scales and
    other vectors (one dimension or none) go without, because shrinking them restrains nothing that overfits. A group
    that would be empty is left out. Groups carry their parameters' names.

    Of torch's own, fused kernels are used, three to four times as fast as the plain ones on a CPU; they update each
    number on its own, so results do not depend on threads.

    Args:
        config: the settings.
        parameters: by name; their order is that of the optimizer's state. Of Shampoo, all ranks call it.

    Raises:
        ConfigError: nothing to optimize.
    """
    trainable = [(name, parameter) for name, parameter in parameters.items() if parameter.requires_grad]
    if not trainable:
        raise ConfigError(f"optimizer {config.name!r}: the model has no trainable parameters")
    matrices = [item for item in trainable if item[1].ndim >= 2]
    vectors = [item for item in trainable if item[1].ndim < 2]
    groups: list[dict[str, Any]] = []
    if matrices:
        groups.append({"params": matrices, "weight_decay": config.weight_decay})
    if vectors:
        groups.append({"params": vectors, "weight_decay": 0.0})
    settings = config.model_dump(exclude={"name", "weight_decay"})
    if isinstance(config, ShampooConfig):
        return Shampoo(groups, **settings)
    return _OPTIMIZERS[config.name](groups, **settings, fused=_may_fuse(config, [each[1] for each in trainable]))


def _may_fuse(config: DenseOptimizerConfig, parameters: Sequence[nn.Parameter]) -> bool:
    """Torch 2.13 does not know how its fused SGD and Adagrad act on parameters that are spread over ranks."""
    return isinstance(config, Adam | AdamW) or not any(isinstance(each, DTensor) for each in parameters)
