"""What ranks exchange every step: their rows, the rows' total weight, and whether a rank wants to stop."""

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
    """The totals of one step over all ranks.

    Attributes:
        rows: rows of the global batch.
        weight: the sum of their weights.
        stopping: whether any rank wants training to stop.
    """

    rows: float
    weight: float
    stopping: bool


class StepAgreement:
    """An asynchronous sum over the ranks that overlaps with computation; on the CPU, so that no device waits for it.

    Args:
        rows: rows of this rank's part of the batch.
        weight: the sum of their weights.
        stopping: whether this rank wants to stop.
        slots: the shared memory of the ranks; None to use the process group.
    """

    def __init__(self, rows: int, weight: float, stopping: bool, slots: SharedSlots | None = None) -> None:
        own = torch.tensor([float(rows), weight, float(stopping)], dtype=torch.float64)
        self._sums, self._slots, self._turn, self._work = own, slots, 0, None
        self._report: StepReport | None = None
        if slots is not None:
            self._turn = slots.begin_turn()
            torch.frombuffer(slots.write_buffer(self._turn, own.nbytes), dtype=own.dtype).copy_(own)
            slots.publish(self._turn)
        elif dist.get_world_size() > 1:
            self._work = dist.all_reduce(self._sums, async_op=True)

    def result(self) -> StepReport:
        """Waits for the slowest rank and returns the sums; later calls return them again."""
        if self._report is not None:
            return self._report
        if self._slots is not None:
            slots, sums = self._slots, self._sums
            slots.wait(self._turn)
            reports = [slots.read(self._turn, rank, sums.nbytes) for rank in range(slots.ranks)]
            self._sums = torch.stack([torch.frombuffer(each, dtype=sums.dtype) for each in reports]).sum(0)
        elif self._work is not None:
            self._work.wait()
        rows, weight, stopping = self._sums.tolist()
        self._report = StepReport(rows, weight, stopping > 0)
        return self._report


@contextlib.contextmanager
def _long_timeout_group() -> Generator[dist.ProcessGroup]:
    """A gloo group of all ranks whose timeout is long enough for the preparation of data.

    It is destroyed on exit: a gloo thread that releases a tensor while Python shuts down would crash the process.
    """
    group = cast("dist.ProcessGroup", dist.new_group(timeout=timedelta(days=30), backend="gloo"))
    try:
        yield group
    finally:
        dist.destroy_process_group(group)


def on_first_rank(work: Callable[[], T]) -> T:
    """Calls ``work`` on the first rank only and returns its result on all ranks, which wait for it without a timeout.

    Raises:
        LostRank: on the other ranks, if ``work`` failed on the first one, which raises its own error.
    """
    if dist.get_world_size() == 1:
        return work()
    outcome: list[Any] = [None, None]
    with _long_timeout_group() as group:
        try:
            if dist.get_rank() == 0:
                outcome[1] = work()
        except BaseException as error:
            outcome[0] = f"{type(error).__name__}: {error}"
            raise
        finally:
            dist.broadcast_object_list(outcome, src=0, group=group)
    if outcome[0] is not None:
        raise LostRank(f"rank {dist.get_rank()}: rank 0 failed with {outcome[0]}", "see the error of rank 0")
    return outcome[1]


def on_any_rank(condition: bool) -> bool:
    """Returns on all ranks whether a condition holds on any of them. All ranks call it."""
    ranks = dist.get_world_size()
    if ranks == 1:
        return condition
    found: list[bool | None] = [None] * ranks
    dist.all_gather_object(found, condition)
    return any(found)
