"""Shared memory of the ranks of one host.

With gloo even these ranks communicate through the loopback network: data is copied into a send buffer, into the kernel,
out of it and into a receive buffer, and three threads must be woken. Here a rank writes data once where the others read
it, and increments a counter, which the others poll.
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
"""Bytes of a cache line, to which data is aligned."""

SPIN_S, NAP_S, SHORT_S = 2e-4, 5e-5, 2e-2
"""How a rank waits, in seconds: it polls without pause for SPIN_S, then sleeps NAP_S between polls; after SHORT_S it
sleeps a millisecond between polls and checks whether the other ranks are alive."""


def can_share(world: World, device: torch.device) -> bool:
    """Returns whether all ranks are CPU ranks of one host that supports the shared memory used here."""
    return world.hosts == 1 and hosts_can_share(world, device)


def hosts_can_share(world: World, device: torch.device) -> bool:
    """Returns whether the ranks of each host are several CPU ranks that support the shared memory used here.

    It needs Linux for memfd_create, and x86, where other cores see writes in the order in which they were made.
    """
    together = world.local_size > 1 and device.type == "cpu"
    return together and hasattr(os, "memfd_create") and platform.machine() == "x86_64"


def shared_slots(config: ParallelConfig, world: World, device: torch.device, slots: int = 2) -> SharedSlots | None:
    """Returns shared memory with ``slots`` slots per rank; None if ranks cannot share memory or the config forbids
    it."""
    if not (config.shared_memory and can_share(world, device)):
        return None
    return SharedSlots(config.timeout_s, slots)


def slots_of_host(
    config: ParallelConfig, world: World, device: torch.device, group: dist.ProcessGroup, slots: int = 2
) -> SharedSlots | None:
    """Returns the same for the ranks of each host, which are ``group``; all hosts make theirs."""
    if not (config.shared_memory and hosts_can_share(world, device)):
        return None
    return SharedSlots(config.timeout_s, slots, group)


class _AnonymousFile:
    """An anonymous file of some rank, mapped as far as it was needed so far; only its own rank extends it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._mapped: mmap.mmap | None = None
        weakref.finalize(self, os.close, descriptor)

    def view(self, size: int, *, grow: bool = False) -> memoryview:
        """Returns the first ``size`` bytes."""
        if not size:
            return memoryview(b"")  # an empty file cannot be mapped
        if self._mapped is None or len(self._mapped) < size:
            if grow:
                os.truncate(self.descriptor, size)
            self._mapped = mmap.mmap(self.descriptor, size)  # the old mapping process_fds as long as its views
        return memoryview(self._mapped)[:size]


@dataclass(frozen=True, slots=True)
class _RankMemory:
    """The memory that a rank shares: its turn counter and its slots. A token before the counter proves whose it is."""

    turn: memoryview
    slots: tuple[_AnonymousFile, ...]


