"""The curves of the report against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import auc as area
from sklearn.metrics import roc_curve as reference_roc

from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.curves import curves
from ziggurat.metrics.ranking import roc_curve


def metrics_of(logits, labels) -> BinaryMetrics:
    metrics = BinaryMetrics()
    metrics.update(logits, labels)
    return metrics


def sample(rows: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(-3, 1, rows).astype(np.float32)
    return logits, (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)


def test_roc_of_few_rows_matches_scikit_learn():
    logits, labels = sample(150)
    found = roc_curve(metrics_of(logits, labels).histogram)
    false, true, _ = reference_roc(labels, logits, drop_intermediate=False)
    np.testing.assert_allclose(found.false_positive_rate_P, false)
    np.testing.assert_allclose(found.true_positive_rate_P, true)


def test_thinned_roc_curve_keeps_its_ends_and_area():
    logits, labels = sample(50_000)
    metrics = metrics_of(logits, labels)
    found = roc_curve(metrics.histogram, 200)
    x, y = found.false_positive_rate_P, found.true_positive_rate_P
    assert len(x) <= 200
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) >= 0).all()
    assert area(x, y) == pytest.approx(metrics.compute()["auc"], abs=1e-4)


def test_prediction_histogram_shows_rare_events():
    logits, labels = sample(20_000)
    drawn = curves(metrics_of(logits, labels).histogram, 20).predictions
    assert drawn.upper < 0.5
    assert 0.001 < np.mean(1 / (1 + np.exp(-logits)) > drawn.upper) <= 0.005
    assert drawn.positive_N.sum() == pytest.approx(1)
    assert drawn.negative_N.sum() == pytest.approx(1)
    probability = 1 / (1 + np.exp(-logits.astype(np.float64)))
    expected = np.histogram(np.minimum(probability[labels == 1], drawn.upper), 40, (0, drawn.upper))[0]
    np.testing.assert_allclose(drawn.positive_N, expected / expected.sum(), atol=1e-12)


@pytest.mark.parametrize("labels", [[], [0, 0], [1, 1]])
def test_a_missing_class_gives_an_empty_roc_curve(labels):
    drawn = curves(metrics_of(np.arange(len(labels)), labels).histogram, 20)
    assert len(drawn.roc.false_positive_rate_P) == 0
    assert drawn.calibration.weight_N.sum() == len(labels)
