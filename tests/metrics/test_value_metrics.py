"""Metrics of labels that are numbers, against scikit-learn, scipy and their formulas; merged in any order."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from sklearn.metrics import (
    mean_absolute_error,
    mean_pinball_loss,
    mean_poisson_deviance,
    mean_squared_error,
    mean_squared_log_error,
    mean_tweedie_deviance,
    r2_score,
    roc_auc_score,
)

from ziggurat.core.errors import DataError
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.metric_set import MetricSet
from ziggurat.metrics.names import VALUE_METRICS
from ziggurat.metrics.pairs import PairHistogram, xauc
from ziggurat.metrics.value_metrics import ValueMetrics
from ziggurat.objectives.losses import Huber, Log1p, Poisson, Quantile, Squared, Tweedie
from ziggurat.objectives.task import Task

ROWS = 1500
QUANTILES = (0.1, 0.5, 0.9)
LEVELS = (1.0, 2.0, 3.0, 5.0)
TASKS = {
    "squared": Task("watch", "regression", Squared()),
    "huber": Task("watch", "regression", Huber(delta=2.0)),
    "log1p": Task("watch", "regression", Log1p()),
    "poisson": Task("watch", "regression", Poisson()),
    "tweedie": Task("watch", "regression", Tweedie(power=1.4)),
    "quantile": Task("watch", "regression", Quantile(levels=QUANTILES)),
    "ordinal": Task("watch", "ordinal", levels=LEVELS),
}


def rows(task: Task) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns, labels and weights; some labels are 0, some are equal."""
    draw = np.random.default_rng(11)
    score = draw.normal(size=ROWS)
    label = np.where(draw.random(ROWS) < 0.2, 0, np.round(draw.gamma(2.0, np.exp(score)), 1)).astype(np.float32)
    columns = score[:, None] + draw.normal(0, 0.3, (ROWS, 1))
    if task.kind == "ordinal":
        label = draw.choice(LEVELS, ROWS).astype(np.float32)
        columns = columns - np.array([-1.0, 0.0, 1.0])
    elif isinstance(task.loss, Quantile):
        columns = np.exp(columns) * np.array([0.4, 2.0, 6.0])
    elif isinstance(task.loss, Squared | Huber | Log1p):
        columns = np.exp(columns) * 2 if not isinstance(task.loss, Log1p) else np.log1p(np.exp(columns))
    return columns.astype(np.float32), label, draw.integers(0, 4, ROWS).astype(np.float32)


def figures(task: Task) -> dict[str, float]:
    metrics = ValueMetrics(task)
    metrics.update(*rows(task))
    return metrics.compute()


@pytest.mark.parametrize("name", TASKS)
def test_errors_are_those_of_scikit_learn(name: str) -> None:
    task = TASKS[name]
    columns, label, weight = rows(task)
    prediction, found = task.predictions(columns).astype(np.float32), figures(task)
    label = label.astype(np.float64)
    assert found["rmse"] == pytest.approx(math.sqrt(mean_squared_error(label, prediction, sample_weight=weight)))
    assert found["mae"] == pytest.approx(mean_absolute_error(label, prediction, sample_weight=weight))
    assert found["r2"] == pytest.approx(r2_score(label, prediction, sample_weight=weight), abs=1e-9)
    assert found["mean_label"] == pytest.approx(np.average(label, weights=weight))
    assert found["mean_prediction"] == pytest.approx(np.average(prediction, weights=weight))
    assert found["calibration"] == pytest.approx((prediction * weight).sum() / (label * weight).sum())
    assert found["rows"] == ROWS
    if name == "log1p":
        assert found["rmsle"] == pytest.approx(
            math.sqrt(mean_squared_log_error(label, prediction, sample_weight=weight))
        )
    if name == "poisson":
        assert found["deviance"] == pytest.approx(mean_poisson_deviance(label, prediction, sample_weight=weight))
    if name == "tweedie":
        expected = mean_tweedie_deviance(label, prediction, sample_weight=weight, power=1.4)
        assert found["deviance"] == pytest.approx(expected)
    if name == "quantile":
        each = [
            mean_pinball_loss(label, columns[:, number], sample_weight=weight, alpha=level)
            for number, level in enumerate(QUANTILES)
        ]
        assert found["pinball"] == pytest.approx(np.mean(each))
        shares = [np.average(label <= columns[:, number], weights=weight) for number in range(3)]
        assert found["coverage_gap"] == pytest.approx(np.abs(np.array(shares) - QUANTILES).mean())
    if name == "ordinal":
        above = 1 / (1 + np.exp(-columns.astype(np.float64)))
        reached = np.hstack([np.ones((ROWS, 1)), above, np.zeros((ROWS, 1))])
        level = np.searchsorted(LEVELS, label)
        share = reached[np.arange(ROWS), level] - reached[np.arange(ROWS), level + 1]
        assert found["log_loss"] == pytest.approx(np.average(-np.log(share), weights=weight))


