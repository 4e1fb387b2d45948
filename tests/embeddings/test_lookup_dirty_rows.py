"""Dirty rows of the tables of a lookup: exactly the rows that training changes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from test_dirty_rows import check, copies, dirty_rows, everything
from test_lookup import CPU, OPTIMIZERS, SCHEMA, make_batch
from torch import Tensor

from ziggurat.core.batch import Batch
from ziggurat.core.errors import FeatureError
from ziggurat.core.plan import Plan
from ziggurat.core.row_order import FrequencyRanks, frequency_ranks
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.dirty_rows import TrackedShard
from ziggurat.embeddings.initial import fill_initial
from ziggurat.embeddings.layout import Positions, lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.interactions.sequences.attention_pooling import AttentionPooling
from ziggurat.optim.rows import RowAdagrad, RowAdam, RowOptimizerConfig, RowSGD, RowwiseAdagrad

EVERY: list[RowOptimizerConfig] = [
    *OPTIMIZERS,
    RowAdam(lr=0.01, rows="all"),
    RowAdam(lr=0.01, rows="all", weight_decay=0.1),
]
POOLINGS: list[dict[str, Any]] = [
    {"tags": "sum", "history": "mean"},
    {"tags": "mean", "history": "sum"},
    {"tags": "mean", "history": Positions(AttentionPooling.Config(), 3)},
]


def named(optimizer: RowOptimizerConfig) -> str:
    return "-".join(str(value) for value in (optimizer.name, *optimizer.model_dump(exclude={"name"}).values()))


def make_lookup(
    optimizer: RowOptimizerConfig,
    pooling: dict[str, Any] = POOLINGS[0],
    plan: Plan | None = None,
    ranks: dict[str, FrequencyRanks] | None = None,
) -> EmbeddingLookup:
    layout = lay_out(EmbeddingsConfig(dim=8, init_std=1.0, optimizer=optimizer), SCHEMA, pooling)
    plan = plan or Plan.single_device(table.name for table in layout.tables)
    return EmbeddingLookup(layout, plan, CPU, 0, row_ranks=ranks or {})


def train(lookup: EmbeddingLookup, batch: Batch, seed: int = 0) -> None:
    emb_BFD = lookup(batch)
    (emb_BFD * torch.randn(emb_BFD.shape, generator=torch.Generator().manual_seed(seed))).sum().backward()


def all_tensors(shard: TrackedShard) -> dict[str, Tensor]:
    return {"": shard.weight.tensor, **{name: state.tensor for name, state in shard.states.items()}}


def all_copies(lookup: EmbeddingLookup) -> dict[str, dict[str, Tensor]]:
    return {shard.table: copies(all_tensors(shard)) for shard in lookup.shards()}


def differing(shard: TrackedShard, before: dict[str, Tensor]) -> list[int]:
    """Returns the rows of which any bit differs."""
    found = torch.zeros(len(shard.weight.tensor), dtype=torch.bool)
    for name, tensor in all_tensors(shard).items():
        found |= (tensor.view(torch.int32) != before[name].view(torch.int32)).view(len(tensor), -1).any(1)
    return found.nonzero().squeeze(1).tolist()


def ids_of(batch: Batch) -> dict[str, list[int]]:
    """Returns table -> the ids that the batch looks up."""
    found: dict[str, set[int]] = {}
    for part in (batch.bags, batch.sequences):
        assert part is not None
        for key, ids in part.to_dict().items():
            found.setdefault(SCHEMA.tables[key], set()).update(ids.values().tolist())
    return {table: sorted(ids) for table, ids in found.items()}


@pytest.mark.parametrize("pooling", POOLINGS, ids=["sum", "mean", "positions"])
@pytest.mark.parametrize("optimizer", EVERY, ids=named)
def test_dirty_rows_are_those_whose_bits_differ(optimizer: RowOptimizerConfig, pooling: dict[str, Any]) -> None:
    lookup = make_lookup(optimizer, pooling)
    assert {shard.table for shard in lookup.shards()} == {"user", "item", "tags"}
    assert all(shard.dirty.count_changed("base") == 0 for shard in lookup.shards())
    every: dict[str, set[int]] = {table: set() for table in SCHEMA.rows}
    for step in range(4):
        before = all_copies(lookup)
        train(lookup, make_batch(step), step)
        for shard in lookup.shards():
            rows = dirty_rows(shard.dirty)
            shard.dirty.begin_snapshot("last", "last").drop()
            differ = differing(shard, before[shard.table])
            if isinstance(optimizer, RowAdam) and optimizer.rows == "all":
                assert rows == list(range(shard.spec.rows))
                assert {*differ} <= {*rows}
            else:
                assert 0 < len(rows) < shard.spec.rows
                assert rows == differ
            every[shard.table] |= {*rows}
            assert dirty_rows(shard.dirty, "base") == sorted(every[shard.table])


@pytest.mark.parametrize("optimizer", EVERY, ids=named)
def test_rows_with_a_zero_gradient_may_be_dirty(optimizer: RowOptimizerConfig) -> None:
    """Some rows of the batch have weight zero."""
    lookup, batch = make_lookup(optimizer), make_batch(0)
    before = all_copies(lookup)
    weights_B = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0])
    (lookup(batch) * weights_B[:, None, None]).sum().backward()
    for shard in lookup.shards():
        rows = dirty_rows(shard.dirty)
        assert {*differing(shard, before[shard.table])} <= {*rows}
        assert {*ids_of(batch)[shard.table]} <= {*rows}


@pytest.mark.parametrize("optimizer", EVERY, ids=named)
def test_without_updates_no_row_is_dirty(optimizer: RowOptimizerConfig) -> None:
    lookup = make_lookup(optimizer)
    with torch.no_grad():
        lookup(make_batch(0))
    lookup.eval()
    lookup(make_batch(1))
    lookup.train()
    lookup(make_batch(2))  # no backward pass follows
    lookup.drop(lookup.start(make_batch(3)))
    assert [shard.dirty.count_changed("base") for shard in lookup.shards()] == [0, 0, 0]


@pytest.mark.parametrize("optimizer", [RowSGD(lr=0.3), RowwiseAdagrad(lr=0.1), RowAdam(lr=0.1)], ids=named)
def test_a_batch_in_flight_is_marked_only_when_it_is_updated(optimizer: RowOptimizerConfig) -> None:
    """A snapshot that begins while ids are in flight, or after the lookup, does not contain the batch's updates."""
    lookup, batch, following = make_lookup(optimizer), make_batch(0), make_batch(1)
    started = lookup.start(batch)
    ahead = lookup.start(following)
    lookup.send_ids(ahead)
    rows = lookup.finish(started)
    for shard in lookup.shards():
        assert shard.dirty.begin_snapshot("last", "last").take(99) is None
    lookup.fields(rows.by_feature, rows.masks, batch.dense_BF).sum().backward()
    for shard in lookup.shards():
        assert dirty_rows(shard.dirty) == ids_of(batch)[shard.table]
        shard.dirty.begin_snapshot("last", "last").drop()
    rows = lookup.finish(ahead)
    before = all_copies(lookup)
    snapshots = [shard.dirty.begin_snapshot("all", "base") for shard in lookup.shards()]
    lookup.fields(rows.by_feature, rows.masks, following.dense_BF).sum().backward()
    for shard, snapshot in zip(lookup.shards(), snapshots, strict=True):
        check([*everything(snapshot, 4)], [*range(shard.spec.rows)], before[shard.table])
        assert dirty_rows(shard.dirty) == ids_of(following)[shard.table]


