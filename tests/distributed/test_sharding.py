"""Every way to split a table equals the single process: the same rows forward, the same weights after training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.distributed.ranks import run_ranks
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Placement, Plan, Sharding
from ziggurat.core.schema import Schema
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.training.engine import process_group

ROWS = {"user": 61, "item": 37, "tags": 10}
SCHEMA = Schema(
    categorical=("user", "item"), bags=("tags",), tables={name: name for name in ROWS}, rows=ROWS, labels=("y",)
)
DIM, STEPS, BATCH = 8, 20, 12
CPU = torch.device("cpu")


def batch(step: int) -> Batch:
    """The step's global batch."""
    draw = torch.Generator().manual_seed(step)
    lengths = [torch.ones(BATCH), torch.ones(BATCH), torch.randint(0, 4, (BATCH,), generator=draw)]
    values = [
        torch.randint(0, ROWS[name], (int(n.sum()),), generator=draw) for name, n in zip(ROWS, lengths, strict=True)
    ]
    bags = KeyedJaggedTensor(keys=[*ROWS], values=torch.cat(values), lengths=torch.cat(lengths).int())
    return Batch(torch.zeros(BATCH, 0), bags, None, torch.zeros(BATCH, 1))


def part(whole: Batch, rank: int, world_size: int) -> Batch:
    """A rank's even part of it."""
    assert whole.bags is not None
    start, stop = BATCH * rank // world_size, BATCH * (rank + 1) // world_size
    jagged = [(key, whole.bags[key]) for key in whole.bags.keys()]  # noqa: SIM118 - no dict
    lengths = [each.lengths()[start:stop] for _, each in jagged]
    values = [each.values()[each.offsets()[start] : each.offsets()[stop]] for _, each in jagged]
    bags = KeyedJaggedTensor(keys=[key for key, _ in jagged], values=torch.cat(values), lengths=torch.cat(lengths))
    return Batch(whole.dense_BF[start:stop], bags, None, whole.labels_BT[start:stop])


def trained(rank: int, plan: Plan, optimizer: dict[str, Any]) -> dict[str, Any]:
    """The first step's fields of this rank's rows, and its shards after some steps: (table, row, column) -> weights."""
    config = EmbeddingsConfig.model_validate({"dim": DIM, "init_std": 0.1, "optimizer": optimizer})
    layout = lay_out(config, SCHEMA, {})
    lookup = EmbeddingLookup(layout, plan, CPU, seed=3)
    target_FD = torch.linspace(-1, 1, 3 * DIM).view(3, DIM)
    fields: Tensor | None = None
    for step in range(STEPS):
        emb_BFD = lookup(part(batch(step), rank, plan.world_size))
        fields = emb_BFD.detach().clone() if fields is None else fields
        loss = (emb_BFD * emb_BFD.detach().sin() + emb_BFD * target_FD).sum() / BATCH
        (loss * plan.world_size).backward()  # every exchange divides gradients by the ranks
        lookup.exchange()
    shards = {
        (table, row, column): weight.clone()
        for table, weight, row, column in lookup._weights()  # pyright: ignore[reportPrivateUsage]
    }
    return {"fields": fields, "shards": shards, "rank": dist.get_rank()}


def alone(optimizer: dict[str, Any]) -> dict[str, Any]:
    with process_group(CPU):
        return trained(0, Plan.single_device(ROWS), optimizer)


def plan_of(world_size: int, local_size: int, **placements: tuple[Sharding, tuple[int, ...]]) -> Plan:
    return Plan(world_size, {name: Placement(*placement) for name, placement in placements.items()}, local_size)


TWO: dict[str, Plan] = {
    "table_wise": plan_of(2, 2, user=("table_wise", (0,)), item=("table_wise", (1,)), tags=("table_wise", (1,))),
    "row_wise": plan_of(2, 2, user=("row_wise", (0, 1)), item=("row_wise", (0, 1)), tags=("row_wise", (0, 1))),
    "column_wise": plan_of(
        2, 2, user=("column_wise", (0, 1)), item=("column_wise", (1, 0)), tags=("column_wise", (0, 1))
    ),
    "data_parallel": plan_of(
        2, 2, user=("data_parallel", (0, 1)), item=("data_parallel", (0, 1)), tags=("table_wise", (1,))
    ),
    "mixed": plan_of(2, 2, user=("row_wise", (0, 1)), item=("column_wise", (1, 0)), tags=("table_wise", (0,))),
}
FOUR: dict[str, Plan] = {
    "table_row_wise": plan_of(
        4, 2, user=("table_row_wise", (0, 1)), item=("table_row_wise", (2, 3)), tags=("table_row_wise", (2, 3))
    ),
    "grid": plan_of(4, 2, user=("grid", (0, 1, 2, 3)), item=("grid", (0, 1, 2, 3)), tags=("grid", (0, 1, 2, 3))),
    "all_mixed": plan_of(
        4, 2, user=("grid", (0, 1, 2, 3)), item=("row_wise", (0, 1, 2, 3)), tags=("table_row_wise", (2, 3))
    ),
}
OPTIMIZERS = [{"name": "sgd", "lr": 0.1}, {"name": "adagrad", "lr": 0.1}, {"name": "rowwise_adagrad", "lr": 0.1}]


def check(plan: Plan, optimizer: dict[str, Any]) -> None:
    reference = alone(optimizer)
    ranks = run_ranks(plan.world_size, trained, plan, optimizer)
    fields_BFD = torch.cat([rank["fields"] for rank in ranks])
    assert torch.equal(fields_BFD[:, :2], reference["fields"][:, :2])
    # Ranks that hold some rows of a bag each sum theirs first: three float32 rows in another order.
    torch.testing.assert_close(fields_BFD[:, 2], reference["fields"][:, 2], rtol=0, atol=6e-8)
    whole = {table: weight for (table, _, _), weight in reference["shards"].items()}
    seen = {table: torch.zeros_like(weight) for table, weight in whole.items()}
    for rank in ranks:
        for (table, row, column), weight in rank["shards"].items():
            rows, columns = slice(row, row + weight.shape[0]), slice(column, column + weight.shape[1])
            torch.testing.assert_close(weight, whole[table][rows, columns], rtol=0, atol=1e-6)
            seen[table][rows, columns] += 1
    for table, count in seen.items():  # every number on exactly one rank, or on every
        copies = plan.world_size if plan.placements[table].sharding == "data_parallel" else 1
        assert bool((count == copies).all()), (table, count)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: each["name"])
@pytest.mark.parametrize("name", TWO)
def test_two_ranks_equal_one_process(name: str, optimizer: dict[str, Any]) -> None:
    check(TWO[name], optimizer)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda each: each["name"])
@pytest.mark.parametrize("name", FOUR)
def test_two_hosts_of_two_ranks_equal_one_process(name: str, optimizer: dict[str, Any]) -> None:
    check(FOUR[name], optimizer)
