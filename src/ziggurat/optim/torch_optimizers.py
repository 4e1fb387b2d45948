"""The usual four dense optimizers, from torch.

Their fused kernels are three to four times as fast as the plain ones on a CPU. They update each number on its own, so
results do not depend on the number of threads.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch.distributed.tensor import DTensor

from ziggurat.optim.dense_optimizer import DenseOptimizerSettings, ParameterGroup
from ziggurat.optim.numbers import Beta, Decay, Rate


class Adam(DenseOptimizerSettings):
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

    def make(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        return torch.optim.Adam(groups, **self.settings(), fused=True)


class AdamW(DenseOptimizerSettings):
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

    def make(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, **self.settings(), fused=True)


class SGD(DenseOptimizerSettings):
    """Stochastic gradient descent, with classical momentum if asked for."""

    name: Literal["sgd"] = "sgd"

    lr: Rate = 1e-2
    """Learning rate; the schedule multiplies it."""

    momentum: Beta = 0.0
    """Share of the last step that is repeated."""

    weight_decay: Decay = 0.0
    """L2 penalty's factor. Not applied to biases, norms and other vectors."""

    def make(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, **self.settings(), fused=not _is_spread(groups))


class Adagrad(DenseOptimizerSettings):
    """Adagrad: steps shrink with the root of the sum of squared gradients (Duchi et al. 2011)."""

    name: Literal["adagrad"] = "adagrad"

    lr: Rate = 1e-2
    """Learning rate; the schedule multiplies it."""

    eps: Rate = 1e-10
    """Added to the root of the sum."""

    weight_decay: Decay = 0.0
    """L2 penalty's factor. Not applied to biases, norms and other vectors."""

    def make(self, groups: list[ParameterGroup]) -> torch.optim.Optimizer:
        # torch has a fused Adagrad on the CPU only; None lets it choose its foreach kernels on a GPU.
        fused = None if _on_gpu(groups) else not _is_spread(groups)
        return torch.optim.Adagrad(groups, **self.settings(), fused=fused)


def _is_spread(groups: list[ParameterGroup]) -> bool:
    """Whether ranks share a parameter: torch 2.13 cannot apply its fused SGD and Adagrad to those."""
    return any(isinstance(parameter, DTensor) for group in groups for _, parameter in group["params"])


def _on_gpu(groups: list[ParameterGroup]) -> bool:
    return any(parameter.is_cuda for group in groups for _, parameter in group["params"])