@pytest.mark.parametrize("optimizer", EVERY, ids=named)
def test_a_thread_copies_tables_while_they_are_trained(optimizer: RowOptimizerConfig) -> None:
    lookup = make_lookup(optimizer)
    train(lookup, make_batch(0))
    then, wanted = all_copies(lookup), {shard.table: dirty_rows(shard.dirty) for shard in lookup.shards()}
    pending = [(shard, shard.dirty.begin_snapshot("last", "last")) for shard in lookup.shards()]
    train(lookup, make_batch(0), 1)
    taken: dict[str, list[tuple[Tensor, dict[str, Tensor]]]] = {}

    def copy() -> None:
        for shard, each in pending:
            taken[shard.table] = [*everything(each, 3)]

    copier = threading.Thread(target=copy)
    copier.start()
    for step in range(1, 30):
        train(lookup, make_batch(step), step)
    copier.join()
    for table, rows in wanted.items():
        assert rows
        check(taken[table], rows, then[table])


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        (RowSGD(), {}),
        (RowAdagrad(), {"sum": 2}),
        (RowwiseAdagrad(), {"sum": 1}),
        (RowAdam(), {"exp_avg": 2, "exp_avg_sq": 2}),
    ],
    ids=str,
)
def test_shards_are_live(optimizer: RowOptimizerConfig, states: dict[str, int]) -> None:
    """The tensors of shards are, and stay, views of the kernel's tensors."""
    lookup = make_lookup(optimizer)
    shards = lookup.shards()
    for shard in shards:
        initial = torch.empty(shard.spec.rows, 8)
        fill_initial(initial, shard.table, 1.0, 0)
        assert torch.equal(shard.dirty.tensors[""], initial)
        assert {name: state.tensor.ndim for name, state in shard.states.items()} == states
        assert {state.name for state in shard.states.values()} == {f"{shard.table}/{name}" for name in states}
    for step in range(3):
        train(lookup, make_batch(step))
        lookup.scale_learning_rates(0.5)
    live = [(shard.table, all_tensors(shard)) for shard in shards]
    for kernel in lookup.sharded._kernels() if lookup.sharded is not None else ():
        weights, found = kernel.emb_module.split_embedding_weights(), kernel.emb_module.get_optimizer_state()
        for number, weight in enumerate(weights):
            tensors = live.pop(0)[1]
            fresh = {"": weight, **(found[number] if found else {})}
            assert {name: (t.data_ptr(), t.shape) for name, t in tensors.items()} == {
                name: (t.data_ptr(), t.shape) for name, t in fresh.items()
            }
    for (table, tensors), module in zip(live, lookup.replicated, strict=True):
        assert table == module.spec.name
        assert tensors[""] is not module.weight_RD  # detached, but the same memory
        assert tensors[""].data_ptr() == module.weight_RD.data_ptr()


