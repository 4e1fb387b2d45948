"""Memory that the ranks of one host share.

Over gloo even these reach each other through the host's loopback network: into a send buffer, into the kernel, out of
it, into a receive buffer. Here a rank writes once where the others read. A barrier over gloo stands between the two,
so a rank that is gone is noticed as it is everywhere else.

Two slots take turns. Who writes into a slot has passed the barrier of the turn in between, which the readers of that
slot enter only when they have read it.
"""

from __future__ import annotations

import mmap
import os
import secrets
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.parallel.world import World

TOKEN_BYTES = 64
"""Head of a rank's memory: proves to the others that it is the one they were told of. A cache line."""


def can_share(world: World, device: torch.device) -> bool:
    """Whether all ranks are on one host whose memory they compute in; of systems, Linux has the files for it."""
    return world.size > 1 and world.hosts == 1 and device.type == "cpu" and hasattr(os, "memfd_create")


class SharedSlots:
    """Memory of every rank that all of them can read: two slots each.

    Made by all ranks together; freed by the system with the last of them, however they end.

    Args:
        sizes: bytes that each rank has to write at once.
        group: the ranks.

    Raises:
        EnvironmentMismatch: the ranks cannot open each other's memory.
    """

    def __init__(self, sizes: Sequence[int], group: dist.ProcessGroup) -> None:
        self.sizes = tuple(-(-size // TOKEN_BYTES) * TOKEN_BYTES for size in sizes)
        rank, token = dist.get_rank(group), secrets.token_bytes(TOKEN_BYTES)
        descriptor = os.memfd_create("ziggurat")
        try:
            os.truncate(descriptor, TOKEN_BYTES + 2 * self.sizes[rank])
            os.pwrite(descriptor, token, 0)
            told: list[tuple[str, bytes]] = [("", b"")] * len(sizes)
            dist.all_gather_object(told, (f"/proc/{os.getpid()}/fd/{descriptor}", token), group=group)
            self._memory, problem = self._open(told, rank)
            problems: list[str] = [""] * len(sizes)
            dist.all_gather_object(problems, problem, group=group)  # all have opened it, or all give up
        finally:
            os.close(descriptor)
        if any(problems):
            raise EnvironmentMismatch(
                f"ranks of this host cannot share memory: {next(filter(None, problems))}",
                "set parallel.shared_memory to false (rows then travel through sockets), or start the ranks as one "
                "user and in one container",
            )

    def slot(self, rank: int, number: int) -> Tensor:
        """Slot 0 or 1 of a rank, as float32."""
        return self._memory[rank][number]

    def _open(self, told: Sequence[tuple[str, bytes]], rank: int) -> tuple[list[tuple[Tensor, Tensor]], str]:
        memory: list[tuple[Tensor, Tensor]] = []
        for other, ((path, token), size) in enumerate(zip(told, self.sizes, strict=True)):
            try:
                descriptor = os.open(path, os.O_RDWR)
            except OSError as error:
                return [], f"rank {rank} cannot open that of rank {other} ({error.strerror}: {path})"
            try:
                if os.pread(descriptor, TOKEN_BYTES, 0) != token:
                    return [], f"rank {rank} finds another process under the number of rank {other} ({path})"
                mapped = mmap.mmap(descriptor, TOKEN_BYTES + 2 * size)
            finally:
                os.close(descriptor)
            floats = torch.frombuffer(mapped, dtype=torch.float32)[TOKEN_BYTES // 4 :]
            memory.append((floats[: size // 4], floats[size // 4 :]))
        return memory, ""


def barrier(group: dist.ProcessGroup) -> None:
    """Wait until all ranks have come here; over gloo a sum of nothing much costs less than its own barrier."""
    dist.all_reduce(torch.zeros(1), group=group)


class HostMean:
    """A communication hook of DistributedDataParallel: the mean of gradients over ranks that share memory.

    Sums run from the first rank to the last, so every rank has the same bits.

    Args:
        numel: of all gradients together, float32.
        group: the ranks.
    """

    def __init__(self, numel: int, group: dist.ProcessGroup) -> None:
        self._group, self._rank, self._ranks = group, dist.get_rank(group), dist.get_world_size(group)
        self._slots = SharedSlots([4 * numel] * self._ranks, group)
        self._turn, self._first = 0, 0

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Buckets of a backward pass come one after the other, on all ranks alike, and lie so in a slot."""
        if bucket.index() == 0:
            self._turn, self._first = 1 - self._turn, 0
        buffer = bucket.buffer()
        mine = slice(self._first, self._first + buffer.numel())
        self._first = mine.stop
        parts = [self._slots.slot(rank, self._turn)[mine] for rank in range(self._ranks)]
        parts[self._rank].copy_(buffer)
        work = dist.all_reduce(torch.zeros(1), group=self._group, async_op=True)
        assert work is not None

        def mean(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            done.value()  # raises what went wrong
            torch.add(parts[0], parts[1], out=buffer)
            for part in parts[2:]:
                buffer.add_(part)
            return buffer.div_(self._ranks)

        return work.get_future().then(mean)
