"""The process group and the device that a run stands on; a world of one needs no launcher."""

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

from ziggurat.core.errors import EnvironmentMismatch, shorten
from ziggurat.parallel.launch import STORE_VARIABLE
from ziggurat.parallel.world import World


def pick_device(wanted: Literal["auto", "cpu", "cuda"]) -> torch.device:
    """The device to train on.

    Raises:
        EnvironmentMismatch: CUDA was asked for and is not there.
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
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return torch.device("cuda", torch.cuda.current_device())


@contextlib.contextmanager
def process_group(device: torch.device, timeout_s: float = 300.0) -> Generator[World]:
    """The process group of the ranks that a launcher started, or of this process alone: TorchRec needs one at any
    world size.

    An initialised group is used as it is and left alone.

    Args:
        device: that the rank computes on.
        timeout_s: seconds that a rank waits for the others in one exchange.

    Raises:
        EnvironmentMismatch: the launcher's description of the world makes no sense, or the ranks do not meet.
    """
    if dist.is_initialized():
        yield World.current()
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    with contextlib.ExitStack() as stack:
        if size > 1:
            _meet(backend, size, timeout)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ziggurat-"))
            store = dist.FileStore(str(Path(folder) / "store"), 1)
            dist.init_process_group(backend, rank=0, world_size=1, store=store, timeout=timeout)
        try:
            yield World.current()
        except BaseException:
            if size == 1:
                dist.destroy_process_group()
            raise  # exchanges that other ranks do not answer any more would be waited for
        dist.destroy_process_group()


def _meet(backend: str, size: int, timeout: timedelta) -> None:
    """Join the other ranks, at the file that our own launcher names or the address that torchrun does."""
    missing = [name for name in ("RANK", "LOCAL_WORLD_SIZE") if name not in os.environ]
    if missing:
        raise EnvironmentMismatch(
            f"WORLD_SIZE={size}, but {' and '.join(missing)} not set",
            "start ranks with `ziggurat train --nproc N` or torchrun; for one process unset WORLD_SIZE",
        )
    rank, path = int(os.environ["RANK"]), os.environ.get(STORE_VARIABLE)
    try:
        store = _store_of_torchrun(timeout) if path is None else dist.FileStore(path, size)
        dist.init_process_group(backend, rank=rank, world_size=size, store=store, timeout=timeout)
    except (RuntimeError, ValueError) as error:
        where = path or f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise EnvironmentMismatch(
            f"rank {rank} of {size}: the ranks did not meet at {where} ({shorten(str(error), 300)})",
            "is the port free on the first host, is that host reachable from here, have all ranks been started?",
        ) from error


def _store_of_torchrun(timeout: timedelta) -> dist.Store:
    """torchrun's store outlives a restart of the ranks, and with it the addresses of those that are gone; so each start
    has a place of its own there."""
    store, _, size = next(iter(dist.rendezvous("env://", timeout=timeout)))
    return dist.PrefixStore(f"ziggurat/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{size}", store)
