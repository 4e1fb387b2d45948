"""One training with one optimizer, and the optimizers that are compared."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.quality.optimizer_tasks import Task
from ziggurat.optim.shampoo.shampoo import Shampoo

PEERS = Path(__file__).resolve().parents[2] / ".peers-optimizers"
RECOMMENDED, OFTEN = 100, 10
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
        """The ``number``-th, the same for every optimizer."""
        draw = np.random.default_rng([17, number])
        return cls(
            float(10 ** draw.uniform(-3.7, -1.5)),
            float(draw.choice([0.8, 0.9, 0.95])),
            float(draw.choice([0.95, 0.99, 0.999])),
            float(10 ** draw.uniform(-5, -1)),
        )


def _ours(frequency: int, form: str = "roots") -> Make:
    def make(parameters: dict[str, nn.Parameter], setting: Setting) -> torch.optim.Optimizer:
        return Shampoo(
            parameters.items(), lr=setting.lr, betas=(setting.beta1, setting.beta2), weight_decay=setting.weight_decay,
            precondition_frequency=frequency, start=OFTEN, max_preconditioner_dim=256, form=form,
        )  # fmt: skip

    return make


def _adamw(parameters: dict[str, nn.Parameter], setting: Setting) -> torch.optim.Optimizer:
    betas = (setting.beta1, setting.beta2)
    return torch.optim.AdamW(parameters.values(), lr=setting.lr, betas=betas, weight_decay=setting.weight_decay)


def _peer(name: str, **more: Any) -> Make:
    def make(parameters: dict[str, nn.Parameter], setting: Setting) -> torch.optim.Optimizer:
        if str(PEERS) not in sys.path:
            sys.path.append(str(PEERS))
        kind = getattr(importlib.import_module("pytorch_optimizer"), name)
        betas = (setting.beta1, setting.beta2)
        return kind(list(parameters.values()), lr=setting.lr, betas=betas, weight_decay=setting.weight_decay, **more)

    return make


OPTIMIZERS: Mapping[str, Make] = {
    "adamw": _adamw,
    "shampoo": _ours(RECOMMENDED),
    "shampoo_often": _ours(OFTEN),
    "eigenbasis": _ours(OFTEN, "eigenbasis"),
    "peer_shampoo": _peer(
        "ScalableShampoo", decoupled_weight_decay=True, decoupled_learning_rate=False, block_size=256,
        start_preconditioning_step=OFTEN, preconditioning_compute_steps=RECOMMENDED,
    ),
    "peer_soap": _peer("SOAP", precondition_frequency=OFTEN, max_precondition_dim=256),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Curve:
    """What came of a training.

    Attributes:
        losses: of the validation rows, evaluation by evaluation; cut where one is no number.
        seconds: of training steps until each, evaluations left out.
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


def curve(task: Task, optimizer: str, setting: Setting, seed: int) -> Curve:
    """Train, and evaluate now and then."""
    learner = task.learner(seed)
    dense = OPTIMIZERS[optimizer](learner.dense, setting)
    rising = torch.optim.lr_scheduler.LambdaLR(dense, lambda step: min(1.0, (step + 1) / max(1, WARMUP * task.steps)))
    batches, losses, times, seconds = learner.batches(seed), list[float](), list[float](), 0.0
    for step in range(1, task.steps + 1):
        inputs, labels = next(batches)
        started = time.perf_counter()
        for each in (dense, learner.others):
            if each is not None:
                each.zero_grad()
        loss = learner.loss(inputs, labels)
        if not loss.isfinite():
            break
        loss.backward()
        for each in (dense, learner.others):
            if each is not None:
                each.step()
        rising.step()
        seconds += time.perf_counter() - started
        if step % task.every == 0:
            found = learner.validation()
            if not math.isfinite(found):
                break
            losses.append(found)
            times.append(seconds)
    return Curve(losses, times)
