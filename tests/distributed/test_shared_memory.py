"""Shared memory between the ranks of one host gives the same bits as sockets."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import time
import unittest.mock
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.distributed.ranks import run_ranks
from tests.distributed.test_sharding import plan_of, trained
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.core.plan import Plan
from ziggurat.embeddings.host_exchange import HostExchange
from ziggurat.embeddings.host_input import HostInput
from ziggurat.parallel.config import DDP, ParallelConfig
from ziggurat.parallel.dense import gradient_sync, parallelise
from ziggurat.parallel.shared_memory import SharedSlots, can_share
from ziggurat.parallel.world import World

pytestmark = pytest.mark.skipif(
    not can_share(World(0, 2, 2), torch.device("cpu")), reason="ranks share memory on Linux and x86 alone"
)
SOCKETS = ParallelConfig(shared_memory=False)
CPU = torch.device("cpu")
PLANS: dict[str, Plan] = {
    "whole tables out of order": plan_of(
        3, 3, user=("table_wise", (2,)), item=("table_wise", (0,)), tags=("table_wise", (0,))
    ),
    "columns": plan_of(3, 3, user=("column_wise", (2, 0)), item=("table_wise", (1,)), tags=("column_wise", (0, 1))),
    "beside split rows": plan_of(
        3, 3, user=("row_wise", (0, 1, 2)), item=("column_wise", (1, 0)), tags=("table_wise", (2,))
    ),
}
SGD = {"name": "sgd", "lr": 0.1}


def with_memory_and_sockets(rank: int) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [trained(rank, plan, SGD, way) for way in (ParallelConfig(), SOCKETS)] for name, plan in PLANS.items()
    }


@pytest.fixture(scope="module")
def three() -> list[dict[str, list[dict[str, Any]]]]:
    return run_ranks(3, with_memory_and_sockets)


@pytest.mark.parametrize("name", PLANS)
def test_rows_and_gradients_equal_those_through_sockets(
    name: str, three: list[dict[str, list[dict[str, Any]]]]
) -> None:
    for rank in three:
        through_memory, through_sockets = rank[name]
        assert torch.equal(through_memory["fields"], through_sockets["fields"])
        assert through_memory["shards"].keys() == through_sockets["shards"].keys()
        for key, weight in through_memory["shards"].items():
            assert torch.equal(weight, through_sockets["shards"][key]), key


def waiting(rank: int) -> list[list[Tensor]]:
    """Returns the ids of both ranks' first batch for this rank's table, read after some other batches."""
    found: list[list[Tensor]] = []
    for others in (0, 1, 2, 3, 4, 9):
        exchange = HostInput([1, 1], SharedSlots(60, 4))

        def send(batch: int, exchange: HostInput = exchange) -> Any:
            ids = torch.tensor([batch, batch + 10]) + 100 * rank
            return exchange(KeyedJaggedTensor(keys=["a", "b"], values=ids, lengths=torch.ones(2).int())).wait()

        first = send(0)
        later = [send(batch).wait().values() for batch in range(1, others + 1)]
        found.append([first.wait().values(), *later])
    return found


def test_ids_that_are_read_after_other_batches_are_those_of_their_batch() -> None:
    """The ids of the next training batch wait like this during an evaluation."""
    for rank, found in enumerate(run_ranks(2, waiting)):
        assert [len(each) for each in found] == [1, 2, 3, 4, 5, 10]
        for batches in found:
            for batch, ids in enumerate(batches):
                assert ids.tolist() == [batch + 10 * rank, batch + 10 * rank + 100]


def exchanged(rank: int) -> list[Tensor]:
    """Exchanges batches of growing size, so that the memory grows. Rank 0 has two features, rank 1 one; order
    differs."""
    exchange = HostExchange([[2, 1], [3]], [2, 0, 1], SharedSlots(60))
    found: list[Tensor] = []
    for sizes in ([2, 1], [1, 1], [5, 4]):
        rows = sum(sizes)
        local_GD = torch.arange(rows * 3.0).view(rows, 3) + 100 * rank
        local_GD.requires_grad_()
        output = exchange.rows(local_GD.detach(), sizes)
        found += [output, exchange.gradients(output, sizes)]
    return found


def test_rows_come_in_the_requested_order_and_gradients_return() -> None:
    ranks = run_ranks(2, exchanged)
    for number, sizes in enumerate(([2, 1], [1, 1], [5, 4])):
        rows = sum(sizes)
        zero = torch.arange(rows * 3.0).view(rows, 3)
        whole = torch.cat([zero[:, 2:], zero + 100, zero[:, :2]], dim=1)  # positions: feature 1, feature 2, feature 0
        parts = whole.split(sizes)
        for rank, found in enumerate(ranks):
            assert torch.equal(found[2 * number], parts[rank])
            assert torch.equal(found[2 * number + 1], (zero + 100 * rank) / 2)


def gradients(rank: int, world_size: int) -> dict[str, list[Tensor]]:
    """Returns gradients of a model that fill several buckets, through shared memory and through sockets."""
    found: dict[str, list[Tensor]] = {}
    for name, parallel in (
        ("memory", ParallelConfig(dense=DDP(bucket_mb=0.001))),
        ("sockets", ParallelConfig(dense=DDP(bucket_mb=0.001), shared_memory=False)),
        ("bf16", ParallelConfig(dense=DDP(hook="bf16"))),
    ):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 1))
        called = parallelise(model, parallel, World(rank, world_size, world_size), CPU)
        found[name] = []
        for step in range(4):
            torch.manual_seed(100 * step + rank)
            with gradient_sync(called, now=True):
                called(torch.randn(9, 7)).square().mean().backward()
            found[name] += [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
            model.zero_grad()
    return found


@pytest.mark.parametrize("world_size", [2, 3])
def test_dense_gradients_are_the_mean_over_ranks(world_size: int) -> None:
    ranks = run_ranks(world_size, gradients, world_size)
    first = ranks[0]
    assert len(first["memory"]) == 4 * 6
    for rank in ranks:
        for mine, firsts, through_sockets, short in zip(
            rank["memory"], first["memory"], first["sockets"], first["bf16"], strict=True
        ):
            assert torch.equal(mine, firsts)
            torch.testing.assert_close(mine, through_sockets, rtol=1e-6, atol=1e-8)
            torch.testing.assert_close(short, through_sockets, rtol=2e-2, atol=1e-3)


def held() -> int:
    """Counts the open shared-memory files and process descriptors."""
    links: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            links.append(str(link.readlink()))
    return sum("memfd:ziggurat" in link or "pidfd" in link for link in links)


def refused(rank: int) -> list[str]:
    found: list[str] = []
    for pretended in (2**22 + 1, 1):  # the first is no process; the second is another process
        with unittest.mock.patch.object(os, "getpid", return_value=pretended) if rank else contextlib.nullcontext():
            try:
                SharedSlots(60)
            except EnvironmentMismatch as error:
                found.append(str(error))
    slots = SharedSlots(60)
    slots.write_buffer(slots.begin_turn(), 1000)[999] = 7
    assert held() >= 3 + 2 * 3 + 1  # its own files, those opened of all ranks, the other's process
    del slots
    gc.collect()
    assert held() == 0
    return found


def test_every_rank_reports_memory_that_cannot_be_opened() -> None:
    for found in run_ranks(2, refused):
        assert len(found) == 2
        assert all("cannot share memory: rank 0 " in message for message in found)
        assert all("set parallel.shared_memory to false" in message for message in found)


def missed(rank: int, killed: bool) -> str:
    """Returns rank 0's error when rank 1 ends, or is alive but does not publish."""
    slots = SharedSlots(60 if killed else 1.0)
    turn = slots.begin_turn()
    if rank == 1:
        if not killed:
            time.sleep(3)
        return ""
    try:
        slots.wait(turn)
    except dist.DistNetworkError as error:
        return str(error)
    return "met"


@pytest.mark.parametrize(("killed", "message"), [(True, "rank 1 has ended"), (False, "timed out after 1 s .* rank 1")])
def test_a_missing_rank_is_not_waited_for_forever(killed: bool, message: str) -> None:
    found, _ = run_ranks(2, missed, killed)
    assert re.search(message, found)
