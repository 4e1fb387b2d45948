"""Runs functions in real processes that share a gloo group, for tests."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.commands import PRELOADED

SECONDS = 240


def run_ranks(world_size: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Returns the results of ``work(rank, *arguments)`` in each of ``world_size`` processes that share a process group.

    Raises:
        AssertionError: a rank failed or did not end in time; its traceback is quoted, and the others are ended.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)  # imported once instead of in every rank
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_rank, args=(rank, world_size, folder, work, arguments))
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(SECONDS)
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
        failures = [path.read_text() for path in sorted(Path(folder).glob("*.failed"))]
        assert not failures, "\n".join(failures)
        assert [process.exitcode for process in processes] == [0] * world_size
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world_size)]


def _rank(rank: int, world_size: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size), LOCAL_WORLD_SIZE=str(world_size))
    try:
        store = dist.FileStore(str(Path(folder) / "store"), world_size)
        dist.init_process_group("gloo", rank=rank, world_size=world_size, store=store)
        torch.save(work(rank, *arguments), Path(folder) / f"{rank}.pt")
        dist.destroy_process_group()
    except BaseException:
        (Path(folder) / f"{rank}.failed").write_text(f"rank {rank}:\n{traceback.format_exc()}")
        raise