def constant(task: Task, label: np.ndarray, weight: np.ndarray) -> float:
    """The loss of the best constant, found by trying many."""
    mean, candidates = np.average(label, weights=weight), np.linspace(label.min(), label.max(), 4001)
    match task.loss:
        case Poisson():
            return mean_poisson_deviance(label, np.full(len(label), mean), sample_weight=weight)
        case Tweedie():
            return mean_tweedie_deviance(label, np.full(len(label), mean), sample_weight=weight, power=1.4)
        case Log1p():
            logs = np.log1p(label)
            return np.average((logs - np.average(logs, weights=weight)) ** 2, weights=weight)
        case Huber(delta=delta):
            errors = np.abs(label[:, None] - candidates)
            losses = np.where(errors <= delta, errors**2 / 2, delta * (errors - delta / 2))
            return np.average(losses, axis=0, weights=weight).min()
        case Quantile(levels=levels):
            return np.mean(
                [
                    min(
                        mean_pinball_loss(label, np.full(len(label), each), sample_weight=weight, alpha=level)
                        for each in np.unique(label)
                    )
                    for level in levels
                ]
            )
        case None:
            shares = np.array([weight[label == level].sum() for level in LEVELS]) / weight.sum()
            return -float((shares * np.log(shares)).sum())
        case _:
            return np.average((label - mean) ** 2, weights=weight)


@pytest.mark.parametrize("name", TASKS)
def test_the_relative_loss_is_over_that_of_the_best_constant(name: str) -> None:
    task, found = TASKS[name], figures(TASKS[name])
    _, label, weight = rows(task)
    losses = {
        "squared": found["rmse"] ** 2,
        "log1p": found.get("rmsle", 0) ** 2,
        "poisson": found.get("deviance"),
        "tweedie": found.get("deviance"),
        "quantile": found.get("pinball"),
        "ordinal": found.get("log_loss"),
    }
    if name == "huber":
        columns, _, _ = rows(task)
        error = np.abs(columns[:, 0].astype(np.float64) - label)
        losses["huber"] = np.average(np.where(error <= 2, error**2 / 2, 2 * (error - 1)), weights=weight)
    expected = losses[name] / constant(task, label.astype(np.float64), weight)
    assert found["relative_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", TASKS)
def test_xauc_is_the_chance_of_the_right_order(name: str) -> None:
    """Every pair of rows is looked at."""
    task = TASKS[name]
    columns, label, weight = rows(task)
    prediction = task.predictions(columns).astype(np.float32)
    larger = label[:, None] > label
    pair = weight[:, None] * weight * larger
    right = (prediction[:, None] > prediction) + (prediction[:, None] == prediction) / 2
    assert figures(task)["xauc"] == pytest.approx((pair * right).sum() / pair.sum())


def test_xauc_of_zeros_and_ones_is_the_auc() -> None:
    draw = np.random.default_rng(2)
    label = draw.integers(0, 2, 400).astype(np.float32)
    score = np.round(label + draw.normal(size=400), 1).astype(np.float32) + np.float32(0)  # no -0
    pairs = PairHistogram(1 << 12)
    pairs.add(score, label, np.full(400, 1 << 24))
    assert xauc(pairs) == pytest.approx(roc_auc_score(label, score))


def test_xauc_beyond_the_budget_is_near_that_of_all_pairs() -> None:
    draw = np.random.default_rng(4)
    label = draw.normal(size=40_000).astype(np.float32)
    score = (label + draw.normal(size=40_000)).astype(np.float32)
    units = np.full(40_000, 1 << 24)
    whole, sampled = PairHistogram(1 << 17), PairHistogram(1 << 12)
    whole.add(score, label, units)
    sampled.add(score, label, units)
    assert whole.is_whole
    assert not sampled.is_whole
    assert len(sampled.pairs_E) == 1 << 12
    assert xauc(sampled) == pytest.approx(xauc(whole), abs=0.01)


@pytest.mark.parametrize("budget", [MetricsConfig(), MetricsConfig(score_keys=1024)], ids=["exact", "sampled"])
@pytest.mark.parametrize("name", TASKS)
def test_order_of_rows_and_merges_does_not_matter(name: str, budget: MetricsConfig) -> None:
    task = TASKS[name]
    columns, label, weight = rows(task)
    whole = ValueMetrics(task, budget)
    whole.update(columns, label, weight)
    order = np.random.default_rng(5).permutation(ROWS)
    parts: list[ValueMetrics] = []
    for part in np.array_split(order, 4):
        parts.append(ValueMetrics(task, budget))
        for batch in np.array_split(part, 3):
            parts[-1].update(columns[batch], label[batch], weight[batch])
    restored = ValueMetrics.from_state(task, budget, pickle.loads(pickle.dumps(parts[2].state())))
    for part in (parts[3], parts[0], parts[1]):
        restored.merge(part)
    assert pickle.dumps(restored.state()) == pickle.dumps(whole.state())
    assert restored.compute() == whole.compute()


