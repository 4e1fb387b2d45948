"""Labels of every kind are trained, evaluated, resumed and predicted."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from tests.training.conftest import MakeExperiment, RecordedNotes
from ziggurat.core.errors import ConfigError
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.prediction.predictor import Predictor
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.run import Run

ROWS = 3000
LABELS: list[dict[str, Any]] = [
    {"name": "click"},
    {"name": "ctr", "kind": "soft", "positives": "clicks", "trials": "shown", "loss_weight": 2},
    {"name": "watch", "kind": "regression", "loss": {"name": "log1p"}},
    {"name": "seconds", "column": "watch", "kind": "regression", "loss": {"name": "quantile"}},
    {"name": "orders", "kind": "regression", "loss": {"name": "poisson"}},
    {"name": "rating", "kind": "ordinal"},
]


def write_log(path: Path) -> None:
    draw = np.random.default_rng(1)
    user, item = draw.integers(0, 20, ROWS), draw.integers(0, 30, ROWS)
    score = draw.normal(size=20)[user] + draw.normal(size=30)[item]
    rate = 1 / (1 + np.exp(3 - score))
    shown = draw.integers(0, 8, ROWS)
    columns = {
        "user": user,
        "item": item,
        "click": draw.binomial(1, rate),
        "clicks": draw.binomial(shown, rate),
        "shown": shown,
        "watch": np.exp(5 + score + draw.normal(0, 0.2, ROWS)).round(2),
        "orders": draw.poisson(np.exp(score / 2)),
        "rating": np.clip(np.rint(3 + score + draw.normal(0, 0.3, ROWS)), 1, 5).astype(int),
    }
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(columns)
        out.writerows(zip(*columns.values(), strict=True))


@pytest.fixture
def kinds(make_experiment: MakeExperiment, tmp_path: Path) -> Any:
    """Returns an experiment on the log for some labels and changes."""
    write_log(tmp_path / "kinds.csv")
    features = [{"name": name, "kind": "categorical", "type": "integer"} for name in ("user", "item")]

    def make(labels: list[dict[str, Any]] = LABELS, file: str = "kinds.csv", **changes: Any) -> Experiment:
        return make_experiment(
            data__folder=str(tmp_path),
            data__source__files=[file],
            data__labels=labels,
            features=features,
            evaluation__slices=["user"],
            **{"model": {"name": "dnn", "head": {"bottom": {"hidden": [32]}}}, "training__epochs": 6, **changes},
        )

    return make


def test_every_kind_is_learnt_and_a_stopped_run_resumes_bit_for_bit(kinds: Any) -> None:
    experiment = kinds()
    assert experiment.training.monitor == "relative_loss"
    straight = api.train(experiment, "straight")
    assert straight.results is not None
    figures = straight.results["figures"]["test"]
    assert figures["click/ne"] < 0.95
    assert figures["ctr/ne"] < 0.95
    for label, most in {"watch": 0.2, "seconds": 0.65, "orders": 0.95, "rating": 0.75}.items():
        assert figures[f"{label}/relative_loss"] < most, label
        assert figures[f"{label}/calibration"] == pytest.approx(1, abs=0.25), label
    api.train(experiment, "halves", stop_after=straight.step // 2)
    second = api.train(experiment, "halves")
    assert second.results == {**straight.results, "seconds": second.results["seconds"]}
    records = read_metrics_log(straight.run.metrics_path, straight.run.files)
    trained = [record for record in records if record["split"] == "train"]
    assert all("ne" not in record for record in trained)
    best = straight.run.checkpoints.best()
    validation = [record for record in records if record["split"] == "validation"]
    weights = [label.get("loss_weight", 1) for label in LABELS]

    def relative(record: dict[str, Any]) -> float:
        names = [f"{each['name']}/{'ne' if each['name'] in {'click', 'ctr'} else 'relative_loss'}" for each in LABELS]
        return float(np.average([record[name] for name in names], weights=weights))

    chosen = min(validation, key=relative)
    assert best is not None
    assert best["step"] == chosen["step"]
    assert best["value"] == pytest.approx(relative(chosen))


def test_predictions_are_in_the_labels_units(kinds: Any, tmp_path: Path) -> None:
    run = api.train(kinds()).run
    out = tmp_path / "out.csv"
    api.predict_files(run, tmp_path / "kinds.csv", out, levels=True)
    frame = pl.read_csv(out)
    quantiles = [f"prediction:seconds:{level}" for level in ("0.1", "0.5", "0.9")]
    levels = [f"probability:rating:{level}" for level in range(1, 6)]
    assert frame.columns[8:] == [
        "probability:click",
        "probability:ctr",
        "prediction:watch",
        "prediction:seconds",
        *quantiles,
        "prediction:orders",
        "prediction:rating",
        *levels,
    ]
    assert frame["prediction:watch"].mean() == pytest.approx(frame["watch"].mean(), rel=0.2)
    assert frame["prediction:rating"].to_numpy() == pytest.approx(
        frame.select(levels).to_numpy() @ np.arange(1, 6), rel=1e-4
    )
    below = [(frame["watch"] <= frame[name]).mean() for name in quantiles]
    assert below == pytest.approx([0.1, 0.5, 0.9], abs=0.15)
    with Predictor(run) as predictor:
        found = predictor.predict(pl.read_csv(tmp_path / "kinds.csv").head(50))
    names = [name for name in frame.columns[8:] if name.count(":") == 1]
    np.testing.assert_allclose(found, frame.head(50).select(names).to_numpy(), rtol=1e-4)
    api.predict_files(run, tmp_path / "kinds.csv", out)
    assert not set(levels) & set(pl.read_csv(out).columns)


@pytest.mark.parametrize(
    ("label", "monitor"),
    [
        ({"kind": "regression"}, "rmse"),
        ({"kind": "regression", "loss": {"name": "huber"}}, "mae"),
        ({"kind": "regression", "loss": {"name": "log1p"}}, "rmsle"),
        ({"kind": "regression", "loss": {"name": "tweedie"}}, "deviance"),
        ({"kind": "regression", "loss": {"name": "quantile"}}, "pinball"),
        ({"kind": "ordinal", "column": "rating"}, "log_loss"),
        ({"kind": "soft", "column": "click"}, "log_loss"),
    ],
)
def test_a_label_is_monitored_by_its_main_metric(kinds: Any, label: dict[str, Any], monitor: str) -> None:
    assert kinds([{"name": "watch", **label}]).training.monitor == monitor


def test_the_monitor_must_be_measured_of_every_label(kinds: Any) -> None:
    kinds(training__monitor="orders/rmse").check()
    kinds(training__monitor="relative_loss").check()
    with pytest.raises(ConfigError, match=r"training\.monitor: label 'watch' has no auc"):
        kinds(training__monitor="auc").check()
    with pytest.raises(ConfigError, match=r"training\.monitor: label 'rating' has no deviance"):
        kinds(training__monitor="rating/deviance").check()


def test_the_first_prediction_is_the_mean(kinds: Any) -> None:
    """One step of a learning rate of almost 0: what is evaluated is the start."""
    still = {"optimizer": {"name": "adam", "lr": 1e-12}, "training__max_steps": 1, "embeddings__init_std": 1e-6}
    experiment = kinds(**still, training__start_at_base_rate=True, embeddings__optimizer={"name": "sgd", "lr": 1e-12})
    run = api.train(experiment).run
    figures = api.evaluate(run, "train").compute()
    for label in ("click", "ctr", "orders"):
        assert figures[f"{label}/calibration"] == pytest.approx(1, abs=0.25), label
    assert figures["click/log_loss"] < math.log(2) * 0.75
    assert figures["rating/relative_loss"] == pytest.approx(1, abs=0.1)


def thinned(folder: Path) -> None:
    """Writes a log of which a quarter of the negatives was kept."""
    frame = pl.read_csv(folder / "kinds.csv")
    kept = np.random.default_rng(3).random(len(frame)) < 0.25
    frame.filter(pl.Series(kept) | (frame["click"] == 1)).write_csv(folder / "thinned.csv")


def test_training_on_a_share_of_negatives_is_calibrated(kinds: Any) -> None:
    click = [{"name": "click"}]
    whole = api.train(kinds(click), "whole")
    few = api.train(kinds(click, training__negative_rate=0.25), "few")
    assert whole.results is not None
    assert few.results is not None
    assert few.step == whole.step
    for split in ("validation", "test"):
        ours, theirs = few.results["figures"][split], whole.results["figures"][split]
        assert ours["calibration"] == pytest.approx(1, abs=0.25)
        assert ours["log_loss"] == pytest.approx(theirs["log_loss"], rel=0.1)
    logged = [row for row in read_metrics_log(few.run.metrics_path, few.run.files) if row["split"] == "train"]
    assert len(logged) > 2
    halves = kinds(click, training__negative_rate=0.25)
    api.train(halves, "halves", stop_after=few.step // 2)
    second = api.train(halves, "halves")
    assert second.results is not None
    assert second.results["figures"] == few.results["figures"]


def test_a_declared_rate_corrects_evaluation_and_prediction(kinds: Any, tmp_path: Path) -> None:
    thinned(tmp_path)
    declared = kinds([{"name": "click", "negative_rate": 0.25}], "thinned.csv")
    run = api.train(declared, "declared").run
    figures = api.evaluate(run, "test").compute()
    assert figures["calibration"] == pytest.approx(1, abs=0.3)
    rate = pl.read_csv(tmp_path / "kinds.csv")["click"].mean()
    assert figures["base_rate"] == pytest.approx(rate, rel=0.3)
    with Predictor(run) as predictor:
        found = predictor.predict(pl.read_csv(tmp_path / "kinds.csv"))
    assert float(found.mean()) == pytest.approx(rate, rel=0.4)  # uncorrected it is more than twice the rate


def test_a_rate_for_training_needs_one_binary_label(kinds: Any) -> None:
    with pytest.raises(ConfigError, match=r"training\.negative_rate: needs a single binary label"):
        kinds(training__negative_rate=0.5).check()


def test_data_without_stored_base_rates_begin_at_a_half(kinds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that an earlier ziggurat prepared has no figures of labels."""
    experiment = kinds([{"name": "click"}], training__start_at_base_rate=True, training__max_steps=2)
    monkeypatch.setattr(Run, "labels", lambda run: {})
    notes = RecordedNotes()
    api.train(experiment, progress=notes)
    assert sum("predictions begin at 1/2" in note for note in notes.notes) == 1


def test_models_with_towers_have_one_for_each_quantile(kinds: Any) -> None:
    head = {"name": "mmoe", "experts": 2, "expert": {"hidden": [8]}, "tower": {"hidden": [4]}}
    label = [{"name": "watch", "kind": "regression", "loss": {"name": "quantile"}}, {"name": "click"}]
    run = api.train(kinds(label, model={"name": "dnn", "head": head}, training__max_steps=3)).run
    found = run.checkpoints.load("last").groups["dense"]
    assert torch.isfinite(next(iter(found.values()))).all()
    linear = kinds(label, model={"name": "logistic_regression"}, training__max_steps=3)
    assert linear.width == 16
    api.train(linear, "linear")