class SharedSlots:
    """Memory of every rank that all other ranks can read; ranks are those of a group, numbered in it.

    All of them create it together; the system frees it when the last of them ends, in whatever way. Ranks communicate
    in *turns*: in each turn, a rank writes into a slot and publishes it, waits for the others, and reads what they
    wrote. Slots are reused, so before a rank begins a turn, all ranks must have read the earlier contents of its slot.

    - Two slots suffice if ranks wait for each turn before they begin the next: a rank that begins a turn has waited for
      the others in the turn between, which they published only after reading the earlier one.
    - Four slots suffice if a turn may begin before the one before it was waited for.

    Args:
        timeout_s: how long a rank waits for the others.
        slots: the number of slots of each rank.
        group: the ranks, all of one host; None for all ranks.

    Attributes:
        rank, ranks: the number of this rank in the group, and how many there are.

    Raises:
        EnvironmentMismatch: the ranks cannot open each other's memory.
    """

    def __init__(self, timeout_s: float, slots: int = 2, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        self._numbers = list(range(self.ranks)) if group is None else dist.get_process_group_ranks(group)
        self._timeout_s, self._turn, self._slot_count = timeout_s, 0, slots
        self._process_fds: dict[int, int] = {}
        self._files: list[_RankMemory] = []
        weakref.finalize(self, _close_all, self._process_fds)
        token, own = secrets.token_bytes(LINE), [_AnonymousFile(os.memfd_create("ziggurat")) for _ in range(slots + 1)]
        own[0].view(2 * LINE, grow=True)[:LINE] = token
        announced: list[tuple[int, list[int], bytes]] = [(0, [], b"")] * self.ranks
        dist.all_gather_object(announced, (os.getpid(), [each.descriptor for each in own], token), group)
        problems: list[str] = [""] * self.ranks
        # Either all ranks share memory or all fail.
        dist.all_gather_object(problems, self._open(announced), group)
        self._own_files = own
        if any(problems):
            raise EnvironmentMismatch(
                f"ranks of this host cannot share memory: {next(filter(None, problems))}",
                "set parallel.shared_memory to false (rows are then sent through sockets), or start all ranks as the "
                "same user and in the same container",
            )

    def begin_turn(self) -> int:
        """Begins the next turn and returns its number."""
        self._turn += 1
        return self._turn

    def write_buffer(self, turn: int, size: int) -> memoryview:
        """Returns ``size`` bytes of this rank's slot to write into; their contents are arbitrary."""
        return self._own_files[1 + turn % self._slot_count].view(size, grow=True)

    def publish(self, turn: int) -> None:
        """Announces that this rank has written its data of that turn."""
        self._files[self.rank].turn[0] = turn

    def read(self, turn: int, rank: int, size: int) -> memoryview:
        """Returns the first ``size`` bytes that a rank wrote; to be called after :meth:`wait`."""
        return self._files[rank].slots[turn % self._slot_count].view(size)

    def wait(self, turn: int) -> None:
        """Waits until all ranks have published that turn.

        Raises:
            torch.distributed.DistNetworkError: a rank has ended, or has not published in time.
        """
        missing = [rank for rank in self._process_fds if self._files[rank].turn[0] < turn]
        started = time.monotonic()
        while missing:
            waited = time.monotonic() - started
            if waited < SPIN_S:
                os.sched_yield()
            elif waited < SHORT_S:
                time.sleep(NAP_S)
            else:
                self._sleep_and_check(missing, turn, waited)
            missing = [rank for rank in missing if self._files[rank].turn[0] < turn]

    def _sleep_and_check(self, missing: Sequence[int], turn: int, waited: float) -> None:
        poll = select.poll()
        for process_fd in self._process_fds.values():
            poll.register(process_fd, select.POLLIN)
        ended_fds = {process_fd for process_fd, _ in poll.poll(1)}
        ended_ranks = [
            rank for rank in missing if self._process_fds[rank] in ended_fds and self._files[rank].turn[0] < turn
        ]
        if ended_ranks:
            raise dist.DistNetworkError(f"connection closed by peer: rank {self._numbers[ended_ranks[0]]} has ended")
        if waited > self._timeout_s:
            slowest = self._numbers[missing[0]]
            raise dist.DistNetworkError(f"timed out after {self._timeout_s:g} s of waiting for rank {slowest}")

    def _open(self, announced: Sequence[tuple[int, list[int], bytes]]) -> str:
        """Opens the memory of all ranks; returns the problem that prevented it, or an empty string."""
        own = self._numbers[self.rank]
        for rank, (process, descriptors, token) in enumerate(announced):
            number = self._numbers[rank]
            folder = f"/proc/{process}/fd"
            try:
                first, *slots = [
                    _AnonymousFile(os.open(f"{folder}/{descriptor}", os.O_RDWR)) for descriptor in descriptors
                ]
                if os.pread(first.descriptor, LINE, 0) != token:
                    return f"rank {own} finds another process under the number of rank {number} ({folder})"
                if rank != self.rank:
                    self._process_fds[rank] = os.pidfd_open(process)
            except OSError as error:
                return f"rank {own} cannot open that of rank {number} ({error.strerror}: {folder})"
            self._files.append(_RankMemory(first.view(2 * LINE)[LINE:].cast("q"), tuple(slots)))
        return ""


def as_tensor(shared: memoryview, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns shared bytes as a flat tensor."""
    return torch.frombuffer(shared, dtype=dtype) if len(shared) else torch.zeros(0, dtype=dtype)


def _close_all(process_fds: dict[int, int]) -> None:
    for process_fd in process_fds.values():
        os.close(process_fd)
