"""Memory that the ranks of one host share.

Over gloo even these reach each other through the host's loopback network: into a send buffer, into the kernel, out of
it, into a receive buffer, and through three threads that must be woken. Here a rank writes once where the others read,
and counts up; the others look at the count until it is there.
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
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.world import World

LINE = 64
"""Bytes of a cache line: what is written begins at whole ones."""

SPIN_S, NAP_S, SHORT_S = 2e-4, 5e-5, 2e-2
"""How a rank waits: it looks all the time for so long, then rests so long between looks; behind the third it rests a
millisecond and sees whether the others live."""


def can_share(world: World, device: torch.device) -> bool:
    """Whether all ranks are on one host whose memory they compute in.

    Linux has the files for it, and x86 shows what was written in the order in which it was.
    """
    together = world.size > 1 and world.hosts == 1 and device.type == "cpu"
    return together and hasattr(os, "memfd_create") and platform.machine() == "x86_64"


def shared_slots(config: ParallelConfig, world: World, device: torch.device, slots: int = 2) -> SharedSlots | None:
    """So many slots of all ranks; None where they cannot or shall not share memory."""
    if not (config.shared_memory and can_share(world, device)):
        return None
    return SharedSlots(config.timeout_s, slots)


class _File:
    """An anonymous file of this rank or another, mapped as far as it was needed yet; only its rank makes it longer."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapped: mmap.mmap | None = None
        weakref.finalize(self, os.close, descriptor)

    def bytes(self, size: int, *, grow: bool = False) -> memoryview:
        """The first ``size`` bytes."""
        if not size:
            return memoryview(b"")  # nothing cannot be mapped
        if self._mapped is None or len(self._mapped) < size:
            if grow:
                os.truncate(self.descriptor, size)
            self._mapped = mmap.mmap(self.descriptor, size)  # views of the old one keep it for as long as they live
        return memoryview(self._mapped)[:size]


@dataclass(frozen=True, slots=True)
class _Rank:
    """What a rank shares: a line that proves whose it is and one that holds its count, and its slots."""

    count: memoryview
    slots: tuple[_File, ...]


class SharedSlots:
    """Memory of every rank of the world that all of them can read.

    Made by all ranks together; freed by the system with the last of them, however they end. Ranks take *turns*: in
    each, a rank writes into a slot and arrives, meets the others, and reads what they wrote. Slots come round again, so
    before a rank begins a turn all must have read what lay in its slot.

    - Two slots are enough where every turn is met before the next begins: who begins has met the others in the turn in
      between, and they came there when they had read.
    - Four are, where a turn may begin before the one before it is met.

    Args:
        timeout_s: how long a rank waits for the others.
        slots: of each rank.

    Raises:
        EnvironmentMismatch: the ranks cannot open each other's memory.
    """

    def __init__(self, timeout_s: float, slots: int = 2) -> None:
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self._timeout_s, self._turn, self._of_slots = timeout_s, 0, slots
        self._lives: dict[int, int] = {}
        self._files: list[_Rank] = []
        weakref.finalize(self, _close, self._lives)
        token, own = secrets.token_bytes(LINE), [_File(os.memfd_create("ziggurat")) for _ in range(slots + 1)]
        own[0].bytes(2 * LINE, grow=True)[:LINE] = token
        told: list[tuple[int, list[int], bytes]] = [(0, [], b"")] * self.ranks
        dist.all_gather_object(told, (os.getpid(), [each.descriptor for each in own], token))
        problems: list[str] = [""] * self.ranks
        dist.all_gather_object(problems, self._open(told))  # all have opened it, or all give up
        self._own = own
        if any(problems):
            raise EnvironmentMismatch(
                f"ranks of this host cannot share memory: {next(filter(None, problems))}",
                "set parallel.shared_memory to false (rows then travel through sockets), or start the ranks as one "
                "user and in one container",
            )

    def begin(self) -> int:
        """The next turn."""
        self._turn += 1
        return self._turn

    def written(self, turn: int, size: int) -> memoryview:
        """``size`` bytes to write into, whatever lay there."""
        return self._own[1 + turn % self._of_slots].bytes(size, grow=True)

    def arrive(self, turn: int) -> None:
        """This rank has written what it had to in that turn."""
        self._files[self.rank].count[0] = turn

    def read(self, turn: int, rank: int, size: int) -> memoryview:
        """The first ``size`` bytes that a rank wrote; behind :meth:`meet`."""
        return self._files[rank].slots[turn % self._of_slots].bytes(size)

    def meet(self, turn: int) -> None:
        """Wait until all ranks have arrived in that turn.

        Raises:
            torch.distributed.DistNetworkError: one has ended, or has not come in time.
        """
        missing = [rank for rank in self._lives if self._files[rank].count[0] < turn]
        started = time.monotonic()
        while missing:
            waited = time.monotonic() - started
            if waited < SPIN_S:
                os.sched_yield()
            elif waited < SHORT_S:
                time.sleep(NAP_S)
            else:
                self._rest(missing, turn, waited)
            missing = [rank for rank in missing if self._files[rank].count[0] < turn]

    def _rest(self, missing: Sequence[int], turn: int, waited: float) -> None:
        poll = select.poll()
        for life in self._lives.values():
            poll.register(life, select.POLLIN)
        ended = {life for life, _ in poll.poll(1)}
        gone = [rank for rank in missing if self._lives[rank] in ended and self._files[rank].count[0] < turn]
        if gone:
            raise dist.DistNetworkError(f"connection closed by peer: rank {gone[0]} has ended")
        if waited > self._timeout_s:
            raise dist.DistNetworkError(f"timed out after {self._timeout_s:g} s of waiting for rank {missing[0]}")

    def _open(self, told: Sequence[tuple[int, list[int], bytes]]) -> str:
        """Open the memory of all; what kept us from it."""
        for rank, (process, descriptors, token) in enumerate(told):
            folder = f"/proc/{process}/fd"
            try:
                first, *slots = [_File(os.open(f"{folder}/{descriptor}", os.O_RDWR)) for descriptor in descriptors]
                if os.pread(first.descriptor, LINE, 0) != token:
                    return f"rank {self.rank} finds another process under the number of rank {rank} ({folder})"
                if rank != self.rank:
                    self._lives[rank] = os.pidfd_open(process)
            except OSError as error:
                return f"rank {self.rank} cannot open that of rank {rank} ({error.strerror}: {folder})"
            self._files.append(_Rank(first.bytes(2 * LINE)[LINE:].cast("q"), tuple(slots)))
        return ""


def floats(shared: memoryview) -> Tensor:
    """Shared bytes as float32."""
    return torch.frombuffer(shared, dtype=torch.float32) if len(shared) else torch.zeros(0)


def _close(lives: dict[int, int]) -> None:
    for life in lives.values():
        os.close(life)
