"""The contract of all streaming metrics: the same rows give the same bits, in any order and on any number of ranks."""

from __future__ import annotations

import pickle
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.metric_set import MetricSet

ROWS = 6000
SMALL_BUDGET = MetricsConfig(score_keys=1024, gauc_entries=500, slice_ids=3, slice_score_keys=1024)
DEFAULT_BUDGET = MetricsConfig()


def columns(rows: int = ROWS):
    rng = np.random.default_rng(7)
    return {
        "logits_BT": rng.normal(0, 3, (rows, 2)).astype(np.float32),
        "labels_BT": rng.integers(0, 2, (rows, 2)).astype(np.float32),
        "weights_B": rng.exponential(1, rows).astype(np.float32),
        "groups_B": rng.integers(-50, 50, rows),
        "slice": rng.integers(0, 6, rows),
    }


def metrics_of(config: MetricsConfig, data, order, cuts) -> MetricSet:
    """Returns a metric set updated with ``data`` in this row order, in batches that end at these cuts."""
    metrics = MetricSet(("like", "share"), config, grouped=True, slices=("country",))
    for part in np.split(order, cuts):
        metrics.update(
            data["logits_BT"][part],
            data["labels_BT"][part],
            data["weights_B"][part],
            data["groups_B"][part],
            {"country": data["slice"][part]},
        )
    return metrics


def state_bytes(metrics: MetricSet) -> bytes:
    return pickle.dumps(metrics.state())


@pytest.mark.parametrize("config", [SMALL_BUDGET, DEFAULT_BUDGET], ids=["coarsened and sampled", "exact"])
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    ranks=st.integers(1, 4),
    cuts=st.lists(st.integers(0, ROWS), max_size=6).map(sorted),
    merge_seed=st.integers(0, 2**32 - 1),
)
def test_order_of_rows_and_merges_does_not_matter(config, seed, ranks, cuts, merge_seed):
    data = columns()
    whole = metrics_of(config, data, np.arange(ROWS), [])
    shuffled = np.random.default_rng(seed).permutation(ROWS)
    shards = [
        metrics_of(config, data, shard, [cut for cut in cuts if cut < len(shard)])
        for shard in np.array_split(shuffled, ranks)
    ]
    np.random.default_rng(merge_seed).shuffle(shards)

    def joined(left: MetricSet, right: MetricSet) -> MetricSet:
        left.merge(right)
        return left

    merged = reduce(joined, shards)
    assert state_bytes(merged) == state_bytes(whole)
    assert merged.compute() == whole.compute()
    assert merged.slice_figures() == whole.slice_figures()


def test_buffered_small_updates_give_the_same_state():
    data = columns(200_000)
    one = metrics_of(SMALL_BUDGET, data, np.arange(200_000), [])
    many = metrics_of(SMALL_BUDGET, data, np.arange(200_000)[::-1], np.arange(0, 200_000, 7001))
    assert state_bytes(one) == state_bytes(many)


def test_computing_between_updates_does_not_change_the_state():
    data = columns()
    uninterrupted = metrics_of(SMALL_BUDGET, data, np.arange(ROWS), [])
    read = metrics_of(SMALL_BUDGET, data, np.arange(3000), [])
    read.compute()
    read.curves()
    read.merge(metrics_of(SMALL_BUDGET, data, np.arange(3000, ROWS), []))
    assert state_bytes(read) == state_bytes(uninterrupted)


def test_a_group_too_large_for_one_rank_is_dropped_on_all():
    config = MetricsConfig(gauc_entries=100)
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=160).astype(np.float32), rng.integers(0, 2, 160)
    groups = np.repeat([5, 6, 7], [130, 20, 10])  # group 5 alone exceeds the budget
    whole = BinaryMetrics(config, grouped=True)
    whole.update(logits, labels, None, groups)
    # The rank that drops group 5 is merged into the other, or the other into it.
    for first in (np.arange(128), np.arange(128, 160)):
        second = np.setdiff1d(np.arange(160), first)
        ranks = [BinaryMetrics(config, grouped=True) for _ in range(2)]
        for rank, rows in zip(ranks, (first, second), strict=True):
            rank.update(logits[rows], labels[rows], None, groups[rows])
        ranks[0].merge(ranks[1])
        assert pickle.dumps(ranks[0].state()) == pickle.dumps(whole.state())
    assert whole.compute()["gauc_groups"] < 3


def test_merging_does_not_change_the_other_set():
    data = columns()
    left = metrics_of(SMALL_BUDGET, data, np.arange(3000), [])
    right = metrics_of(SMALL_BUDGET, data, np.arange(3000, ROWS), [])
    before = state_bytes(right)
    left.merge(right)
    left.merge(metrics_of(SMALL_BUDGET, data, np.arange(100), []))
    assert state_bytes(right) == before


def test_state_is_restored_from_its_pickle():
    data = columns()
    whole = metrics_of(SMALL_BUDGET, data, np.arange(ROWS), [])
    restored = whole.with_state(pickle.loads(state_bytes(whole)))
    assert state_bytes(restored) == state_bytes(whole)
    assert restored.compute() == whole.compute()
    more = metrics_of(SMALL_BUDGET, data, np.arange(500), [])
    restored.merge(more)
    whole.merge(more)
    assert state_bytes(restored) == state_bytes(whole)


def test_merging_an_empty_set_changes_nothing():
    data = columns()
    whole = metrics_of(DEFAULT_BUDGET, data, np.arange(ROWS), [])
    before = state_bytes(whole)
    whole.merge(metrics_of(DEFAULT_BUDGET, data, np.arange(0), []))
    assert state_bytes(whole) == before
    empty = BinaryMetrics()
    empty.merge(BinaryMetrics())
    assert empty.compute()["rows"] == 0
