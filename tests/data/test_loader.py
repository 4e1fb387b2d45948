"""The loader: every row once, the same order for equal seeds, exact cursors, even parts for ranks."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.conftest import SCHEMA
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.encoded.columns import Columns, concatenate
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader

MakeDataset = Callable[..., Dataset]


def loader(dataset: Dataset, batch_size: int = 50, **options: object) -> Loader:
    chosen: dict[str, object] = {"shuffle": True, "pool_blocks": 3, **options}
    return Loader(dataset.split("train"), SCHEMA, batch_size, **chosen)  # type: ignore[arg-type]


def rows_of(source: Loader, start: Cursor = Cursor()) -> list[int]:
    return [row for batch, _ in source.epoch(start) for row in batch.groups_B.tolist()]


def test_a_batch_holds_the_values_of_its_rows(make_dataset: MakeDataset) -> None:
    batch, _ = next(iter(loader(make_dataset()).epoch(Cursor())))
    row = batch.groups_B.numpy()
    np.testing.assert_array_equal(batch.dense_BF.numpy()[:, 0], row / 2)
    np.testing.assert_array_equal(batch.labels_BT.numpy()[:, 0], row % 2)
    np.testing.assert_array_equal(batch.weights_B.numpy(), 1 + row % 3)
    bags, sequences = batch.bags.to_dict(), batch.sequences.to_dict()
    np.testing.assert_array_equal(bags["user"].values().numpy(), row % 1000)
    np.testing.assert_array_equal(bags["item"].values().numpy(), row % 500)
    for jagged, expected in (
        (bags["tags"], [[(i + j) % 20 for j in range(i % 4)] for i in row]),
        (sequences["history"], [[(i * j) % 500 for j in range(i % 3)] for i in row]),
    ):
        assert [part.tolist() for part in jagged.to_dense()] == [[int(v) for v in part] for part in expected]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 7, 64, 200, 1000])
def test_an_epoch_holds_every_row_once(
    make_dataset: MakeDataset, shuffle: bool, prefetch: int, batch_size: int
) -> None:
    source = loader(make_dataset(), batch_size, shuffle=shuffle, prefetch=prefetch)
    rows = rows_of(source)
    assert sorted(rows) == list(range(1000))
    assert (rows == sorted(rows)) is (not shuffle)
    assert source.steps_per_epoch == -(-1000 // batch_size)


def test_order_follows_seed_and_epoch(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    first = rows_of(loader(dataset, seed=1))
    assert first == rows_of(loader(dataset, seed=1))
    assert first != rows_of(loader(dataset, seed=2))
    assert first != rows_of(loader(dataset, seed=1), Cursor(1, 0))


def test_shuffling_mixes_blocks(make_dataset: MakeDataset) -> None:
    rows = np.array(rows_of(loader(make_dataset(), pool_blocks=16)))
    correlation = np.corrcoef(rows, np.arange(1000))[0, 1]
    assert abs(correlation) < 0.1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stop=st.integers(0, 40), batch_size=st.integers(20, 90), pool_blocks=st.integers(1, 5))
def test_resuming_from_a_cursor_repeats_and_loses_no_row(
    make_dataset: MakeDataset, stop: int, batch_size: int, pool_blocks: int
) -> None:
    source = loader(make_dataset(), batch_size, pool_blocks=pool_blocks, prefetch=0)
    whole = rows_of(source)
    seen: list[int] = []
    cursor = Cursor()
    for number, (batch, after) in enumerate(source.epoch(cursor)):
        if number == stop:
            break
        seen += batch.groups_B.tolist()
        cursor = after
    if cursor.epoch == 0:
        seen += rows_of(source, cursor)
    assert seen == whole


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_a_step_evenly_and_equal_one_process(make_dataset: MakeDataset, world_size: int) -> None:
    dataset = make_dataset(train=1001)
    alone = [batch.groups_B.tolist() for batch, _ in loader(dataset, 90).epoch(Cursor())]
    ranks = [
        [batch.groups_B.tolist() for batch, _ in loader(dataset, 90, rank=rank, world_size=world_size).epoch(Cursor())]
        for rank in range(world_size)
    ]
    assert len({len(steps) for steps in ranks}) == 1
    together = [[row for part in parts for row in part] for parts in zip(*ranks, strict=True)]
    assert together == alone


def test_a_last_step_with_fewer_rows_than_ranks_is_dropped(make_dataset: MakeDataset) -> None:
    dataset = make_dataset(train=901)
    for rank in range(3):
        source = loader(dataset, 300, rank=rank, world_size=3)
        steps = list(source.epoch(Cursor()))
        assert len(steps) == source.steps_per_epoch == 3
        assert steps[-1][1] == Cursor(1, 0)


def test_a_cursor_can_be_resumed_at_another_world_size(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    whole = rows_of(loader(dataset, 100))
    _, after = next(iter(loader(dataset, 100).epoch(Cursor())))
    halves = [
        [batch.groups_B.tolist() for batch, _ in loader(dataset, 100, rank=rank, world_size=2).epoch(after)]
        for rank in (0, 1)
    ]
    rest = [row for pair in zip(*halves, strict=True) for part in pair for row in part]
    assert whole[:100] + rest == whole


def test_a_batch_larger_than_the_data_is_rejected(make_dataset: MakeDataset) -> None:
    with pytest.raises(ConfigError, match=r"batch_size=1001 exceeds the 1000 training rows"):
        loader(make_dataset(), 1001)


def test_a_batch_with_fewer_rows_than_ranks_is_rejected(make_dataset: MakeDataset) -> None:
    with pytest.raises(ConfigError, match=r"batch_size=2: a batch is shared by 3 ranks"):
        loader(make_dataset(), 2, rank=0, world_size=3)


def test_an_error_in_the_thread_reaches_the_caller(make_dataset: MakeDataset) -> None:
    dataset = make_dataset()
    source = loader(dataset, prefetch=2)
    path = dataset.folder / "train" / "00000.arrow"
    path.write_bytes(b"ARROW1")
    with pytest.raises(DataError, match="cannot be read"):
        rows_of(source)


def test_leaving_an_epoch_ends_its_thread(make_dataset: MakeDataset) -> None:
    batches = loader(make_dataset(), prefetch=2).epoch(Cursor())
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name == "loader"]


def test_joining_batches_equals_gathering_at_once(make_dataset: MakeDataset) -> None:
    columns = Columns([make_dataset().split("train").read(b) for b in range(4)], SCHEMA)
    order = np.random.default_rng(0).permutation(columns.rows)
    whole = columns.batch(order)
    joined = concatenate([columns.batch(order[:5]), columns.batch(order[5:100]), columns.batch(order[100:])], SCHEMA)
    assert torch.equal(whole.dense_BF, joined.dense_BF)
    for left, right in ((whole.bags, joined.bags), (whole.sequences, joined.sequences)):
        assert torch.equal(left.values(), right.values())
        assert torch.equal(left.lengths(), right.lengths())
