"""The process group and the device that a run stands on; a world of one needs no launcher."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Literal

import torch
import torch.distributed as dist

from ziggurat.core.errors import EnvironmentMismatch


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
    return torch.device("cuda", torch.cuda.current_device()) if available and wanted != "cpu" else torch.device("cpu")


@contextlib.contextmanager
def process_group(device: torch.device) -> Generator[None]:
    """A process group of this process alone for the duration: TorchRec needs one at any world size.

    An initialised group is used as it is and left alone.

    Raises:
        EnvironmentMismatch: a launcher started several ranks.
    """
    if dist.is_initialized():
        yield
        return
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise EnvironmentMismatch(
            f"WORLD_SIZE={os.environ['WORLD_SIZE']}: this ziggurat trains in one process",
            "start it without a launcher (unset RANK and WORLD_SIZE)",
        )
    backend = "nccl" if device.type == "cuda" else "gloo"
    with tempfile.TemporaryDirectory(prefix="ziggurat-") as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group(backend, rank=0, world_size=1, store=store)
        try:
            yield
        finally:
            dist.destroy_process_group()
