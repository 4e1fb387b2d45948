"""What the ranks tell each other every step: how many rows they have, of what weight, and whether one wants to stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from ziggurat.core.errors import LostRank
from ziggurat.parallel.shared_memory import SharedSlots

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepReport:
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
        slots: of ranks that share memory; None: over the process group.
    """

    def __init__(self, rows: int, weight: float, stopping: bool, slots: SharedSlots | None = None) -> None:
        own = torch.tensor([float(rows), weight, float(stopping)], dtype=torch.float64)
        self._sums, self._slots, self._turn, self._work = own, slots, 0, None
        if slots is not None:
            self._turn = slots.begin()
            torch.frombuffer(slots.written(self._turn, own.nbytes), dtype=own.dtype).copy_(own)
            slots.arrive(self._turn)
        elif dist.get_world_size() > 1:
            self._work = dist.all_reduce(self._sums, async_op=True)

    def step(self) -> StepReport:
        """The sums; waits for the slowest rank."""
        if self._slots is not None:
            slots, sums = self._slots, self._sums
            slots.meet(self._turn)
            told = [slots.read(self._turn, rank, sums.nbytes) for rank in range(slots.ranks)]
            self._sums = torch.stack([torch.frombuffer(each, dtype=sums.dtype) for each in told]).sum(0)
        elif self._work is not None:
            self._work.wait()
        rows, weight, stopping = self._sums.tolist()
        return StepReport(rows, weight, stopping > 0)


@contextlib.contextmanager
def _patient_group() -> Generator[dist.ProcessGroup]:
    """Of all ranks; waits as long as preparing data may take.

    Ended when it is left: a thread of gloo that lets go of a tensor while Python shuts down takes the process with it.
    """
    group = cast("dist.ProcessGroup", dist.new_group(timeout=timedelta(days=30), backend="gloo"))
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def from_first(work: Callable[[], T]) -> T:
    """What ``work`` returns on the first rank, where alone it is called; the others wait for it, however long.

    Raises:
        LostRank: on the other ranks, where it failed on the first, which raises its own error.
    """
    if dist.get_world_size() == 1:
        return work()
    told: list[Any] = [None, None]
    with _patient_group() as group:
        try:
            if dist.get_rank() == 0:
                told[1] = work()
        except BaseException as error:
            told[0] = f"{type(error).__name__}: {error}"
            raise
        finally:
            dist.broadcast_object_list(told, src=0, group=group)
    if told[0] is not None:
        raise LostRank(f"rank {dist.get_rank()}: rank 0 failed with {told[0]}", "look at what it says")
    return told[1]
