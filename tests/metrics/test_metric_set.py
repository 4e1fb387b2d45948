from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.metric_set import MetricSet
from ziggurat.metrics.names import METRICS, higher_is_better

RNG = np.random.default_rng(4)
LOGITS_BT = RNG.normal(0, 1, (2000, 2)).astype(np.float32)
LABELS_BT = (RNG.random((2000, 2)) < 1 / (1 + np.exp(-LOGITS_BT))).astype(np.float32)
GENDER_B = RNG.integers(0, 9, 2000)


def test_names_have_a_task_prefix_only_with_several_tasks():
    one = MetricSet(["like"])
    one.update(LOGITS_BT[:, :1], LABELS_BT[:, :1])
    two = MetricSet(["like", "share"])
    two.update(LOGITS_BT, LABELS_BT)
    for position, task in enumerate(("like", "share")):
        auc = roc_auc_score(LABELS_BT[:, position], LOGITS_BT[:, position])
        assert two.compute()[f"{task}/auc"] == pytest.approx(auc, abs=1e-12)
        assert two[task].compute()["auc"] == two.compute()[f"{task}/auc"]
    assert one.compute()["auc"] == two.compute()["like/auc"]
    assert set(one.compute()) <= set(METRICS)


def test_slice_metrics_match_scikit_learn_on_their_rows():
    metrics = MetricSet(["like", "share"], MetricsConfig(slice_ids=5), slices=["gender"])
    for rows in np.array_split(np.arange(2000), 3):
        metrics.update(LOGITS_BT[rows], LABELS_BT[rows], slice_ids={"gender": GENDER_B[rows]})
    rows = metrics.compute_slices()
    assert [(row.task, row.label) for row in rows if row.task == "share"] == [
        ("share", f"gender={label}") for label in (0, 1, 2, 3, 4, "other")
    ]
    for row in rows:
        in_slice = GENDER_B >= 5 if row.id is None else row.id == GENDER_B
        position = metrics.tasks.index(row.task)
        label, logit = LABELS_BT[in_slice, position], LOGITS_BT[in_slice, position]
        assert row.figures["rows"] == in_slice.sum()
        assert row.figures["auc"] == pytest.approx(roc_auc_score(label, logit), abs=1e-12)
        expected = log_loss(label, 1 / (1 + np.exp(-logit.astype(np.float64))))
        assert row.figures["log_loss"] == pytest.approx(expected, abs=1e-12)
    named = metrics.slice_figures()
    assert named["share/gender=other/auc"] == next(
        row.figures["auc"] for row in rows if row.task == "share" and row.id is None
    )
    assert metrics.compute()["like/rows"] == 2000


def test_a_nan_logit_makes_only_its_own_slice_undefined():
    metrics = MetricSet(["like"], slices=["gender"])
    metrics.update([[0.0], [1.0], [np.nan]], [[0], [1], [1]], slice_ids={"gender": [1, 1, 2]})
    named = metrics.slice_figures()
    assert named["gender=1/auc"] == 1.0
    assert math.isnan(named["gender=2/log_loss"])
    assert named["gender=2/rows"] == 1
    assert metrics.undefined()["auc"] == "1 of 3 logits are infinite or not a number"


def test_slice_ids_must_be_integers():
    metrics = MetricSet(["like"], slices=["gender"])
    with pytest.raises(DataError, match="slice ids are float64"):
        metrics.update([[0.0]], [[0]], slice_ids={"gender": [0.5]})


@pytest.mark.parametrize(
    ("name", "higher"), [("auc", True), ("like/gauc", True), ("ne", False), ("like/a=1/ece", False)]
)
def test_higher_is_better(name, higher):
    assert higher_is_better(name) is higher


def test_metrics_without_a_direction_are_rejected():
    with pytest.raises(ConfigError, match="did you mean 'log_loss'"):
        higher_is_better("logloss")
    with pytest.raises(ConfigError, match="has no better direction"):
        higher_is_better("like/calibration")


def test_every_figure_is_listed_in_metrics():
    metrics = MetricSet(["like"], grouped=True)
    metrics.update(LOGITS_BT[:, :1], LABELS_BT[:, :1], groups_B=GENDER_B)
    assert set(metrics.compute()) | {"loss"} == set(METRICS)
