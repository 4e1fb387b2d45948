"""Memory that the ranks of one host share.

Over gloo even these reach each other through the host's loopback network: into a send buffer, into the kernel, out of
it, into a receive buffer, and through three threads that must be woken. Here a rank writes once where the others read,
and counts up; the others look at the count until it is there.

Two slots take turns. Who writes into a slot has met the others on the turn in between, which the readers of that slot
reach only when they have read it.
"""

from __future__ import annotations

import mmap
import os
import platform
import secrets
import select
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.parallel.world import World

LINE = 64
"""Bytes of a cache line. A rank's memory begins with a line that proves whose it is, and one that holds its count."""

SPIN_S, NAP_S, SHORT_S = 2e-4, 5e-5, 2e-2
"""How a rank waits: it looks all the time for so long, then rests so long between looks; behind the third it rests a
millisecond and sees whether the others live."""


def can_share(world: World, device: torch.device) -> bool:
    """Whether all ranks are on one host whose memory they compute in.

    Linux has the files for it, and x86 shows what was written in the order in which it was.
    """
    together = world.size > 1 and world.hosts == 1 and device.type == "cpu"
    return together and hasattr(os, "memfd_create") and platform.machine() == "x86_64"


@dataclass(frozen=True, slots=True)
class _Memory:
    """Of one rank: the line of its count, and its slots."""

    count: memoryview
    slots: tuple[Tensor, Tensor]


class SharedSlots:
    """Memory of every rank that all of them can read: two slots each, and a count.

    Made by all ranks together; freed by the system with the last of them, however they end.

    Args:
        sizes: bytes that each rank has to write at once.
        group: the ranks.
        timeout_s: how long a rank waits for the others.

    Raises:
        EnvironmentMismatch: the ranks cannot open each other's memory.
    """

    def __init__(self, sizes: Sequence[int], group: dist.ProcessGroup, timeout_s: float) -> None:
        self.sizes = tuple(-(-size // LINE) * LINE for size in sizes)
        self._rank, self._timeout_s, self._turn = dist.get_rank(group), timeout_s, 0
        self._lives: dict[int, int] = {}
        self._memory: list[_Memory] = []
        weakref.finalize(self, _close, self._lives)
        token = secrets.token_bytes(LINE)
        descriptor = os.memfd_create("ziggurat")
        try:
            os.truncate(descriptor, 2 * LINE + 2 * self.sizes[self._rank])
            os.pwrite(descriptor, token, 0)
            told: list[tuple[int, int, bytes]] = [(0, 0, b"")] * len(sizes)
            dist.all_gather_object(told, (os.getpid(), descriptor, token), group=group)
            problems: list[str] = [""] * len(sizes)
            dist.all_gather_object(problems, self._open(told), group=group)  # all have opened it, or all give up
        finally:
            os.close(descriptor)
        if any(problems):
            raise EnvironmentMismatch(
                f"ranks of this host cannot share memory: {next(filter(None, problems))}",
                "set parallel.shared_memory to false (rows then travel through sockets), or start the ranks as one "
                "user and in one container",
            )

    def slot(self, rank: int) -> Tensor:
        """This turn's slot of a rank, float32."""
        return self._memory[rank].slots[self._turn % 2]

    def begin(self) -> None:
        """Take the next turn: what was in the other slots has been read."""
        self._turn += 1

    def arrive(self) -> None:
        """This rank has written what it had to in this turn."""
        self._memory[self._rank].count[0] = self._turn

    def meet(self) -> None:
        """Wait until all ranks have arrived in this turn.

        Raises:
            torch.distributed.DistNetworkError: one has ended, or has not come in time.
        """
        missing = [rank for rank in self._lives if not self._here(rank)]
        started = time.monotonic()
        while missing:
            waited = time.monotonic() - started
            if waited < SPIN_S:
                os.sched_yield()
            elif waited < SHORT_S:
                time.sleep(NAP_S)
            else:
                self._rest(missing, waited)
            missing = [rank for rank in missing if not self._here(rank)]

    def _here(self, rank: int) -> bool:
        return self._memory[rank].count[0] >= self._turn

    def _rest(self, missing: Sequence[int], waited: float) -> None:
        poll = select.poll()
        for life in self._lives.values():
            poll.register(life, select.POLLIN)
        ended = {life for life, _ in poll.poll(1)}
        gone = [rank for rank in missing if self._lives.get(rank) in ended and not self._here(rank)]
        if gone:
            raise dist.DistNetworkError(f"connection closed by peer: rank {gone[0]} has ended")
        if waited > self._timeout_s:
            raise dist.DistNetworkError(f"timed out after {self._timeout_s:g} s of waiting for rank {missing[0]}")

    def _open(self, told: Sequence[tuple[int, int, bytes]]) -> str:
        """Map the memory of all; what kept us from it."""
        for rank, ((process, descriptor, token), size) in enumerate(zip(told, self.sizes, strict=True)):
            path = f"/proc/{process}/fd/{descriptor}"
            try:
                opened = os.open(path, os.O_RDWR)
                try:
                    if os.pread(opened, LINE, 0) != token:
                        return f"rank {self._rank} finds another process under the number of rank {rank} ({path})"
                    mapped = mmap.mmap(opened, 2 * LINE + 2 * size)
                finally:
                    os.close(opened)
                if rank != self._rank:
                    self._lives[rank] = os.pidfd_open(process)
            except OSError as error:
                return f"rank {self._rank} cannot open that of rank {rank} ({error.strerror}: {path})"
            floats = torch.frombuffer(mapped, dtype=torch.float32)[2 * LINE // 4 :]
            count = memoryview(mapped)[LINE : 2 * LINE].cast("q")
            self._memory.append(_Memory(count, (floats[: size // 4], floats[size // 4 :])))
        return ""


def _close(lives: dict[int, int]) -> None:
    for life in lives.values():
        os.close(life)


class HostMean:
    """A communication hook of DistributedDataParallel: the mean of gradients over ranks that share memory.

    The hook writes each bucket as soon as it is there, and waits for nobody; :meth:`finish` makes the means behind the
    backward pass. Sums run from the first rank to the last, so every rank has the same bits.

    Args:
        numel: of all gradients together, float32.
        group: the ranks.
        timeout_s: how long a rank waits for the others.
    """

    def __init__(self, numel: int, group: dist.ProcessGroup, timeout_s: float) -> None:
        self._rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        self._slots = SharedSlots([4 * numel] * self._ranks, group, timeout_s)
        self._buckets: list[tuple[Tensor, slice]] = []

    def __call__(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        if not self._buckets:
            self._slots.begin()
        buffer = bucket.buffer()
        first = self._buckets[-1][1].stop if self._buckets else 0
        mine = slice(first, first + buffer.numel())
        self._slots.slot(self._rank)[mine].copy_(buffer)
        self._buckets.append((buffer, mine))
        if bucket.is_last():
            self._slots.arrive()
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(buffer)
        return future

    def finish(self) -> None:
        """Behind the backward pass: gradients, which are views of the buckets, become means."""
        if not self._buckets:
            return
        self._slots.meet()
        for buffer, mine in self._buckets:
            parts = [self._slots.slot(rank)[mine] for rank in range(self._ranks)]
            torch.add(parts[0], parts[1], out=buffer)
            for part in parts[2:]:
                buffer.add_(part)
            buffer.div_(self._ranks)
        self._buckets.clear()
