"""One law for everything that streams: the same rows leave the same bits, in any order and on any number of ranks."""

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
TIGHT = MetricsConfig(score_keys=1024, gauc_entries=500, slice_ids=3, slice_score_keys=1024)
ROOMY = MetricsConfig()


def columns(rows: int = ROWS):
    rng = np.random.default_rng(7)
    return {
        "logits_BT": rng.normal(0, 3, (rows, 2)).astype(np.float32),
        "labels_BT": rng.integers(0, 2, (rows, 2)).astype(np.float32),
        "weights_B": rng.exponential(1, rows).astype(np.float32),
        "groups_B": rng.integers(-50, 50, rows),
        "slice": rng.integers(0, 6, rows),
    }


def fed(config: MetricsConfig, data, order, cuts) -> MetricSet:
    """A metric set fed ``data`` in this row order, in updates that end at these cuts."""
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


def bits(metrics: MetricSet) -> bytes:
    return pickle.dumps(metrics.state())


@pytest.mark.parametrize("config", [TIGHT, ROOMY], ids=["coarsened and sampled", "exact"])
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    ranks=st.integers(1, 4),
    cuts=st.lists(st.integers(0, ROWS), max_size=6).map(sorted),
    merge_seed=st.integers(0, 2**32 - 1),
)
def test_same_rows_same_bits(config, seed, ranks, cuts, merge_seed):
    data = columns()
    whole = fed(config, data, np.arange(ROWS), [])
    shuffled = np.random.default_rng(seed).permutation(ROWS)
    shards = [
        fed(config, data, shard, [c for c in cuts if c < len(shard)]) for shard in np.array_split(shuffled, ranks)
    ]
    np.random.default_rng(merge_seed).shuffle(shards)

    def joined(left: MetricSet, right: MetricSet) -> MetricSet:
        left.merge(right)
        return left

    merged = reduce(joined, shards)
    assert bits(merged) == bits(whole)
    assert merged.compute() == whole.compute()
    assert merged.slice_figures() == whole.slice_figures()


def test_small_updates_through_the_buffer_leave_the_same_bits():
    data = columns(200_000)
    one = fed(TIGHT, data, np.arange(200_000), [])
    many = fed(TIGHT, data, np.arange(200_000)[::-1], np.arange(0, 200_000, 7001))
    assert bits(one) == bits(many)


def test_reading_between_updates_changes_nothing():
    data = columns()
    quiet = fed(TIGHT, data, np.arange(ROWS), [])
    read = fed(TIGHT, data, np.arange(3000), [])
    read.compute()
    read.curves()
    read.merge(fed(TIGHT, data, np.arange(3000, ROWS), []))
    assert bits(read) == bits(quiet)


def test_a_group_too_large_for_one_rank_is_dropped_on_all():
    config = MetricsConfig(gauc_entries=100)
    rng = np.random.default_rng(0)
    logits, labels = rng.normal(size=160).astype(np.float32), rng.integers(0, 2, 160)
    groups = np.repeat([5, 6, 7], [130, 20, 10])  # group 5 alone is over the budget
    whole = BinaryMetrics(config, grouped=True)
    whole.update(logits, labels, None, groups)
    for first in (np.arange(128), np.arange(128, 160)):  # the rank that drops it merges, or is merged
        second = np.setdiff1d(np.arange(160), first)
        ranks = [BinaryMetrics(config, grouped=True) for _ in range(2)]
        for rank, rows in zip(ranks, (first, second), strict=True):
            rank.update(logits[rows], labels[rows], None, groups[rows])
        ranks[0].merge(ranks[1])
        assert pickle.dumps(ranks[0].state()) == pickle.dumps(whole.state())
    assert whole.compute()["gauc_groups"] < 3


def test_merging_leaves_the_other_as_it_was():
    data = columns()
    left, right = fed(TIGHT, data, np.arange(3000), []), fed(TIGHT, data, np.arange(3000, ROWS), [])
    before = bits(right)
    left.merge(right)
    left.merge(fed(TIGHT, data, np.arange(100), []))
    assert bits(right) == before


def test_state_travels():
    data = columns()
    whole = fed(TIGHT, data, np.arange(ROWS), [])
    travelled = whole.with_state(pickle.loads(bits(whole)))
    assert bits(travelled) == bits(whole)
    assert travelled.compute() == whole.compute()
    more = fed(TIGHT, data, np.arange(500), [])
    travelled.merge(more)
    whole.merge(more)
    assert bits(travelled) == bits(whole)


def test_empty_is_neutral():
    data = columns()
    whole = fed(ROOMY, data, np.arange(ROWS), [])
    before = bits(whole)
    whole.merge(fed(ROOMY, data, np.arange(0), []))
    assert bits(whole) == before
    empty = BinaryMetrics()
    empty.merge(BinaryMetrics())
    assert empty.compute()["rows"] == 0
