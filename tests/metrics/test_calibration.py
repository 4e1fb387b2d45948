from __future__ import annotations

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.calibration import calibration_bins
from ziggurat.metrics.config import MetricsConfig


def sample(rows: int = 4000):
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, rows).astype(np.float32)
    return logits, (rng.random(rows) < 1 / (1 + np.exp(-0.5 * logits))).astype(np.float32)


def metrics_of(logits, labels, bins: int = 10, weights=None) -> BinaryMetrics:
    metrics = BinaryMetrics(MetricsConfig(calibration_bins=bins))
    metrics.update(logits, labels, weights)
    return metrics


def test_equal_width_bins_match_scikit_learn():
    logits, labels = sample()
    probability = 1 / (1 + np.exp(-logits.astype(np.float64)))
    metrics = metrics_of(logits, labels)
    bins = calibration_bins(metrics.histogram, 10, "width")
    rate, mean = calibration_curve(labels, probability, n_bins=10)
    np.testing.assert_allclose(bins.mean_prediction_N, mean, rtol=1e-12)
    np.testing.assert_allclose(bins.observed_rate_N, rate, rtol=1e-12)
    counts = np.histogram(probability, bins=10, range=(0, 1))[0]
    np.testing.assert_allclose(bins.weight_N, counts)
    expected = (np.abs(mean - rate) * counts).sum() / counts.sum()
    assert metrics.compute()["ece"] == pytest.approx(expected, rel=1e-12)
    assert expected > 0.05  # the sample is over-confident by construction


def test_equal_mass_bins_have_equal_weight():
    logits, labels = sample()
    bins = calibration_bins(metrics_of(logits, labels).histogram, 10, "mass")
    assert bins.weight_N.tolist() == pytest.approx([400] * 10, abs=2)
    order = np.argsort(logits)
    first = order[:400]
    expected = (1 / (1 + np.exp(-logits[first].astype(np.float64)))).mean()
    assert bins.mean_prediction_N[0] == pytest.approx(expected, abs=1e-4)
    assert bins.observed_rate_N[0] == pytest.approx(labels[first].mean(), abs=3e-3)


def test_ece_with_weights_and_a_heavy_tie_by_hand():
    # Probability 1/2 three times (weights 1, 1, 2; one positive of weight 2) and 3/4 once (weight 4, positive).
    metrics = metrics_of([0, 0, 0, np.log(3)], [0, 0, 1, 1], bins=4, weights=[1, 1, 2, 4])
    found = metrics.compute()
    # [1/2, 3/4) contains the ties, observed rate 1/2; [3/4, 1] contains the last row: |3/4 - 1| · 4/8.
    # ln 3 in float32 is above ln 3.
    assert found["ece"] == pytest.approx(0.125, abs=1e-7)
    bins = calibration_bins(metrics.histogram, 4, "mass")
    assert bins.weight_N.tolist() == [4, 4]  # four bins of weight 2 are asked for, but ties are not split
    assert found["ece_mass"] == pytest.approx(0.125, abs=1e-7)


def test_a_tie_falls_into_the_bin_of_its_middle():
    bins = calibration_bins(metrics_of([-1, 0, 0, 0], [0, 1, 0, 0]).histogram, 2, "mass")
    assert bins.weight_N.tolist() == [1, 3]
    assert bins.observed_rate_N.tolist() == [0, pytest.approx(1 / 3)]


def test_certain_predictions_fall_into_the_last_bin():
    bins = calibration_bins(metrics_of([200.0, -200.0], [1, 0]).histogram, 10, "width")
    assert bins.mean_prediction_N.tolist() == pytest.approx([0, 1], abs=1e-80)
    assert bins.observed_rate_N.tolist() == [0, 1]
    assert bins.expected_error == pytest.approx(0, abs=1e-80)
