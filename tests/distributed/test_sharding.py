"""Every sharding equals a single process: the same rows forward, the same weights after training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.distributed.rank_parts import part
from tests.distributed.ranks import run_ranks
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Placement, Plan, Sharding
from ziggurat.core.row_order import FrequencyRanks, frequency_ranks
from ziggurat.core.schema import Schema
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.parallel.config import ParallelConfig
from ziggurat.parallel.tensor_slices import gather
from ziggurat.training.process_group import process_group

ROWS = {"user": 61, "item": 37, "tags": 10}
SCHEMA = Schema(
    categorical=("user", "item"),
    bags=("tags",),
    sequences=("history",),
    tables={**{name: name for name in ROWS}, "history": "item"},
    rows=ROWS,
    labels=("y",),
)
RANKS: dict[str, FrequencyRanks] = {
    name: frequency_ranks(np.random.default_rng(rows).integers(0, 9, rows), rows) for name, rows in ROWS.items()
}
"""For plans that order rows."""
DIM, STEPS, BATCH = 8, 20, 13  # a batch that no number of ranks divides
CPU = torch.device("cpu")


def batch(step: int) -> Batch:
    """Returns the step's global batch."""
    draw = torch.Generator().manual_seed(step)
    lengths = [torch.ones(BATCH), torch.ones(BATCH), torch.randint(0, 4, (BATCH,), generator=draw)]
    values = [
        torch.randint(0, ROWS[name], (int(n.sum()),), generator=draw) for name, n in zip(ROWS, lengths, strict=True)
    ]
    bags = KeyedJaggedTensor(keys=[*ROWS], values=torch.cat(values), lengths=torch.cat(lengths).int())
    seen = torch.randint(0, 3, (BATCH,), generator=draw)
    history = torch.randint(0, ROWS["item"], (int(seen.sum()),), generator=draw)
    sequences = KeyedJaggedTensor(keys=["history"], values=history, lengths=seen.int())
    return Batch(torch.zeros(BATCH, 0), bags, sequences, torch.zeros(BATCH, 1))


def trained(
    rank: int,
    plan: Plan,
    optimizer: dict[str, Any],
    parallel: ParallelConfig = ParallelConfig(),  # noqa: B008 - frozen
) -> dict[str, Any]:
    """Returns the fields of this rank's rows in the first step, and after some steps (table, row, column) ->
    weights."""
    config = EmbeddingsConfig.model_validate({"dim": DIM, "init_std": 0.1, "optimizer": optimizer})
    layout = lay_out(config, SCHEMA, {"tags": "mean", "history": "sum"})
    lookup = EmbeddingLookup(layout, plan, CPU, 3, parallel, row_ranks=RANKS)
    target_FD = torch.linspace(-1, 1, 4 * DIM).view(4, DIM)
    fields: Tensor | None = None
    for step in range(STEPS):
        emb_BFD = lookup(part(batch(step), rank, plan.world_size))
        fields = emb_BFD.detach().clone() if fields is None else fields
        loss = (emb_BFD * emb_BFD.detach().sin() + emb_BFD * target_FD).sum() / BATCH
        (loss * plan.world_size).backward()  # exchanges divide gradients by the number of ranks
        lookup.exchange()
    shards = {
        (tensor_slice.name, *tensor_slice.first): tensor_slice.tensor.clone() for tensor_slice in lookup.tensor_slices()
    }
    ids = {
        (tensor_slice.name, *tensor_slice.first): tensor_slice.rows
        for tensor_slice in lookup.tensor_slices()
        if tensor_slice.rows is not None
    }
    whole = gather(lookup.tensor_slices()), gather(lookup.state_slices())
    return {"fields": fields, "shards": shards, "ids": ids, "whole": whole, "rank": dist.get_rank()}


def trained_all(rank: int, plans: dict[str, Plan]) -> dict[tuple[str, str], dict[str, Any]]:
    """Trains every plan with every optimizer in one process group, as starting ranks takes most of the time."""
    return {
        (name, optimizer["name"]): trained(rank, plan, optimizer)
        for name, plan in plans.items()
        for optimizer in OPTIMIZERS
    }


def plan_of(
    world_size: int,
    local_size: int,
    **placements: tuple[Sharding, tuple[int, ...]] | tuple[Sharding, tuple[int, ...], int],
) -> Plan:
    return Plan(world_size, {name: Placement(*placement) for name, placement in placements.items()}, local_size)


