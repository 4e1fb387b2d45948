"""However tables are split: the marks of all ranks together are the ids of the global batch, by the ids of the dataset,
and snapshots of all ranks are the tables as they were.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distributed.ranks import run_ranks
from tests.distributed.test_sharding import BATCH, CPU, DIM, FOUR, RANKS, ROWS, SCHEMA, TWO, batch, part, plan_of
from ziggurat.core.plan import Plan
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.dirty_rows import PendingSnapshot, TrackedShard
from ziggurat.embeddings.layout import lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup

PLANS: dict[str, Plan] = {
    **TWO,
    "grid": plan_of(2, 2, user=("grid", (0, 1)), item=("grid", (0, 1)), tags=("table_row_wise", (0, 1))),
}
OPTIMIZERS = ("sgd", "adagrad", "rowwise_adagrad", "adam")
CASES = [(plan, optimizer) for plan in PLANS for optimizer in OPTIMIZERS]
CASES += [("grid_of_hosts", "adagrad"), ("grid_of_hosts", "rowwise_adagrad")]
PLANS["grid_of_hosts"] = FOUR["grid"]
STEPS = 3

Results = dict[tuple[str, str], list[dict[str, Any]]]
Place = tuple[str, int, int]
"""Table, first row in stored order, first column."""


def step(lookup: EmbeddingLookup, number: int, rank: int, world_size: int) -> None:
    emb_BFD = lookup(part(batch(number), rank, world_size))
    target_FD = torch.linspace(-1, 1, 4 * DIM).view(4, DIM)
    (world_size * (emb_BFD.square() + emb_BFD * target_FD).sum() / BATCH).backward()
    lookup.exchange()


def place(shard: TrackedShard) -> Place:
    row, column = shard.weight.first
    return shard.table, row, column


def everything(pending: PendingSnapshot, most: int) -> tuple[Tensor, dict[str, Tensor]]:
    taken = [(torch.empty(0, dtype=torch.int64), dict[str, Tensor]())]
    while (some := pending.take(most)) is not None:
        taken.append(some)
    names = taken[-1][1].keys()
    return torch.cat([ids for ids, _ in taken]), {
        name: torch.cat([numbers[name] for _, numbers in taken[1:]]) for name in names
    }


def ids_in(shard: TrackedShard, rows: Tensor) -> list[int]:
    """Returns the ids of these rows."""
    ids = rows + shard.weight.first[0] if shard.weight.rows is None else shard.weight.rows[rows]
    return sorted(ids.tolist())


def whole(shard: TrackedShard) -> dict[str, Tensor]:
    tensors = {"": shard.weight.tensor, **{name: state.tensor for name, state in shard.states.items()}}
    return {name: tensor.clone() for name, tensor in tensors.items()}


def differ(shard: TrackedShard, before: dict[str, Tensor]) -> list[int]:
    now, rows = whole(shard), len(shard.weight.tensor)
    found = [(now[name] != tensor).view(rows, -1).any(1) for name, tensor in before.items() if rows]
    return ids_in(shard, torch.stack(found).any(0).nonzero().squeeze(1)) if found else []


def followed(rank: int, plan: Plan, optimizer: str) -> dict[str, Any]:
    config = EmbeddingsConfig.model_validate({"dim": DIM, "init_std": 0.1, "optimizer": {"name": optimizer, "lr": 0.1}})
    layout = lay_out(config, SCHEMA, {"tags": "mean", "history": "sum"})
    lookup = EmbeddingLookup(layout, plan, CPU, 3, row_ranks=RANKS)
    shards = lookup.shards()
    marked: list[dict[Place, list[int]]] = []
    changed: list[dict[Place, list[int]]] = []
    for number in range(STEPS):
        before = {place(shard): whole(shard) for shard in shards}
        step(lookup, number, rank, plan.world_size)
        with torch.no_grad():
            lookup(part(batch(number + 50), rank, plan.world_size))
        begun = {place(shard): (shard, shard.dirty.begin_snapshot("last", "last")) for shard in shards}
        marked.append({at: ids_in(shard, everything(each, 4)[0]) for at, (shard, each) in begun.items()})
        changed.append({at: differ(shard, before[at]) for at, (shard, _) in begun.items()})
    return {"marked": marked, "changed": changed, "equal": copied(lookup, rank, plan)}


def copied(lookup: EmbeddingLookup, rank: int, plan: Plan) -> bool:
    """Returns whether full snapshots taken by a thread during some steps equal the shards before them."""
    shards = lookup.shards()
    then, pending = [whole(shard) for shard in shards], [shard.dirty.begin_snapshot("all", "base") for shard in shards]
    taken: list[tuple[Tensor, dict[str, Tensor]]] = []
    copier = threading.Thread(target=lambda: taken.extend(everything(each, 3) for each in pending))
    step(lookup, STEPS, rank, plan.world_size)
    copier.start()
    for number in range(STEPS + 1, STEPS + 5):
        step(lookup, number, rank, plan.world_size)
    copier.join()
    return len(taken) == len(shards) and all(
        rows.tolist() == [*range(len(expected[""]))]
        and all(torch.equal(numbers[name], tensor) for name, tensor in expected.items() if len(tensor))
        for (rows, numbers), expected in zip(taken, then, strict=True)
    )


def followed_all(rank: int, cases: list[tuple[str, str]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Runs all cases in one process group, as starting ranks takes most of the time."""
    return {case: followed(rank, PLANS[case[0]], case[1]) for case in cases}


def ids_of(number: int) -> dict[str, list[int]]:
    """Returns table -> the ids that all ranks look up."""
    found: dict[str, set[int]] = {}
    for ids in (batch(number).bags, batch(number).sequences):
        assert ids is not None
        for key, jagged in ids.to_dict().items():
            found.setdefault(SCHEMA.tables[key], set()).update(jagged.values().tolist())
    return {table: sorted(ids) for table, ids in found.items()}


@pytest.fixture(scope="module")
def ranks() -> Results:
    """Returns case -> the result of each of its ranks."""
    results: Results = {}
    for world_size in (2, 4):
        cases = [case for case in CASES if PLANS[case[0]].world_size == world_size]
        found = run_ranks(world_size, followed_all, cases)
        results.update({case: [rank[case] for rank in found] for case in cases})
    return results


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_dirty_rows_of_all_ranks_are_the_ids_of_the_batch(case: tuple[str, str], ranks: Results) -> None:
    for number in range(STEPS):
        found: dict[tuple[str, int], list[int]] = {}
        for rank in ranks[case]:
            for (table, _, column), ids in rank["marked"][number].items():
                found.setdefault((table, column), []).extend(ids)
        assert {table for table, _ in found} == {*ROWS}
        for (table, column), ids in found.items():
            whole_on_both = case[1] == "adam" or PLANS[case[0]].placements[table].sharding == "data_parallel"
            expected = ids_of(number)[table]
            assert sorted(ids) == sorted(expected * (2 if whole_on_both else 1)), (table, column)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_dirty_rows_are_the_rows_that_changed(case: tuple[str, str], ranks: Results) -> None:
    for rank in ranks[case]:
        assert rank["marked"] == rank["changed"]


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_snapshots_equal_the_earlier_shards(case: tuple[str, str], ranks: Results) -> None:
    assert all(rank["equal"] for rank in ranks[case])
