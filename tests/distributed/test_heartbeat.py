"""Errors about a lost rank say whether it failed, is silent, or is alive but slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed.ranks import run_ranks
from ziggurat.core.errors import LostRank
from ziggurat.parallel.heartbeat import LISTEN_S, report_lost_ranks

TIMEOUT_S = 4.0
STEPS = (70, 40, 71)


def missed(rank: int, folder: Path, work: Callable[[], None]) -> str:
    """Returns a rank's error when rank 1 does ``work`` instead of taking part in the exchange."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S), backend="gloo")
    said = "nothing"
    try:
        with report_lost_ranks(lambda: STEPS[rank], TIMEOUT_S):
            if rank == 1:
                work()
            else:
                dist.all_reduce(torch.ones(1), group=group)
    except (LostRank, ArithmeticError) as error:
        said = str(error)
    (folder / f"{rank}.said").write_text(said)
    while len(list(folder.glob("*.said"))) < 3:  # a rank that ends earlier would close connections of others
        time.sleep(0.05)
    return said


def sleep() -> None:
    time.sleep(TIMEOUT_S + 2 * LISTEN_S)


def fail() -> None:
    raise ArithmeticError("no such number")


def test_a_slow_rank_is_reported_with_its_step(tmp_path: Path) -> None:
    first, _, third = run_ranks(3, missed, tmp_path, sleep)
    assert f"waited {TIMEOUT_S:g} s for the other ranks at step 70: rank 1 is alive, at step 40\n" in first
    assert f"waited {TIMEOUT_S:g} s for the other ranks at step 71: rank 1 is alive, at step 40\n" in third


def test_a_failed_rank_is_reported_with_its_error(tmp_path: Path) -> None:
    first, second, third = run_ranks(3, missed, tmp_path, fail)
    assert second == "no such number"
    for said in (first, third):
        assert ": rank 1 failed at step 40: 'ArithmeticError: no such number'\n" in said
