"""The baselines of labels that are numbers, rates or levels: the objective matches the loss; each beats a constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from ziggurat.core.errors import DataError
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.task_metrics import new_metrics
from ziggurat.objectives.losses import Huber, Log1p, Poisson, Quantile, Squared, Tweedie
from ziggurat.objectives.task import Task
from ziggurat.report.baselines import lightgbm_trials
from ziggurat.report.baselines.compare import task_columns
from ziggurat.report.baselines.data import BaselineData, BaselineSplit, fitted_task, task_loss
from ziggurat.report.baselines.lightgbm_trials import fit_lightgbm
from ziggurat.report.baselines.linear_regression import fit_linear_regression
from ziggurat.report.baselines.logistic_regression import OneHotColumns, fit_logistic_regression
from ziggurat.report.baselines.train import BASELINES, VALUE_BASELINES

ROWS = {"train": 1500, "validation": 400, "test": 500}
TASKS = {
    "squared": Task("y", "regression", Squared()),
    "huber": Task("y", "regression", Huber(delta=2.0)),
    "log1p": Task("y", "regression", Log1p()),
    "poisson": Task("y", "regression", Poisson()),
    "tweedie": Task("y", "regression", Tweedie()),
    "quantile": Task("y", "regression", Quantile()),
    "ordinal": Task("y", "ordinal", levels=(1.0, 2.0, 3.0, 4.0, 5.0)),
}


def data_of(task: Task) -> BaselineData:
    """Labels whose logarithm adds a dense column and an id; of the kind that the task expects."""
    draw = np.random.default_rng(0)
    effect = draw.normal(0, 0.6, 20)
    splits: dict[str, BaselineSplit] = {}
    for name, rows in ROWS.items():
        dense, item = draw.normal(size=(rows, 1)).astype(np.float32), draw.integers(0, 20, rows)
        score = 0.5 * dense[:, 0] + effect[item]
        mean = np.exp(1 + score)
        if task.kind == "soft":
            labels = np.clip(1 / (1 + np.exp(-score)) + draw.normal(0, 0.05, rows), 0, 1)
        elif task.kind == "ordinal":
            labels = np.clip(np.rint(3 + score), 1, 5)
        elif isinstance(task.loss, Tweedie):
            labels = np.where(draw.random(rows) < 0.4, 0.0, draw.gamma(2, mean))
        else:
            labels = draw.poisson(mean)
        weights = draw.integers(1, 3, rows).astype(np.float32)
        splits[name] = BaselineSplit(dense, {"item": item}, {}, labels.astype(np.float32), weights)
    return BaselineData(**splits, task=task)


@pytest.fixture(autouse=True)
def one_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    """LightGBM tries one setting, with few trees."""
    monkeypatch.setattr(lightgbm_trials, "GRID", lightgbm_trials.GRID[:1])
    monkeypatch.setattr(lightgbm_trials, "MAX_TREES", 60)


@pytest.mark.parametrize("fit", [fit_lightgbm, fit_linear_regression])
@pytest.mark.parametrize("name", TASKS)
def test_a_baseline_beats_the_best_constant_and_is_calibrated(name: str, fit: Any) -> None:
    task = TASKS[name]
    data, fitted = data_of(task), fitted_task(task)
    result = fit(data)
    levels = len(task.loss.levels) if isinstance(task.loss, Quantile) else 0
    assert result.predictions_B.shape == ((ROWS["test"], levels) if levels else (ROWS["test"],))
    metrics = new_metrics(fitted, MetricsConfig(), grouped=False)
    columns = task_columns(fitted, result.predictions_B).astype(np.float32)
    rows, finite_B = metrics.read(columns, data.test.labels_B, data.test.weights_B)
    assert finite_B.all()
    metrics.add(rows)
    found = metrics.compute()
    assert found["relative_loss"] < (0.92 if name == "tweedie" else 0.85)  # 40 % of its labels are 0 by chance
    if name not in {"huber", "log1p", "quantile"}:  # their predictions are no means
        assert found["calibration"] == pytest.approx(1, abs=0.1)
    assert result.validation_loss == min(loss for _, loss in result.tried)
    assert task_loss(task, result.predictions_B, data.test) == pytest.approx(
        np.average(losses(fitted, result.predictions_B, data.test.labels_B), weights=data.test.weights_B)
    )


def losses(task: Task, predictions: np.ndarray, labels: np.ndarray) -> list[float]:
    """The losses by their formulas."""
    found: list[float] = []
    for p, y in zip(predictions, labels.astype(float), strict=True):
        match task.loss:
            case Huber(delta=d):
                found.append((p - y) ** 2 / 2 if abs(p - y) <= d else d * (abs(p - y) - d / 2))
            case Log1p():
                found.append((np.log1p(p) - np.log1p(y)) ** 2)
            case Poisson():
                found.append(2 * ((y * np.log(y / p) if y else 0.0) - y + p))
            case Tweedie(power=q):
                one, two = 1 - q, 2 - q
                found.append(2 * (y**two / (one * two) - y * p**one / one + p**two / two))
            case Quantile(levels=levels):
                found.append(
                    np.mean([max(q * (y - each), (q - 1) * (y - each)) for q, each in zip(levels, p, strict=True)])
                )
            case _:
                found.append((p - y) ** 2)
    return found


def test_ridge_is_that_of_scikit_learn() -> None:
    data = data_of(TASKS["squared"])
    result = fit_linear_regression(data)
    encoder = OneHotColumns(data.train)
    model = Ridge(alpha=result.settings["alpha"], solver="sparse_cg", tol=1e-6, max_iter=500)
    model.fit(encoder.matrix(data.train), data.train.labels_B.astype(float), sample_weight=data.train.weights_B)
    np.testing.assert_allclose(result.predictions_B, model.predict(encoder.matrix(data.test)), rtol=1e-6)


@pytest.mark.parametrize("fit", [fit_lightgbm, fit_logistic_regression])
def test_rates_are_fitted_by_cross_entropy(fit: Any) -> None:
    task = Task("y", "soft")
    data = data_of(task)
    result = fit(data)
    label, weight = data.test.labels_B.astype(float), data.test.weights_B
    p = result.predictions_B
    entropy = np.average(-(label * np.log(p) + (1 - label) * np.log(1 - p)), weights=weight)
    mean = np.average(label, weights=weight)
    assert entropy < 0.98 * -(mean * np.log(mean) + (1 - mean) * np.log(1 - mean))
    assert np.average(p, weights=weight) == pytest.approx(mean, abs=0.02)
    assert task_loss(task, p, data.test) == pytest.approx(entropy)


def test_equal_labels_are_refused() -> None:
    data = data_of(TASKS["squared"])
    same = BaselineSplit(data.train.dense_BF, data.train.categorical, {}, np.ones_like(data.train.labels_B))
    with pytest.raises(DataError, match="all training labels are equal"):
        fit_linear_regression(BaselineData(same, data.validation, data.test, data.task))


def test_each_kind_has_two_baselines() -> None:
    assert [each.name for each in BASELINES] == ["LightGBM", "Logistic regression"]
    assert [each.name for each in VALUE_BASELINES] == ["LightGBM", "Linear regression"]
