from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import roc_auc_score

from ziggurat.metrics.ranking import auc
from ziggurat.metrics.rows import read_rows
from ziggurat.metrics.scores import ScoreHistogram, from_sortable_keys, sortable_keys


def histogram(logits, labels, max_keys: int) -> ScoreHistogram:
    scores = ScoreHistogram(max_keys)
    scores.add(read_rows(logits, labels)[0])
    return scores


@settings(max_examples=100, deadline=None)
@given(hnp.arrays(np.float32, st.integers(1, 30), elements=st.floats(width=32, allow_nan=False)))
def test_keys_sort_as_floats_and_are_invertible(logits):
    logits = logits + np.float32(0)
    keys = sortable_keys(logits)
    np.testing.assert_array_equal(from_sortable_keys(keys), logits)
    np.testing.assert_array_equal(np.argsort(keys, kind="stable"), np.argsort(logits, kind="stable"))


def test_histogram_uses_the_lowest_level_that_fits():
    logits = np.float32(1.0) + np.arange(4096, dtype=np.float32) * np.float32(2.0**-23)  # 4,096 consecutive floats
    scores = histogram(logits, np.zeros(4096), 1024)
    assert (scores.level, len(scores.keys_K)) == (2, 1024)
    np.testing.assert_array_equal(scores.negative_K >> 24, 4)
    assert np.abs(np.repeat(scores.logits, 4) - logits).max() < 4 * 2.0**-23


@pytest.mark.parametrize("rows", [5_000, 300_000])
def test_auc_beyond_the_budget_is_nearly_exact(rows):
    rng = np.random.default_rng(3)
    logits = rng.normal(-2, 1.5, rows).astype(np.float32)
    labels = rng.random(rows) < 1 / (1 + np.exp(-logits))
    scores = histogram(logits, labels, 4096)
    assert scores.level > 0
    # Only pairs that share one of a few thousand keys can be misjudged, about equally often in either direction.
    assert auc(scores) == pytest.approx(roc_auc_score(labels, logits), abs=5e-6 if rows > 100_000 else 2e-5)


def test_logits_over_the_whole_float_range_keep_their_order():
    rng = np.random.default_rng(5)
    logits = np.concatenate([10.0 ** rng.uniform(-44, 38, 20_000), -(10.0 ** rng.uniform(-44, 38, 20_000))])
    scores = histogram(logits, logits > 0, 1024)
    assert len(scores.keys_K) <= 1024
    assert auc(scores) == 1.0
    assert np.isfinite(scores.logits).all()
    assert (np.diff(scores.logits) > 0).all()
