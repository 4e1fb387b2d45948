"""Data parallelism over the ranks of one host, through memory that they share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ziggurat.parallel.shared_memory import SharedSlots, floats


class SharedMemoryDDP(nn.Module):
    """A module that each of the ranks of one host has, and the means of its gradients over them.

    What DistributedDataParallel is elsewhere. There is nothing to send while the backward pass still runs, so gradients
    are written, summed and divided behind it, all at once. Sums run from the first rank to the last: every rank has the
    same bits.

    Args:
        module: equal on all ranks; parameters float32. Those without a gradient are so on all ranks.
        slots: two, of all ranks.
    """

    def __init__(self, module: nn.Module, slots: SharedSlots) -> None:
        super().__init__()
        self.module, self._slots = module, slots

    def forward(self, *arguments: Any) -> Any:
        return self.module(*arguments)

    @torch.no_grad()
    def average(self) -> None:
        """Behind the backward pass: gradients become their means over the ranks."""
        slots = self._slots
        grads = [each.grad for each in self.module.parameters() if each.grad is not None]
        sizes = [grad.numel() for grad in grads]
        turn, size = slots.begin(), 4 * sum(sizes)
        for part, grad in zip(floats(slots.written(turn, size)).split(sizes), grads, strict=True):
            part.copy_(grad.view(-1))
        slots.arrive(turn)
        slots.meet(turn)
        told = [floats(slots.read(turn, rank, size)) for rank in range(slots.ranks)]
        mean = told[0] + told[1]
        for each in told[2:]:
            mean += each
        for part, grad in zip(mean.div_(slots.ranks).split(sizes), grads, strict=True):
            grad.copy_(part.view_as(grad))
