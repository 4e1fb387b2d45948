"""A training with one optimizer, and the optimizers to compare."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bench.quality.optimizer_tasks import Task, tasks
from ziggurat.core.errors import DivergedError
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.optim.shampoo.shampoo import Shampoo

PEERS_FOLDER = Path(__file__).resolve().parents[2] / ".peers-optimizers"
DEFAULTS = ShampooConfig()
ROOTS_INTERVAL = 10
"""The steps between computations of the roots."""
MAX_BLOCK = 256
"""The largest dimension of a block; peers skip or split larger dimensions."""
WARMUP = 0.05
"""The share of warm-up steps; then the learning rate is constant, so that no schedule favours an optimizer."""

Make = Callable[[dict[str, nn.Parameter], "Setting"], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class Setting:
    """The tuned hyperparameters, which are the same for all optimizers.

    Attributes:
        lr: the learning rate.
        beta1, beta2: the decay rates of the gradient's moving average and of the second moments.
        weight_decay: the decoupled weight decay.
    """

    lr: float
    beta1: float
    beta2: float
    weight_decay: float

    @classmethod
    def drawn(cls, number: int) -> Setting:
        """Returns the setting with this number of a low-discrepancy sequence (Roberts 2018)."""
        lr, beta1, beta2, decay = (
            math.modf(0.5 + (number + 1) * _GENERALISED_GOLDEN_RATIO**-power)[0] for power in (1, 2, 3, 4)
        )
        return cls(10 ** (-3.7 + 2 * lr), (0.8, 0.9, 0.95)[int(3 * beta1)], (0.95, 0.99, 0.999)[int(3 * beta2)],
                   10 ** (-5 + 4 * decay))  # fmt: skip


_GENERALISED_GOLDEN_RATIO = 1.1673039782614187
"""The root of x⁵ = x + 1, for four dimensions."""


def _ours(**settings: Any) -> Make:
    """Returns a constructor of Shampoo with AdamW of the same setting as its graft.

    The decay of Shampoo's own second moments has the default value, as the guide recommends.
    """

    def make(parameters: dict[str, nn.Parameter], setting: Setting) -> torch.optim.Optimizer:
        graft = {"name": "adam", "beta2": setting.beta2}
        return Shampoo(
            parameters.items(), lr=setting.lr, betas=(setting.beta1, DEFAULTS.betas[1]), graft=graft,
            weight_decay=setting.weight_decay, **settings,
        )  # fmt: skip

    return make


def _adamw(parameters: dict[str, nn.Parameter], setting: Setting) -> torch.optim.Optimizer:
    betas = (setting.beta1, setting.beta2)
    return torch.optim.AdamW(parameters.values(), lr=setting.lr, betas=betas, weight_decay=setting.weight_decay)


def _peer(name: str, **more: Any) -> Make:
    def make(parameters: dict[str, nn.Parameter], setting: Setting) -> torch.optim.Optimizer:
        if str(PEERS_FOLDER) not in sys.path:
            sys.path.append(str(PEERS_FOLDER))
        kind = getattr(importlib.import_module("pytorch_optimizer"), name)
        betas = (setting.beta1, setting.beta2)
        return kind(list(parameters.values()), lr=setting.lr, betas=betas, weight_decay=setting.weight_decay, **more)

    return make


OPTIMIZERS: Mapping[str, Make] = {
    "adamw": _adamw,
    "shampoo": _ours(),
    "roots": _ours(form="roots", max_preconditioner_dim=MAX_BLOCK),
    "often": _ours(precondition_frequency=ROOTS_INTERVAL, statistics_frequency=1, max_preconditioner_dim=MAX_BLOCK),
    "peer_shampoo": _peer(
        "ScalableShampoo", decoupled_weight_decay=True, decoupled_learning_rate=False,
        block_size=MAX_BLOCK, start_preconditioning_step=ROOTS_INTERVAL,
        preconditioning_compute_steps=2 * ROOTS_INTERVAL,
    ),
    "peer_soap": _peer("SOAP", precondition_frequency=ROOTS_INTERVAL, max_precondition_dim=MAX_BLOCK),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
    """The validation losses of a training.

    Attributes:
        losses: the loss of each evaluation, up to the first that is not finite.
        seconds: the processor time of all training steps up to each evaluation.
    """

    losses: list[float]
    seconds: list[float]

    @property
    def best(self) -> float:
        """The smallest loss; infinite if there is none."""
        return min(self.losses, default=math.inf)

    def reached(self, loss: float) -> int | None:
        """Returns the number of the first evaluation, from 1, whose loss is at most ``loss``, or None."""
        return next((number for number, each in enumerate(self.losses, 1) if each <= loss), None)


@cache
def _tasks(data: Path | None, quick: bool) -> dict[str, Task]:
    return {task.name: task for task in tasks(data, quick)}


def trained(data: Path | None, quick: bool, task: str, optimizer: str, number: int, seed: int) -> Curve:
    """Trains with one setting on one thread, and returns the curve; it is empty if the training diverges."""
    torch.set_num_threads(1)
    try:
        return curve(_tasks(data, quick)[task], optimizer, Setting.drawn(number), seed)
    except DivergedError:
        return Curve([], [])


def curve(task: Task, optimizer: str, setting: Setting, seed: int) -> Curve:
    """Trains a task and evaluates it regularly."""
    learner = task.learner(seed)
    dense = OPTIMIZERS[optimizer](learner.dense, setting)
    rising = torch.optim.lr_scheduler.LambdaLR(dense, lambda step: min(1.0, (step + 1) / max(1, WARMUP * task.steps)))
    batches, losses, times, seconds = learner.batches(seed), list[float](), list[float](), 0.0
    for step in range(1, task.steps + 1):
        batch = next(batches)
        started = time.process_time()
        for each in (dense, learner.others):
            if each is not None:
                each.zero_grad()
        loss = learner.loss(*batch)
        if not loss.isfinite():
            break
        loss.backward()
        for each in (dense, learner.others):
            if each is not None:
                each.step()
        rising.step()
        seconds += time.process_time() - started
        if step % task.every == 0:
            found = learner.validation()
            if not math.isfinite(found):
                break
            losses.append(found)
            times.append(seconds)
    return Curve(losses, times)
