"""The process group and the device of a run; a single process needs no launcher."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.parallel.environment import environment_integer
from ziggurat.parallel.rendezvous import join_process_group
from ziggurat.parallel.world import World


def pick_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """Returns the device to train on.

    Raises:
        EnvironmentMismatch: CUDA was requested but is not available.
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
        torch.cuda.set_device(environment_integer("LOCAL_RANK"))
    return torch.device("cuda", torch.cuda.current_device())


@contextlib.contextmanager
def process_group(device: torch.device, timeout_s: float = 300.0) -> Generator[World]:
    """Joins the process group of the ranks that a launcher started, or makes one of this process alone.

    TorchRec needs a process group at any world size. If one is initialised already, it is used and not destroyed.

    Args:
        device: the device that the rank computes on.
        timeout_s: seconds that a rank waits for the others in one exchange.

    Raises:
        EnvironmentMismatch: the launcher's description of the world makes no sense, or the ranks do not meet.
    """
    if dist.is_initialized():
        yield World.current()
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    size = environment_integer("WORLD_SIZE", 1)
    with contextlib.ExitStack() as stack:
        if size > 1:
            join_process_group(backend, size, timeout)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ziggurat-"))
            store = dist.FileStore(str(Path(folder) / "store"), 1)
            dist.init_process_group(backend, rank=0, world_size=1, store=store, timeout=timeout)
        try:
            yield World.current()
        except BaseException:
            if size == 1:
                dist.destroy_process_group()
            raise  # with several ranks, destroying the group could wait for collectives that others no longer answer
        dist.destroy_process_group()
