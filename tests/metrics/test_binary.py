"""Metrics of one task: against scikit-learn, against hand-computed values, and in edge cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.metrics import log_loss, roc_auc_score

from ziggurat.core.errors import DataError
from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.rows import read_rows

FINITE = st.floats(-20, 20, width=32)


def sample(seed: int, rows: int = 5000, ties: bool = False):
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1, 2, rows).astype(np.float32)
    if ties:
        logits = np.round(logits, 1)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-logits + rng.normal(0, 1, rows)))).astype(np.float32)
    return logits, labels, rng.exponential(1, rows).astype(np.float32)


def figures(logits, labels, weights=None, **config):
    metrics = BinaryMetrics(MetricsConfig(**config))
    metrics.update(np.asarray(logits, np.float32), np.asarray(labels, np.float32), weights)
    return metrics.compute()


def probabilities(logits):
    return 1 / (1 + np.exp(-np.asarray(logits, np.float64)))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_matches_scikit_learn(ties, weighted):
    logits, labels, weights = sample(0, ties=ties)
    weights = weights if weighted else None
    found = figures(logits, labels, weights)
    # Weights are rounded to 2^-24, hence the wider tolerance with them.
    tolerance = 1e-7 if weighted else 1e-12
    assert found["auc"] == pytest.approx(roc_auc_score(labels, logits, sample_weight=weights), abs=tolerance)
    expected = log_loss(labels, probabilities(logits), sample_weight=weights)
    assert found["log_loss"] == pytest.approx(expected, abs=tolerance)
    rate = np.average(labels, weights=weights)
    assert found["base_rate"] == pytest.approx(rate, abs=tolerance)
    assert found["ne"] == pytest.approx(expected / -(rate * np.log(rate) + (1 - rate) * np.log(1 - rate)), abs=1e-6)
    mean = np.average(probabilities(logits), weights=weights)
    assert found["mean_prediction"] == pytest.approx(mean, abs=tolerance)
    assert found["calibration"] == pytest.approx(mean / rate, abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_matches_scikit_learn_on_any_small_data(data):
    rows = data.draw(st.integers(2, 40))
    logits = data.draw(hnp.arrays(np.float32, rows, elements=FINITE))
    labels = data.draw(hnp.arrays(np.float32, rows, elements=st.sampled_from([0.0, 1.0])))
    labels[:2] = [0, 1]
    weights = data.draw(st.none() | hnp.arrays(np.float32, rows, elements=st.sampled_from([0.25, 0.5, 1.0, 3.0])))
    found = figures(logits, labels, weights)
    assert found["auc"] == pytest.approx(roc_auc_score(labels, logits, sample_weight=weights), abs=1e-12)
    expected = log_loss(labels, probabilities(logits), sample_weight=weights)
    # scikit-learn computes 1 - p from a rounded p; at a logit of 20 that keeps seven digits of e^-20.
    assert found["log_loss"] == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_figures_match_hand_computed_ones():
    # Scores 0 < ln 3 with one tie; pairs (positive, negative): (ln3, 0) wins, (ln3, ln3) ties -> (1 + 1/2) / 2.
    found = figures([0.0, math.log(3), math.log(3)], [0, 0, 1])
    assert found["auc"] == 0.75
    assert found["log_loss"] == pytest.approx((math.log(2) + math.log(4) + math.log(4 / 3)) / 3, rel=1e-7)
    assert found["calibration"] == pytest.approx((1 / 2 + 3 / 4 + 3 / 4) / 1, rel=1e-7)
    assert found["rows"] == 3


def test_extreme_logits_lose_no_precision():
    found = figures([3e38, -3e38, 88.0, -104.0], [1, 0, 1, 0])
    assert found["auc"] == 1.0
    assert found["log_loss"] == pytest.approx((math.exp(-88) + math.exp(-104)) / 4, rel=1e-12)
    wrong = figures([1e30, -1e30, -50.0], [0, 1, 1])
    assert wrong["log_loss"] == pytest.approx(2 * float(np.float32(1e30)) / 3, rel=1e-12)
    assert wrong["auc"] == 0.0


def test_subnormal_logits_and_signed_zeros_are_ordered_correctly():
    tiny = np.float32(1e-45)
    assert figures([-tiny, 0.0, tiny, 1.0], [0, 0, 1, 1])["auc"] == 1.0
    assert figures([-0.0, 0.0], [0, 1])["auc"] == 0.5


def test_ne_of_the_base_rate_is_one():
    labels = np.arange(1000) % 10 == 0
    found = figures(np.full(1000, math.log(0.1 / 0.9)), labels)
    assert found["ne"] == pytest.approx(1.0, abs=1e-6)
    assert found["calibration"] == pytest.approx(1.0, abs=1e-6)
    assert found["ece"] == pytest.approx(0.0, abs=1e-7)
    assert found["auc"] == 0.5


def test_a_weight_of_n_equals_n_rows():
    logits, labels, _ = sample(1, 300)
    times = np.random.default_rng(2).integers(0, 4, 300)
    repeated = figures(np.repeat(logits, times), np.repeat(labels, times))
    weighted = figures(logits, labels, times)
    for name in ("auc", "log_loss", "ne", "calibration", "ece", "base_rate"):
        assert weighted[name] == pytest.approx(repeated[name], rel=1e-12), name


@pytest.mark.parametrize(
    ("logits", "labels", "weights", "undefined", "reason"),
    [
        ([], [], None, {"auc", "log_loss", "ne", "calibration", "ece", "base_rate"}, "no rows"),
        ([1.0, 2.0], [0, 0], None, {"auc", "ne", "calibration"}, "none of 2 rows is positive"),
        ([1.0, 2.0], [1, 1], None, {"auc", "ne"}, "all 2 rows are positive"),
        ([1.0, 2.0], [0, 1], [0.0, 0.0], {"auc", "log_loss", "ne", "ece"}, "all 2 weights are zero"),
        ([1.0, np.nan], [0, 1], None, {"auc", "log_loss", "ne", "ece"}, "1 of 2 logits are infinite or not a number"),
        ([1.0, np.inf], [0, 1], None, {"auc", "log_loss", "ne", "ece"}, "1 of 2 logits are infinite or not a number"),
    ],
)
def test_undefined_figures_are_nan_with_a_reason(logits, labels, weights, undefined, reason):
    metrics = BinaryMetrics()
    metrics.update(np.array(logits, np.float32), np.array(labels, np.float32), weights)
    found = metrics.compute()
    reasons = metrics.undefined()
    assert undefined <= {name for name, value in found.items() if math.isnan(value)}
    assert reasons.keys() == {name for name, value in found.items() if math.isnan(value)}
    assert set(reasons.values()) == {reason}
    assert found["rows"] == len(logits)


def test_log_loss_is_defined_for_one_class():
    assert figures([0.0, 0.0], [0, 0])["log_loss"] == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("labels", "weights", "groups", "message"),
    [
        ([0, 0.5], None, None, r"label 0.5 in row 1"),
        ([0, np.nan], None, None, r"label nan in row 1"),
        ([0, 1, 1], None, None, r"labels of shape \(3,\)"),
        ([0, 1], [1.0, -2.0], None, r"weight -2.0 in row 1"),
        ([0, 1], [np.nan, 1.0], None, r"weight nan in row 0"),
        ([0, 1], [1.0, 1e30], None, r"weight 1e\+30 in row 1"),
        ([0, 1], [1.0], None, r"weights of shape \(1,\)"),
        ([0, 1], None, None, "has no group keys"),
        ([0, 1], None, [0.5, 1.0], "group keys are float64"),
    ],
)
def test_invalid_input_is_named_in_the_error(labels, weights, groups, message):
    metrics = BinaryMetrics(grouped="group" in message)
    with pytest.raises(DataError, match=message):
        metrics.update([0.0, 1.0], labels, weights, groups)


def test_weights_are_rounded_to_the_nearest_unit():
    rows, _ = read_rows([0.0, 0.0, 0.0], [0, 1, 1], np.array([0.1, 1.0, 2.0**-26], np.float64))
    assert rows.units_B.tolist() == [1_677_722, 1 << 24, 0]


def test_weights_whose_sum_would_overflow_are_rejected():
    metrics = BinaryMetrics()
    metrics.update([0.0, 1.0], [0, 1], [1.3e11, 1.3e11])
    with pytest.raises(DataError, match="example weights sum to more than"):
        metrics.compute()


def test_other_float_types_are_read_as_float32():
    logits, labels, _ = sample(3, 500)
    half = logits.astype(np.float16)
    assert figures(half, labels) == figures(half.astype(np.float32), labels)
    assert figures(logits.astype(np.float64), labels) == figures(logits, labels)
