"""The area under the curve that judges pipelines is scikit-learn's, with and without ties."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ziggurat.search.pipelines.downstream import area_under_curve, score


@pytest.mark.parametrize("digits", [1, 12])
def test_the_area_is_that_of_scikit_learn(digits: int) -> None:
    draw = np.random.default_rng(digits)
    for rows in (2, 7, 200):
        positive = draw.random(rows) < 0.3
        positive[:2] = [True, False]
        predicted = draw.random(rows).round(digits)
        assert area_under_curve(predicted, positive) == pytest.approx(roc_auc_score(positive, predicted), abs=1e-12)


def test_several_classes_are_each_against_the_rest_and_absent_ones_are_left_out() -> None:
    draw = np.random.default_rng(0)
    predicted = draw.dirichlet(np.ones(4), 60)
    labels = draw.integers(0, 3, 60)  # no row of the last class
    expected = np.mean([roc_auc_score(labels == each, predicted[:, each]) for each in range(3)])
    assert score("auc", predicted, labels) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="one side"):
        score("auc", predicted, np.zeros(60, np.int64))


def test_two_classes_need_rows_of_both() -> None:
    with pytest.raises(ValueError, match="one side"):
        area_under_curve(np.array([0.1, 0.2]), np.array([True, True]))
