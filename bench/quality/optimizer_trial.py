"""One training with one optimizer, and the optimizers that are compared."""

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
OFTEN = 10
"""Steps from roots to roots."""
LARGE = 256
"""Numbers in a block's dimension, at most; peers leave larger dimensions out, or cut them."""
WARMUP = 0.05
"""Of the steps; then the learning rate stays, so that no end is nearer to one optimizer than to another."""

Make = Callable[[dict[str, nn.Parameter], "Setting"], torch.optim.Optimizer]


@dataclass(frozen=True, slots=True)
class Setting:
    """What is tuned: the same for all.

    Attributes:
        lr: learning rate.
        beta1, beta2: decay of the gradient's moving mean, and of second moments.
        weight_decay: decoupled.
    """

    lr: float
    beta1: float
    beta2: float
    weight_decay: float

    @classmethod
    def drawn(cls, number: int) -> Setting:
        """The ``number``-th, the same for every optimizer, of a sequence that fills the space evenly (Roberts 2018)."""
        lr, beta1, beta2, decay = (math.modf(0.5 + (number + 1) * _TURN**-power)[0] for power in (1, 2, 3, 4))
        return cls(10 ** (-3.7 + 2 * lr), (0.8, 0.9, 0.95)[int(3 * beta1)], (0.95, 0.99, 0.999)[int(3 * beta2)],
                   10 ** (-5 + 4 * decay))  # fmt: skip


_TURN = 1.1673039782614187
"""The root of x⁵ = x + 1, for four dimensions."""


def _ours(**settings: Any) -> Make:
    """With AdamW of the same setting for a graft, as it is meant; second moments of rows and columns, and those in the
    eigenbasis, keep the default, as the guide has it."""

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
    "roots": _ours(form="roots", max_preconditioner_dim=LARGE),
    "often": _ours(precondition_frequency=OFTEN, statistics_frequency=1, max_preconditioner_dim=LARGE),
    "peer_shampoo": _peer(
        "ScalableShampoo", decoupled_weight_decay=True, decoupled_learning_rate=False,
        block_size=LARGE, start_preconditioning_step=OFTEN,
        preconditioning_compute_steps=2 * OFTEN,
    ),
    "peer_soap": _peer("SOAP", precondition_frequency=OFTEN, max_precondition_dim=LARGE),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
    """What came of a training.

    Attributes:
        losses: of the validation rows, evaluation by evaluation; cut where one is no number.
        seconds: of the processor, that training steps until each took, evaluations left out.
    """

    losses: list[float]
    seconds: list[float]

    @property
    def best(self) -> float:
        """Infinite where there is none."""
        return min(self.losses, default=math.inf)

    def reached(self, loss: float) -> int | None:
        """Number of the first evaluation that is no worse, from 1; None: none is."""
        return next((number for number, each in enumerate(self.losses, 1) if each <= loss), None)


@cache
def _tasks(data: Path | None, quick: bool) -> dict[str, Task]:
    return {task.name: task for task in tasks(data, quick)}


def trained(data: Path | None, quick: bool, task: str, optimizer: str, number: int, seed: int) -> Curve:
    """What comes of a setting, in a process of its own with one thread; nothing where it diverges."""
    torch.set_num_threads(1)
    try:
        return curve(_tasks(data, quick)[task], optimizer, Setting.drawn(number), seed)
    except DivergedError:
        return Curve([], [])


def curve(task: Task, optimizer: str, setting: Setting, seed: int) -> Curve:
    """Train, and evaluate now and then."""
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
