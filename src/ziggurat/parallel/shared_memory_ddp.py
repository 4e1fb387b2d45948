"""Data parallelism over the ranks of one host, through shared memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ziggurat.parallel.shared_memory import SharedSlots, as_tensor


class SharedMemoryDDP(nn.Module):
    """Averages the gradients of a replicated module over the ranks of one host; replaces DistributedDataParallel.

    Nothing is gained by overlapping with the backward pass, so all gradients are written, summed and divided after it,
    at once. Sums run from the first rank to the last, so every rank computes the same bits.

    Args:
        module: equal on all ranks, with float32 parameters; a parameter without a gradient has none on any rank.
        slots: the shared memory of all ranks, with two slots each.
    """

    def __init__(self, module: nn.Module, slots: SharedSlots) -> None:
        super().__init__()
        self.module, self._slots = module, slots

    def forward(self, *arguments: Any) -> Any:
        return self.module(*arguments)

    @torch.no_grad()
    def average(self) -> None:
        """Replaces gradients by their means over the ranks; to be called after the backward pass."""
        slots = self._slots
        grads = [each.grad for each in self.module.parameters() if each.grad is not None]
        sizes = [grad.numel() for grad in grads]
        turn, size = slots.begin_turn(), 4 * sum(sizes)
        for part, grad in zip(as_tensor(slots.write_buffer(turn, size)).split(sizes), grads, strict=True):
            part.copy_(grad.view(-1))
        slots.publish(turn)
        slots.wait(turn)
        gradients = [as_tensor(slots.read(turn, rank, size)) for rank in range(slots.ranks)]
        mean = gradients[0] + gradients[1]
        for each in gradients[2:]:
            mean += each
        for part, grad in zip(mean.div_(slots.ranks).split(sizes), grads, strict=True):
            grad.copy_(part.view_as(grad))
