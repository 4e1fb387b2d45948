"""Every group of ranks waits as long as the process group, not the 30 minutes that torch gives a new group."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.distributed.ranks import run_ranks
from ziggurat.optim.shampoo.placement import RankGroups
from ziggurat.parallel.groups import limit_waits, new_group

KINDS = ("new", "mesh", "shampoo")
TIMEOUT = timedelta(seconds=4)


def waits(rank: int) -> dict[str, tuple[str, float]]:
    """Returns, of rank 0, how an exchange ends that the others do not join: the error, and after how many seconds."""
    dist.distributed_c10d._set_pg_timeout(TIMEOUT, dist.group.WORLD)  # pyright: ignore[reportPrivateUsage]
    mesh = limit_waits(init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))
    groups = {
        "new": new_group(),
        "mesh": mesh.get_group("shard"),
        "shampoo": RankGroups.of(2).group,
    }
    assert tuple(groups) == KINDS
    store = dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]
    found: dict[str, tuple[str, float]] = {}
    if rank == 0:
        for kind, group in groups.items():
            started = time.monotonic()
            try:
                dist.all_reduce(torch.ones(3), group=group)
            except RuntimeError as error:
                found[kind] = (str(error), time.monotonic() - started)
        store.set("done", "1")
    store.wait(["done"], timedelta(seconds=60))  # a process that ends would close its connections
    return found


@pytest.fixture(scope="module")
def ends() -> dict[str, tuple[str, float]]:
    return run_ranks(4, waits)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_is_missing_is_waited_for_until_the_timeout(kind: str, ends: dict[str, tuple[str, float]]) -> None:
    message, seconds = ends[kind]
    assert "imed out" in message, message
    assert seconds >= 0.9 * TIMEOUT.total_seconds()
