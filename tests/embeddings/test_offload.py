"""Offloaded tables train exactly like tables in memory, bit for bit."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.embeddings.test_lookup import CPU, SCHEMA, make_batch
from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError, FeatureError
from ziggurat.core.plan import Plan
from ziggurat.embeddings import offload as beyond_memory
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.copy_on_write import PendingSnapshot
from ziggurat.embeddings.layout import lay_out
from ziggurat.embeddings.lookup import EmbeddingLookup, StartedLookup
from ziggurat.embeddings.offload import OffloadFolder
from ziggurat.optim.rows import RowAdagrad, RowOptimizerConfig, RowSGD, RowwiseAdagrad
from ziggurat.storage.row_cache import RowCache
from ziggurat.storage.row_store import Floats, RowStore

FUSED: list[RowOptimizerConfig] = [RowSGD(lr=0.3), RowAdagrad(lr=0.1), RowwiseAdagrad(lr=0.1)]
SLOTS = {"user": 9, "item": 27}
"""The most users and items, with histories, that a batch of eight rows can need."""


def make(folder: Path | None, optimizer: RowOptimizerConfig, slots: dict[str, int] = SLOTS) -> EmbeddingLookup:
    """Creates a lookup in memory, or with these slots and the other rows in a folder."""
    config = EmbeddingsConfig(dim=8, init_std=1.0, optimizer=optimizer)
    layout = lay_out(config, SCHEMA, {"tags": "sum", "history": "mean"})
    plan = Plan.single_device(table.name for table in layout.tables)
    if folder is None:
        return EmbeddingLookup(layout, plan, CPU, 0)
    for name, count in slots.items():
        plan = plan.placed(name, "table_wise", (0,), slots=count)
    return EmbeddingLookup(layout, plan, CPU, 0, offload=OffloadFolder(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "rows"


def step(lookup: EmbeddingLookup, batch: Batch, started: StartedLookup, number: int) -> Tensor:
    rows = lookup.finish(started)
    emb_BFD = lookup.fields(rows.by_feature, rows.masks, batch.dense_BF)
    (emb_BFD * torch.linspace(-1, 1 + number, emb_BFD.numel()).view(emb_BFD.shape)).sum().backward()
    lookup.exchange()
    return emb_BFD.detach()


def train(lookup: EmbeddingLookup, count: int, depth: int, first: int = 0, evaluate_at: int = -1) -> list[Tensor]:
    """Trains some steps; returns the fields of each, and of an evaluation before one of them."""
    found: list[Tensor] = []
    line: deque[tuple[Batch, StartedLookup]] = deque()
    batches = iter([make_batch(seed) for seed in range(first, first + count)])
    for number in range(first, first + count):
        if number == evaluate_at:
            with torch.no_grad():
                found += [lookup(make_batch(900 + k)) for k in range(3)]
        while len(line) <= depth and (batch := next(batches, None)) is not None:
            line.append((batch, lookup.start(batch)))
        found.append(step(lookup, *line.popleft(), number))
    return found


def rows_of(lookup: EmbeddingLookup) -> dict[str, Tensor]:
    """Returns ``table/tensor`` -> all its rows, read as a checkpoint does."""
    found: dict[str, Tensor] = {}
    for shard in lookup.shards():
        pending = shard.dirty.begin_snapshot("all", "last")
        for name, tensor in take_all(pending).items():
            found[f"{shard.table}/{name}"] = tensor
    return found


def take_all(pending: PendingSnapshot, most: int = 4) -> dict[str, Tensor]:
    parts: list[tuple[Tensor, dict[str, Tensor]]] = []
    while (part := pending.take(most)) is not None:
        parts.append(part)
    names = parts[0][1] if parts else {}
    return {"ids": torch.cat([ids for ids, _ in parts])} | {
        name: torch.cat([numbers[name] for _, numbers in parts]) for name in names
    }


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


@pytest.fixture
def closing() -> Iterator[list[EmbeddingLookup]]:
    made: list[EmbeddingLookup] = []
    yield made
    for lookup in made:
        lookup.close()


@pytest.mark.parametrize("optimizer", FUSED, ids=lambda o: o.name)
@pytest.mark.parametrize("depth", [0, 1, 4])
def test_training_is_bit_identical_to_tables_in_memory(
    optimizer: RowOptimizerConfig, depth: int, folder: Path, closing: list[EmbeddingLookup]
) -> None:
    inside, beyond = make(None, optimizer), make(folder, optimizer)
    closing.append(beyond)
    assert (inside.prefetch_batches, beyond.prefetch_batches) == (0, 4)
    for multiplier, first in ((1.0, 0), (0.3, 12)):
        for lookup in (inside, beyond):
            lookup.scale_learning_rates(multiplier)
        expected, found = train(inside, 12, 0, first, first + 6), train(beyond, 12, depth, first, first + 6)
        for number, (left, right) in enumerate(zip(expected, found, strict=True)):
            assert torch.equal(left, right), number
    assert_same(rows_of(inside), rows_of(beyond))
    assert beyond.sharded is not None
    assert beyond.sharded.offloaded is not None
    assert all(cache.counts.evicted > 0 for cache in beyond.sharded.offloaded.caches)


def test_a_snapshot_holds_the_rows_as_of_its_beginning(folder: Path, closing: list[EmbeddingLookup]) -> None:
    inside, beyond = make(None, RowwiseAdagrad(lr=0.1)), make(folder, RowwiseAdagrad(lr=0.1))
    closing.append(beyond)
    every: list[list[tuple[str, PendingSnapshot]]] = []
    for lookup, depth in ((inside, 0), (beyond, 3)):
        train(lookup, 6, depth)
        rows_of(lookup)  # clears the dirty rows
        train(lookup, 4, depth, 6)
        every.append([(shard.table, shard.dirty.begin_snapshot("last", "last")) for shard in lookup.shards()])
    for lookup, depth, pendings in ((inside, 0, every[0]), (beyond, 3, every[1])):
        firsts = {table: pending.take(3) for table, pending in pendings}
        assert all(part is not None for part in firsts.values())
        train(lookup, 8, depth, 10)
    for (table, left), (_, right) in zip(*every, strict=True):
        assert left.rows == right.rows
        assert_same(
            {f"{table}/{k}": v for k, v in take_all(left).items()},
            {f"{table}/{k}": v for k, v in take_all(right).items()},
        )
    assert_same(rows_of(inside), rows_of(beyond))


def test_batches_that_are_dropped_change_nothing(folder: Path, closing: list[EmbeddingLookup]) -> None:
    inside, beyond = make(None, RowAdagrad(lr=0.1)), make(folder, RowAdagrad(lr=0.1))
    closing.append(beyond)
    train(inside, 5, 0)
    train(beyond, 5, 2)
    started = [beyond.start(make_batch(seed)) for seed in range(50, 54)]
    for each in started[::-1]:
        beyond.drop(each)
    assert torch.equal(train(inside, 1, 0, 5)[0], train(beyond, 1, 2, 5)[0])
    assert_same(rows_of(inside), rows_of(beyond))


@pytest.mark.parametrize("bad", [30, -1])
def test_an_id_outside_its_table_is_named(bad: int, folder: Path, closing: list[EmbeddingLookup]) -> None:
    lookup = make(folder, RowSGD())
    closing.append(lookup)
    batch = make_batch(0)
    assert batch.bags is not None
    batch.bags.values()[8 + 3] = bad
    with pytest.raises(FeatureError, match=rf"feature 'item': id {bad} is outside \[0, 30\).*table 'item', on rank 0"):
        lookup(batch)


def test_too_few_slots_for_a_batch_are_reported(folder: Path, closing: list[EmbeddingLookup]) -> None:
    lookup = make(folder, RowSGD(), {"user": 3})
    closing.append(lookup)
    with pytest.raises(ConfigError, match=r"table 'user': a batch looks up \d of its rows, but memory has slots for 3"):
        lookup(make_batch(0))
    assert lookup.sharded is not None
    assert lookup.sharded.offloaded is not None
    assert not lookup.sharded.offloaded.prefetcher.run_between(lambda: None)  # smaller batches still work


def _open_in(folder: Path) -> int:
    """Returns the number of files in a folder that this process has open, also anonymous ones."""
    targets = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sum(folder in each.parents for each in targets)


def test_files_on_disk_are_anonymous_and_deleted_on_close(folder: Path) -> None:
    first, second = make(folder, RowSGD()), make(folder, RowSGD())
    assert _open_in(folder) == 4
    assert list(folder.iterdir()) == []
    first.close()
    assert _open_in(folder) == 2
    second(make_batch(0))
    second.close()
    assert _open_in(folder) == 0


def test_a_failed_construction_leaves_no_file_open(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crowd(RowCache):
        def __init__(self, store: RowStore, tensors: Sequence[Floats], name: str = "") -> None:
            if name == "item":
                raise MemoryError(name)
            super().__init__(store, tensors, name)

    monkeypatch.setattr(beyond_memory, "RowCache", Crowd)
    with pytest.raises(MemoryError, match="item"):
        make(folder, RowSGD())
    assert _open_in(folder) == 0
    assert not [thread.name for thread in threading.enumerate() if thread.name == "look-ahead"]


def test_replacing_no_rows_changes_nothing(folder: Path, closing: list[EmbeddingLookup]) -> None:
    lookup = make(folder, RowAdagrad(lr=0.1))
    closing.append(lookup)
    before = rows_of(lookup)
    for tensor_slice in [*lookup.tensor_slices(), *lookup.state_slices()]:
        if tensor_slice.sink is not None:
            tensor_slice.sink.put(torch.empty(0, dtype=torch.int64), 0, torch.empty(0, 8))
            tensor_slice.sink.flush()
    assert_same(before, rows_of(lookup))