def test_large_labels_keep_their_variance() -> None:
    draw = np.random.default_rng(9)
    label = (1e7 + draw.integers(0, 4, ROWS)).astype(np.float32)
    metrics = ValueMetrics(TASKS["squared"])
    metrics.update((label + 1)[:, None], label)
    assert metrics.compute()["r2"] == pytest.approx(1 - 1 / label.astype(np.float64).var(), rel=1e-12)


def test_what_is_not_finite_makes_figures_undefined() -> None:
    metrics = ValueMetrics(TASKS["poisson"])
    metrics.update([[1000.0], [0.0]], [1.0, 2.0])
    assert math.isnan(metrics.compute()["rmse"])
    assert metrics.undefined()["rmse"] == "1 of 2 predictions are infinite or not a number"
    with pytest.raises(DataError, match="a label is not finite"):
        metrics.update([[0.0]], [math.inf])


def test_equal_labels_have_no_explained_variance() -> None:
    metrics = ValueMetrics(TASKS["squared"])
    metrics.update([[1.0], [2.0]], [3.0, 3.0])
    found = metrics.compute()
    assert found["mae"] == 1.5
    assert all(math.isnan(found[name]) for name in ("r2", "xauc", "relative_loss"))
    assert metrics.undefined()["r2"] == "all labels are equal, or sum to 0"


@pytest.mark.parametrize("name", VALUE_METRICS)
def test_a_metric_says_what_it_means(name: str) -> None:
    metric = VALUE_METRICS[name]
    assert metric.name == name
    assert metric.title
    assert metric.meaning.endswith(".")


def test_soft_labels_are_a_positive_and_a_negative_row() -> None:
    draw = np.random.default_rng(6)
    logit = draw.normal(size=300).astype(np.float32)
    label = draw.integers(0, 9, 300) / 8  # weights of halves are whole units of the metrics
    weight, group = draw.integers(1, 4, 300).astype(np.float32), draw.integers(0, 20, 300)
    soft = MetricSet([Task("ctr", "soft")], grouped=True)
    soft.update(logit[:, None], label[:, None], weight, group)
    hard = MetricSet(["ctr"], grouped=True)
    hard.update(logit[:, None], np.ones((300, 1)), weight * label, group)
    hard.update(logit[:, None], np.zeros((300, 1)), weight * (1 - label), group)
    expected = hard.compute() | {"rows": 300.0}
    assert soft.compute() == pytest.approx(expected, rel=1e-12)
    entropy = -(label * np.log(1 / (1 + np.exp(-logit))) + (1 - label) * np.log(1 / (1 + np.exp(logit))))
    assert soft.compute()["log_loss"] == pytest.approx(np.average(entropy, weights=weight), rel=1e-6)
    with pytest.raises(DataError, match="0 to 1 is allowed"):
        soft.update([[0.0]], [[1.5]], None, [1])


def test_negatives_of_a_thinned_log_stand_for_those_that_were_dropped() -> None:
    draw = np.random.default_rng(7)
    logit = draw.normal(size=200).astype(np.float32)
    label = draw.integers(0, 2, 200).astype(np.float32)
    thinned = MetricSet([Task("click", negative_rate=0.25, known_rate=0.25)])
    thinned.update(logit[:, None], label[:, None])
    whole = MetricSet(["click"])
    whole.update(logit[:, None], label[:, None], np.where(label == 0, 4.0, 1.0))
    assert thinned.compute() == whole.compute()


def test_kinds_are_measured_side_by_side_and_by_slice() -> None:
    tasks = [Task("click"), TASKS["quantile"], Task("ctr", "soft")]
    columns, label, _ = rows(TASKS["quantile"])
    draw = np.random.default_rng(1)
    logits = draw.normal(size=(ROWS, 2)).astype(np.float32)
    labels = np.stack([draw.integers(0, 2, ROWS), label, draw.random(ROWS)], axis=1).astype(np.float32)
    counts = np.stack([np.ones(ROWS), np.ones(ROWS), draw.integers(0, 5, ROWS)], axis=1)
    slices = draw.integers(0, 3, ROWS)
    metrics = MetricSet(tasks, slices=["country"])
    metrics.update(np.hstack([logits[:, :1], columns, logits[:, 1:]]), labels, None, None, {"country": slices}, counts)
    alone = ValueMetrics(TASKS["quantile"])
    alone.update(columns, label)
    found = metrics.compute()
    assert {f"watch/{name}": value for name, value in alone.compute().items()}.items() <= found.items()
    soft = MetricSet([Task("ctr", "soft")])
    soft.update(logits[:, 1:], labels[:, 2:], counts[:, 2])
    assert found["ctr/log_loss"] == soft.compute()["log_loss"]
    chosen = slices == 1
    alone = ValueMetrics(TASKS["quantile"], MetricsConfig(score_keys=MetricsConfig().slice_score_keys))
    alone.update(columns[chosen], label[chosen])
    assert metrics.slice_figures()["watch/country=1/pinball"] == alone.compute()["pinball"]
    bins = metrics.value_bins()["watch"]
    assert np.average(bins.mean_label_N, weights=bins.weight_N) == pytest.approx(label.mean())
    assert list(metrics.curves()) == ["click", "ctr"]
