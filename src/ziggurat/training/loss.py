"""The training loss, and its sums over the steps between two log lines.

Shape legend: B rows, F features, D embedding width, T tasks, C columns of all tasks.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from ziggurat.core.batch import Batch
from ziggurat.objectives.outputs import Outputs


@dataclass(slots=True)
class LossWindow:
    """Sums over the steps since the last log line; they stay on the device until they are read.

    ``positives`` counts labels as rates, and has a meaning if all are.
    """

    loss: Tensor
    weight: Tensor
    positives: Tensor
    rates: bool = True
    rows: int = 0
    started: float = field(default_factory=time.perf_counter)

    @classmethod
    def on(cls, device: torch.device, rates: bool = True) -> LossWindow:
        """Returns sums of 0; ``rates`` says whether all labels are rates whose rows count alike."""
        zero = torch.zeros((), dtype=torch.float64, device=device)
        return cls(zero.clone(), zero.clone(), zero.clone(), rates)

    def add(self, loss: Tensor, weight: Tensor, batch: Batch) -> None:
        """Adds a step: the loss and weight that :func:`weighted_loss` returned for ``batch``."""
        self.loss += loss.detach()
        self.weight += weight
        self.rows += batch.size
        if self.rates:
            rate_B = batch.labels_BT.mean(dim=1)
            self.positives += rate_B.sum() if batch.weights_B is None else (rate_B * batch.weights_B).sum()

    def over_ranks(self) -> None:
        """Replaces the sums by those over the windows of all ranks, which call it together."""
        if dist.get_world_size() > 1:
            sums = torch.stack([self.loss, self.weight, self.positives, torch.full_like(self.loss, self.rows)])
            dist.all_reduce(sums)
            self.loss, self.weight, self.positives = sums[:3]
            self.rows = int(sums[3])

    def figures(self) -> dict[str, float]:
        """Returns mean loss, rows per second and, of rates, NE (against the window's own base rate); empty if the
        weight is 0."""
        weight = float(self.weight)
        if weight == 0:
            return {}
        loss, rate = float(self.loss) / weight, float(self.positives) / weight
        speed = self.rows / (time.perf_counter() - self.started)
        if not self.rates:
            return {"loss": loss, "rows_per_s": speed}
        entropy = 0.0 if rate in {0.0, 1.0} else -(rate * math.log(rate) + (1 - rate) * math.log1p(-rate))
        return {"loss": loss, "ne": loss / entropy if entropy else math.nan, "rows_per_s": speed}


def weighted_loss(outputs: Outputs, columns_BC: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Returns the weighted sum over rows of the loss, and the sum of the weights.

    A row's loss is the mean over its labels, each by its ``loss_weight`` and, of events out of trials, by the row's
    trials in units of their mean.
    """
    loss_B, weights_B = outputs.row_losses(columns_BC, batch.labels_BT, batch.counts_BT), batch.row_weights
    if weights_B is None:
        return loss_B.sum(), torch.tensor(float(batch.size), device=loss_B.device)
    return (loss_B * weights_B).sum(), weights_B.sum()
