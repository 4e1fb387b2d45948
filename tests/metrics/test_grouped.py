from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ziggurat.core.hashing import hash_integers
from ziggurat.data.encoded.split import TEST, assign_by_hash
from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.rows import GROUP_SEED


def sample(rows: int = 3000, groups: int = 200):
    rng = np.random.default_rng(11)
    group = rng.integers(0, groups, rows) ** 2 - 1000  # keys at uneven distances, some negative
    logits = np.round(rng.normal(0, 1, rows), 1).astype(np.float32)
    labels = (rng.random(rows) < 0.2).astype(np.float32)
    return logits, labels, rng.integers(1, 4, rows).astype(np.float64), group


def reference(logits, labels, weights, groups, kept=None) -> tuple[float, int]:
    """GAUC by a loop over groups with scikit-learn, and the number of groups with only one class."""
    weighted, total, one_class = 0.0, 0.0, 0
    for group in np.unique(groups) if kept is None else kept:
        in_group = groups == group
        if len(set(labels[in_group])) < 2:
            one_class += 1
            continue
        weight = weights[in_group].sum()
        weighted += weight * roc_auc_score(labels[in_group], logits[in_group], sample_weight=weights[in_group])
        total += weight
    return weighted / total, one_class


def figures(logits, labels, weights, groups, entries: int = 1 << 20):
    metrics = BinaryMetrics(MetricsConfig(gauc_entries=entries), grouped=True)
    metrics.update(logits, labels, weights, groups)
    return metrics.compute()


@pytest.mark.parametrize("weighted", [False, True])
def test_gauc_equals_a_loop_over_groups(weighted):
    logits, labels, weights, groups = sample()
    weights = weights if weighted else np.ones_like(weights)
    found = figures(logits, labels, weights if weighted else None, groups)
    expected, one_class = reference(logits, labels, weights, groups)
    assert found["gauc"] == pytest.approx(expected, abs=1e-12)
    assert found["gauc_groups"] == found["gauc_groups_seen"] == len(np.unique(groups))
    assert found["gauc_groups_one_class"] == one_class > 0


def test_a_small_budget_keeps_whole_groups_in_hash_order():
    logits, labels, weights, groups = sample()
    found = figures(logits, labels, weights, groups, entries=700)
    keys = np.unique(groups)
    in_order = keys[np.argsort(hash_integers(keys, GROUP_SEED))]
    entries = [len(np.unique(logits[groups == group])) for group in in_order]
    kept = in_order[np.cumsum(entries) <= 700]
    expected, one_class = reference(logits, labels, weights, groups, kept)
    assert 10 < len(kept) < len(keys)
    assert found["gauc"] == pytest.approx(expected, abs=1e-12)
    assert (found["gauc_groups"], found["gauc_groups_one_class"]) == (len(kept), one_class)
    assert found["gauc_groups_seen"] == pytest.approx(len(keys), rel=0.5)


def test_gauc_of_sampled_groups_is_close_to_that_of_all():
    rng = np.random.default_rng(0)
    rows, groups = 200_000, 20_000
    group = rng.integers(0, groups, rows)
    logits = rng.normal(0, 1, rows).astype(np.float32) + rng.normal(0, 3, groups).astype(np.float32)[group]
    labels = rng.random(rows) < 1 / (1 + np.exp(-logits))
    full = figures(logits, labels, None, group)
    sampled = figures(logits, labels, None, group, entries=40_000)
    assert sampled["gauc_groups"] < 0.25 * full["gauc_groups"]
    assert sampled["gauc"] == pytest.approx(full["gauc"], abs=0.01)
    assert sampled["gauc_groups_seen"] == pytest.approx(full["gauc_groups"], rel=0.1)
    assert full["auc"] > full["gauc"] + 0.1  # groups differ in mean logit, which raises AUC but not GAUC


@pytest.mark.parametrize("seed", [0, 7])
def test_groups_are_counted_rightly_if_the_split_hashes_the_same_key(seed: int):
    """A split by user keeps the users whose hash is in the lowest tenth of the range. In the hash of that seed they
    would look ten times as dense as they are, and there would seem to be ten times as many."""
    keys = np.arange(200_000)
    tested = keys[assign_by_hash(hash_integers(keys, seed), 0.1, 0.1) == TEST]
    group = np.repeat(tested, 2)
    rng = np.random.default_rng(3)
    found = figures(rng.normal(0, 1, len(group)), rng.integers(0, 2, len(group)), None, group, entries=4_000)
    assert found["gauc_groups"] < 2_100
    assert found["gauc_groups_seen"] == pytest.approx(len(tested), rel=0.1)


def test_undefined_gauc_has_a_reason():
    metrics = BinaryMetrics(grouped=True)
    metrics.update([0.0, 1.0], [0, 1], None, [1, 2])
    assert math.isnan(metrics.compute()["gauc"])
    assert metrics.undefined() == {"gauc": "no group holds both classes"}
    small = BinaryMetrics(MetricsConfig(gauc_entries=1), grouped=True)
    small.update([0.0, 1.0], [0, 1], None, [1, 1])
    assert small.undefined() == {"gauc": "no group fits into gauc_entries = 1"}
    assert small.compute()["gauc_groups_seen"] == 1
    assert "gauc" not in BinaryMetrics().compute()
