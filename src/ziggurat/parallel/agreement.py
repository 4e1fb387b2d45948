"""What the ranks tell each other every step: how many rows they have, of what weight, and whether one wants to stop."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class Step:
    """A step of all ranks together.

    Attributes:
        rows: in its global batch.
        weight: sum of their weights.
        stopping: whether any rank wants training to stop.
    """

    rows: float
    weight: float
    stopping: bool


class Agreement:
    """A sum over the ranks that is on its way while they compute; on the CPU, so that no device waits for it.

    Args:
        rows: of this rank's part of the batch.
        weight: their sum of weights.
        stopping: whether this rank wants to stop.
    """

    def __init__(self, rows: int, weight: float, stopping: bool) -> None:
        self._sums = torch.tensor([float(rows), weight, float(stopping)], dtype=torch.float64)
        self._work = dist.all_reduce(self._sums, async_op=True) if dist.get_world_size() > 1 else None

    def step(self) -> Step:
        """The sums; waits for the slowest rank."""
        if self._work is not None:
            self._work.wait()
        rows, weight, stopping = self._sums.tolist()
        return Step(rows, weight, stopping > 0)