def test_rows_stored_in_another_order_have_their_ids() -> None:
    plan = Plan.single_device(SCHEMA.rows).placed("item", "table_wise", (0,), 3).placed("tags", "table_wise", (0,), 9)
    draw = np.random.default_rng(0)
    ranks = {name: frequency_ranks(draw.integers(0, 99, rows), rows) for name, rows in SCHEMA.rows.items()}
    lookup, batch = make_lookup(RowwiseAdagrad(), plan=plan, ranks=ranks), make_batch(0)
    train(lookup, batch)
    for shard in lookup.shards():
        rows = dirty_rows(shard.dirty)
        assert (shard.weight.rows is not None) == (shard.table != "user")
        assert all((state.rows is None) == (shard.weight.rows is None) for state in shard.states.values())
        ids = rows if shard.weight.rows is None else shard.weight.rows[rows].tolist()
        assert sorted(ids) == ids_of(batch)[shard.table]


@pytest.mark.parametrize("optimizer", [RowwiseAdagrad(), RowAdam()], ids=named)
@pytest.mark.parametrize("bad", [30, -1])
def test_a_rejected_batch_marks_nothing(optimizer: RowOptimizerConfig, bad: int) -> None:
    lookup, batch = make_lookup(optimizer), make_batch(0)
    assert batch.bags is not None
    batch.bags.values()[8 + 3] = bad
    with pytest.raises(FeatureError, match=f"feature 'item': id {bad} "):
        lookup(batch)
    assert [shard.dirty.count_changed("base") for shard in lookup.shards()] == [0, 0, 0]
