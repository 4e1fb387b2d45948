"""The baselines on synthetic logs with a known rule: close to the best attainable, deterministic, robust to new ids."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import log_loss as reference_log_loss
from sklearn.metrics import roc_auc_score

from ziggurat.core.errors import DataError
from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.report.baselines.data import BaselineData, BaselineSplit, JaggedColumn, log_loss, subsample_rows
from ziggurat.report.baselines.lightgbm_trials import BAG_COLUMNS, TreeColumns, fit_lightgbm
from ziggurat.report.baselines.logistic_regression import OneHotColumns, fit_logistic_regression
from ziggurat.report.baselines.train import fit_baselines, machine_threads

ROWS = {"train": 4000, "validation": 1000, "test": 1500}


def synthetic_data(seed: int = 0) -> tuple[BaselineData, np.ndarray]:
    """Returns data whose log-odds add a dense column, an id and a bag's mean, and the test rows' true probabilities."""
    rng = np.random.default_rng(seed)
    id_effect, tag_effect = rng.normal(0, 1.2, 30), rng.normal(0, 1.5, 100)
    splits, truth = {}, np.empty(0)
    for name, rows in ROWS.items():
        dense = rng.normal(5, 3, (rows, 2)).astype(np.float32)
        item = rng.integers(1, 30, rows)
        lengths = rng.integers(0, 4, rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        tags = rng.zipf(1.5, offsets[-1]).clip(max=99)
        sums = np.bincount(np.repeat(np.arange(rows), lengths), tag_effect[tags], rows)
        logit = 0.4 * (dense[:, 0] - 5) + id_effect[item] + sums / np.maximum(lengths, 1) - 0.5
        truth = 1 / (1 + np.exp(-logit))
        labels = (rng.random(rows) < truth).astype(np.float32)
        splits[name] = BaselineSplit(dense, {"item": item}, {"tags": JaggedColumn(offsets, tags)}, labels)
    return BaselineData(**splits), truth


@pytest.fixture(scope="module")
def data():
    return synthetic_data()


@pytest.mark.parametrize(("fit", "slack"), [(fit_logistic_regression, 0.012), (fit_lightgbm, 0.035)])
def test_auc_is_close_to_the_best_attainable(data, fit, slack):
    columns, truth = data
    result = fit(columns)
    best = roc_auc_score(columns.test.labels_B, truth)
    assert result.predictions_B.shape == (ROWS["test"],)
    assert roc_auc_score(columns.test.labels_B, result.predictions_B) > best - slack
    assert result.validation_loss == min(loss for _, loss in result.tried)
    assert result.settings in [settings for settings, _ in result.tried]
    assert result.seconds > 0
    assert "4,000 of 4,000 training rows" in result.description
    metrics = BinaryMetrics()
    metrics.update(result.logits_B, columns.test.labels_B)
    expected = reference_log_loss(columns.test.labels_B, result.predictions_B)
    assert metrics.compute()["log_loss"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("fit", [fit_logistic_regression, fit_lightgbm])
def test_same_seed_same_bits(data, fit):
    columns, _ = data
    small = columns.capped(1500, seed=3)
    first, second = fit(small, seed=1), fit(small, seed=1)
    np.testing.assert_array_equal(first.predictions_B, second.predictions_B)
    assert first.tried == second.tried


@pytest.mark.parametrize("fit", [fit_logistic_regression, fit_lightgbm])
def test_row_cap_is_the_stated_subsample(data, fit):
    columns, _ = data
    capped = fit(columns, seed=5, row_cap=1000)
    assert "1,000 of 4,000 training rows" in capped.description
    by_hand = fit(
        BaselineData(
            columns.train.take(subsample_rows(4000, 1000, 5)),
            columns.validation.take(subsample_rows(1000, 250, 5)),
            columns.test,
        ),
        seed=5,
    )
    np.testing.assert_array_equal(capped.predictions_B, by_hand.predictions_B)


@pytest.mark.parametrize("fit", [fit_logistic_regression, fit_lightgbm])
def test_ids_never_seen_in_training_are_survived(data, fit):
    columns, _ = data
    test = columns.test.take(np.arange(3))
    unseen = BaselineSplit(
        test.dense_BF,
        {"item": np.array([10_000_000, 29, 5])},
        {"tags": JaggedColumn(np.array([0, 0, 1, 3]), np.array([777, 1, 12345]))},
        test.labels_B,
    )
    small = BaselineData(columns.train.capped(800, 0), columns.validation.capped(200, 0), unseen)
    probabilities = fit(small).predictions_B
    assert np.isfinite(probabilities).all()
    assert ((probabilities > 0) & (probabilities < 1)).all()


TRAIN = BaselineSplit(
    dense_BF=np.array([[1.0], [3.0]], np.float32),
    categorical={"item": np.array([4, 9])},
    bags={"tags": JaggedColumn(np.array([0, 3, 3]), np.array([2, 7, 2]))},
    labels_B=np.array([0, 1], np.float32),
)
LATER = BaselineSplit(
    dense_BF=np.array([[5.0], [2.0]], np.float32),
    categorical={"item": np.array([9, 5])},  # 5 was never seen
    bags={"tags": JaggedColumn(np.array([0, 1, 5]), np.array([7, 8, 2, 2, 0]))},  # nor were 8 and 0
    labels_B=np.array([0, 1], np.float32),
)


def test_one_hot_columns_by_hand():
    columns = OneHotColumns(TRAIN)
    assert columns.count == 5  # dense; items 4, 9; tags 2, 7
    np.testing.assert_allclose(columns.matrix(TRAIN).toarray(), [[-1, 1, 0, 2 / 3, 1 / 3], [1, 0, 1, 0, 0]])
    np.testing.assert_allclose(columns.matrix(LATER).toarray(), [[3, 0, 1, 0, 1], [0, 0, 0, 1 / 2, 0]])


def test_tree_columns_by_hand():
    columns = TreeColumns(TRAIN)
    assert columns.categorical_positions == [1]
    # Dense, item, number of tags, how often tag 2, how often tag 7.
    assert columns.matrix(TRAIN).tolist() == [[1, 4, 3, 2, 1], [3, 9, 0, 0, 0]]
    assert columns.matrix(LATER).tolist() == [[5, 9, 1, 0, 1], [2, 5, 4, 2, 0]]


def test_tree_columns_keep_the_most_frequent_ids_of_a_bag():
    ids = np.concatenate([np.arange(100), np.arange(30, 94)])
    bag = {"tags": JaggedColumn(np.array([0, len(ids)]), ids)}
    train = BaselineSplit(np.zeros((1, 0), np.float32), {}, bag, np.ones(1, np.float32))
    assert TreeColumns(train).matrix(train).tolist() == [[164, *[2] * BAG_COLUMNS]]


@pytest.mark.parametrize("fit", [fit_logistic_regression, fit_lightgbm])
def test_weights_shift_the_predictions(data, fit):
    columns, truth = data

    def weighted(split: BaselineSplit) -> BaselineSplit:
        weights = np.where(split.labels_B > 0.5, 4, 1).astype(np.float32)
        return BaselineSplit(split.dense_BF, split.categorical, split.bags, split.labels_B, weights)

    plain = fit(columns).predictions_B
    shifted = fit(BaselineData(weighted(columns.train), weighted(columns.validation), columns.test)).predictions_B
    assert plain.mean() == pytest.approx(truth.mean(), abs=0.03)
    # Positives counting fourfold turn the odds p / (1 - p) into 4 p / (1 - p).
    assert shifted.mean() == pytest.approx((4 * truth / (1 + 3 * truth)).mean(), abs=0.03)


def test_without_dense_or_bags_or_test_rows():
    rng = np.random.default_rng(1)
    item = rng.integers(0, 5, 400)
    labels = (rng.random(400) < item / 6).astype(np.float32)
    split = BaselineSplit(np.empty((400, 0), np.float32), {"item": item}, {}, labels)
    data = BaselineData(split, split.take(np.arange(100)), split.take(np.arange(0)))
    assert [result.name for result in fit_baselines(data)] == ["LightGBM", "Logistic regression"]
    assert all(len(result.predictions_B) == 0 for result in fit_baselines(data))


def test_data_without_both_classes_or_validation_rows_is_refused(data):
    columns, _ = data
    train = columns.train
    one_class = BaselineSplit(train.dense_BF, train.categorical, train.bags, np.zeros(4000, np.float32))
    with pytest.raises(DataError, match="0 of 4000 training labels are positive"):
        fit_lightgbm(BaselineData(one_class, columns.validation, columns.test))
    with pytest.raises(DataError, match="no validation rows"):
        fit_logistic_regression(BaselineData(train, train.take(np.arange(0)), columns.test))


def test_jagged_take():
    bag = JaggedColumn(np.array([0, 2, 2, 5]), np.array([7, 8, 1, 2, 3]))
    taken = bag.take(np.array([2, 0, 1, 2]))
    assert taken.offsets.tolist() == [0, 3, 5, 5, 8]
    assert taken.ids_N.tolist() == [1, 2, 3, 7, 8, 1, 2, 3]
    assert bag.take(np.arange(0)).offsets.tolist() == [0]


def test_subsample_is_deterministic():
    assert subsample_rows(10, 10, 0).tolist() == list(range(10))
    assert subsample_rows(20, 5, 0).tolist() == subsample_rows(20, 5, 0).tolist()
    assert set(subsample_rows(20, 5, 0)) < set(subsample_rows(20, 9, 0))  # a larger cap keeps what a smaller one had
    assert subsample_rows(20, 5, 0).tolist() != subsample_rows(20, 5, 1).tolist()
    spread = subsample_rows(100_000, 10_000, 0)
    assert np.histogram(spread, 10, (0, 100_000))[0] == pytest.approx(np.full(10, 1000), abs=120)


def test_log_loss_matches_scikit_learn():
    rng = np.random.default_rng(2)
    probability, weight = rng.random(200), rng.random(200)
    label = (rng.random(200) < probability).astype(np.float64)
    expected = reference_log_loss(label, probability, sample_weight=weight)
    assert log_loss(probability, label, weight) == pytest.approx(expected, rel=1e-12)
    certain = log_loss(np.array([0.0, 1.0]), np.array([1.0, 1.0]))
    assert certain == pytest.approx(reference_log_loss([1, 1], [0.0, 1.0], labels=[0, 1]), rel=1e-6)


def test_threads_follow_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert machine_threads() == 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert machine_threads() >= 1