TWO: dict[str, Plan] = {
    "table_wise": plan_of(2, 2, user=("table_wise", (0,)), item=("table_wise", (1,)), tags=("table_wise", (1,))),
    "row_wise": plan_of(2, 2, user=("row_wise", (0, 1)), item=("row_wise", (0, 1)), tags=("row_wise", (0, 1))),
    "column_wise": plan_of(
        2, 2, user=("column_wise", (0, 1)), item=("column_wise", (1, 0)), tags=("column_wise", (0, 1))
    ),
    "columns_of_one_rank": plan_of(
        2, 2, user=("column_wise", (0, 0)), item=("column_wise", (1, 1)), tags=("column_wise", (0, 1))
    ),
    "data_parallel": plan_of(
        2, 2, user=("data_parallel", (0, 1)), item=("data_parallel", (0, 1)), tags=("table_wise", (1,))
    ),
    "mixed": plan_of(2, 2, user=("row_wise", (0, 1)), item=("column_wise", (1, 0)), tags=("table_wise", (0,))),
    "ordered": plan_of(
        2, 2, user=("row_wise", (0, 1), 20), item=("table_wise", (1,), 37), tags=("column_wise", (0, 1), 0)
    ),
}
FOUR: dict[str, Plan] = {
    "table_row_wise": plan_of(
        4, 2, user=("table_row_wise", (0, 1)), item=("table_row_wise", (2, 3)), tags=("table_row_wise", (2, 3))
    ),
    "grid": plan_of(4, 2, user=("grid", (0, 1, 2, 3)), item=("grid", (0, 1, 2, 3)), tags=("grid", (0, 1, 2, 3))),
    "all_mixed": plan_of(
        4, 2, user=("grid", (0, 1, 2, 3)), item=("row_wise", (0, 1, 2, 3)), tags=("table_row_wise", (2, 3))
    ),
    "all_ordered": plan_of(
        4, 2, user=("grid", (0, 1, 2, 3), 9), item=("row_wise", (0, 1, 2, 3), 5), tags=("table_row_wise", (2, 3), 3)
    ),
}
OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "lr": 0.1},
    {"name": "adagrad", "lr": 0.1},
    {"name": "rowwise_adagrad", "lr": 0.1},
]
CASES = [(name, optimizer["name"]) for name in (*TWO, *FOUR) for optimizer in OPTIMIZERS]

Results = dict[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def ranks() -> Results:
    """Returns case -> the result of each of its ranks."""
    results: Results = {}
    for world_size, plans in ((2, TWO), (4, FOUR)):
        found = run_ranks(world_size, trained_all, plans)
        results.update({case: [rank[case] for rank in found] for case in found[0]})
    return results


@pytest.fixture(scope="module")
def alone() -> dict[str, dict[str, Any]]:
    """Returns optimizer -> the result of a single process."""
    with process_group(CPU):
        return {each["name"]: trained(0, Plan.single_device(ROWS), each) for each in OPTIMIZERS}


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_first_lookup_equals_that_of_one_process(
    case: tuple[str, str], ranks: Results, alone: dict[str, dict[str, Any]]
) -> None:
    fields_BFD, reference_BFD = torch.cat([rank["fields"] for rank in ranks[case]]), alone[case[1]]["fields"]
    assert torch.equal(fields_BFD[:, :2], reference_BFD[:, :2])
    # Ranks that hold some rows of a bag each sum theirs first: three float32 rows in another order.
    torch.testing.assert_close(fields_BFD[:, 2:], reference_BFD[:, 2:], rtol=0, atol=6e-8)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_trained_weights_equal_those_of_one_process(
    case: tuple[str, str], ranks: Results, alone: dict[str, dict[str, Any]]
) -> None:
    whole = {key[0]: weight for key, weight in alone[case[1]]["shards"].items()}
    seen = {table: torch.zeros_like(weight) for table, weight in whole.items()}
    for rank in ranks[case]:
        for (table, row, column), weight in rank["shards"].items():
            columns = slice(column, column + weight.shape[1])
            ids = rank["ids"].get((table, row, column), torch.arange(row, row + weight.shape[0])).long()
            torch.testing.assert_close(weight, whole[table][ids, columns], rtol=0, atol=1e-6)
            seen[table][ids, columns] += 1
    plan = {**TWO, **FOUR}[case[0]]
    for table, count in seen.items():  # every weight is on exactly one rank, or on all
        copies = plan.world_size if plan.placements[table].sharding == "data_parallel" else 1
        assert bool((count == copies).all()), (table, count)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_a_checkpoint_identifies_rows_by_their_ids(
    case: tuple[str, str], ranks: Results, alone: dict[str, dict[str, Any]]
) -> None:
    for found, expected in zip(ranks[case][0]["whole"], alone[case[1]]["whole"], strict=True):
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=1e-6)


def test_hot_rows_are_distributed_over_the_ranks(ranks: Results) -> None:
    """Of the rows by falling frequency, rank r holds those whose number modulo the ranks is r, hottest first."""
    for rank, found in enumerate(ranks["ordered", "sgd"]):
        ids = found["ids"]["user", 31 * rank, 0]
        assert RANKS["user"][ids.numpy()].tolist() == list(range(rank, 61, 2))
        assert ("item", 0, 0) not in found["ids"] or rank == 1


def test_two_runs_are_bit_identical(ranks: Results) -> None:
    again = run_ranks(4, trained_all, {"all_mixed": FOUR["all_mixed"]})
    for optimizer in OPTIMIZERS:
        case = ("all_mixed", optimizer["name"])
        for rank, before in zip(again, ranks[case], strict=True):
            assert rank[case]["shards"].keys() == before["shards"].keys()
            assert all(torch.equal(rank[case]["shards"][key], weight) for key, weight in before["shards"].items())
