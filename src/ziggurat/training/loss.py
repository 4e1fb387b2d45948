"""The training loss, and its sums over the steps between two log lines.

Shape legend: B rows, F features, D embedding width, T tasks.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from ziggurat.core.batch import Batch


@dataclass(slots=True)
class LossWindow:
    """Sums over the steps since the last log line; they stay on the device until they are read."""

    loss: Tensor
    weight: Tensor
    positives: Tensor
    rows: int = 0
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def on(cls, device: torch.device) -> LossWindow:
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return cls(zero.clone(), zero.clone(), zero.clone())

    def add(self, loss: Tensor, weight: Tensor, batch: Batch) -> None:
        """Adds a step: the loss and weight that :func:`weighted_loss` returned for ``batch``."""
        rate_B = batch.labels_BT.mean(dim=1)
        self.loss += loss.detach()
        self.weight += weight
        self.positives += rate_B.sum() if batch.weights_B is None else (rate_B * batch.weights_B).sum()
        self.rows += batch.size

    def over_ranks(self) -> None:
        """Replaces the sums by those over the windows of all ranks, which call it together."""
        if dist.get_world_size() > 1:
            sums = torch.stack([self.loss, self.weight, self.positives, torch.full_like(self.loss, self.rows)])
            dist.all_reduce(sums)
            self.loss, self.weight, self.positives = sums[:3]
            self.rows = int(sums[3])

    def figures(self) -> dict[str, float]:
        """Returns mean loss, NE (against the window's own base rate) and rows per second; empty if the weight is 0."""
        weight = float(self.weight)
        if weight == 0:
            return {}
        loss, rate = float(self.loss) / weight, float(self.positives) / weight
        entropy = 0.0 if rate in {0.0, 1.0} else -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))
        speed = self.rows / (time.perf_counter() - self.started)
        return {"loss": loss, "ne": loss / entropy if entropy else math.nan, "rows_per_s": speed}


def weighted_loss(logits_BT: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns the weighted sum over rows of binary cross-entropy (mean over tasks), and the sum of the weights."""
    losses_BT = F.binary_cross_entropy_with_logits(logits_BT, batch.labels_BT, reduction="none")
    loss_B = losses_BT.mean(dim=1)
    if batch.weights_B is None:
        return loss_B.sum(), torch.tensor(float(batch.size), device=loss_B.device)
    return (loss_B * batch.weights_B).sum(), batch.weights_B.sum()
