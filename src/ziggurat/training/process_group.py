"""The process group and the device of a run; a single process needs no launcher.

TorchRec needs a process group at any world size, and torch has one default group per process. Here it is shared: each
user of the process takes a lease, and the group goes with the last one.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Generator
from datetime import timedelta
from typing import Literal

import torch
import torch.distributed as dist

from ziggurat.core.errors import EnvironmentMismatch, ForkedProcess
from ziggurat.parallel.environment import environment_integer
from ziggurat.parallel.rendezvous import join_process_group
from ziggurat.parallel.world import World


def pick_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Returns the device to train on.

    Raises:
        EnvironmentMismatch: CUDA was requested but is not available, or this rank's host has fewer GPUs than ranks.
    """
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise EnvironmentMismatch(
            "training.device is 'cuda', but torch sees no CUDA device",
            "set training.device to auto or cpu, or ask `ziggurat doctor` what is missing",
        )
    if not available or wanted == "cpu":
        return torch.device("cpu")
    if "LOCAL_RANK" in os.environ:
        rank, found = environment_integer("LOCAL_RANK"), torch.cuda.device_count()
        if not 0 <= rank < found:
            raise EnvironmentMismatch(
                f"rank {rank} of this host has no GPU: torch sees {found}, and each rank needs one of its own",
                f"start at most {found} on a host (--nproc, or torchrun --nproc-per-node), or set training.device: cpu",
            )
        torch.cuda.set_device(rank)
    return torch.device("cuda", torch.cuda.current_device())


def refuse_fork() -> None:
    """Marks this process as one that computes with torch, and refuses one that was forked from such a process.

    Only the thread that forks lives on in the child: torch's other threads are gone there, and locks that they held
    stay locked, so that a computation could wait forever.

    Raises:
        ForkedProcess: this process was forked after its parent had trained, evaluated or opened a predictor.
    """
    global _computes
    process = os.getpid()
    if _computes not in (None, process):
        raise ForkedProcess(
            f"process {process} was forked from process {_computes}, in which ziggurat had computed already; torch's "
            "threads do not exist in a fork",
            "start processes with multiprocessing.get_context('spawn'), and open the predictor or start the training "
            "in the new process; or fork before the first one is opened",
        )
    _computes = process


_computes: int | None = None
"""Id of the process in which ziggurat has computed; inherited by forks."""


@contextlib.contextmanager
def process_group(device: torch.device, timeout_s: float = 300.0) -> Generator[World]:
    """Joins the process group of the ranks that a launcher started, or makes one of this process alone.

    Within a process, several threads may be in this context at once: they share one group, which is destroyed when the
    last of them leaves. A group that somebody else initialised is used and not destroyed.

    Args:
        device: the device that the rank computes on.
        timeout_s: seconds that a rank waits for the others in one exchange; it applies if the group is made here.

    Raises:
        EnvironmentMismatch: the launcher's description of the world makes no sense, or the ranks do not meet.
        ForkedProcess: see :func:`refuse_fork`.
    """
    refuse_fork()
    leased = _leases.take(device, timeout_s)
    failed = True
    try:
        yield World.current()
        failed = False
    finally:
        if leased:
            _leases.give_back(failed)


class _Leases:
    """Counts the users of the default process group that was made here."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._group: dist.ProcessGroup | None = None
        self._count = 0

    def take(self, device: torch.device, timeout_s: float) -> bool:
        """Takes a lease of the group, and makes the group if there is none. Returns False if it is somebody else's."""
        with self._lock:
            if dist.is_initialized():
                if dist.group.WORLD is not self._group:
                    return False
            else:
                _initialise(device, timedelta(seconds=timeout_s))
                self._group = dist.group.WORLD
            self._count += 1
            return True

    def give_back(self, failed: bool) -> None:
        """Gives a lease back; the group is destroyed with the last one.

        After a failure with several ranks it stays, as destroying it could wait for exchanges that others no longer
        answer.
        """
        with self._lock:
            self._count -= 1
            if self._count == 0:
                group, self._group = self._group, None
                if group is None or dist.group.WORLD is not group:  # somebody else has destroyed it
                    return
                if not (failed and group.size() > 1):
                    dist.destroy_process_group()


_leases = _Leases()


def _initialise(device: torch.device, timeout: timedelta) -> None:
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    size = environment_integer("WORLD_SIZE", 1)
    if size > 1:
        join_process_group(backend, size, timeout)
        return
    hook = sys.excepthook  # torch wraps it, once more for each group, to print the rank in tracebacks
    try:
        dist.init_process_group(backend, rank=0, world_size=1, store=dist.HashStore(), timeout=timeout)
    finally:
        sys.excepthook = hook
