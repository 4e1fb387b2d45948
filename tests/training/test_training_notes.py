"""Training notes problems for the user: a model that predicts a constant, a warm-up longer than the run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import MakeExperiment, RecordedNotes, config_values
from ziggurat.features.preparation.deciding import NumberSeparation
from ziggurat.metrics.metric_set import MetricSet
from ziggurat.objectives.task import Task
from ziggurat.report.gather import report_run
from ziggurat.training import api
from ziggurat.training.constant_prediction import collapsed_tasks
from ziggurat.training.perfect_prediction import perfect_tasks


class TrainingNotes(RecordedNotes):
    """A progress that records the notes of training without those of preparation."""

    def note(self, message: str) -> None:
        if not message.startswith("missing numbers"):
            super().note(message)


def computed_metrics(columns: dict[str, list[float]], labels: list[float]) -> MetricSet:
    """Returns the metrics of one row per label; the columns hold each task's logits."""
    metrics = MetricSet(tuple(columns))
    metrics.update(np.array(list(columns.values()), np.float32).T, np.array([labels] * len(columns), np.float32).T)
    return metrics


@pytest.mark.parametrize(
    ("logits", "labels", "collapsed"),
    [
        ([0.5, 0.5, 0.5, 0.5], [0, 1, 0, 1], True),
        ([-1000.0] * 4, [0, 1, 0, 1], True),
        ([0.5, 0.5, 0.5001, 0.5001], [0, 1, 0, 1], True),
        ([0.5, 0.5, 0.5001, 0.5001], [0, 0, 0, 1], False),  # a small difference, but in the right order
        ([-1.0, -1.0, 1.0, 1.0], [0, 1, 0, 1], False),  # AUC 0.5, but the predictions differ
        ([0.5, 0.5, 0.5, 0.5], [1, 1, 1, 1], False),  # one class: no AUC
    ],
)
def test_a_constant_is_distinguished_from_a_bad_model(
    make_experiment: MakeExperiment, logits: list[float], labels: list[float], collapsed: bool
) -> None:
    assert bool(collapsed_tasks(computed_metrics({"click": logits}, labels), make_experiment())) == collapsed


def test_the_task_and_the_settings_that_shrink_weights_are_named(make_experiment: MakeExperiment) -> None:
    metrics = computed_metrics({"click": [0.0, 1.0], "buy": [0.0, 0.0]}, [0, 1])
    (plain,) = collapsed_tasks(metrics, make_experiment())
    assert plain == (
        "The model predicts the same for buy for every row (0.5000, AUC 0.500): it has learnt nothing from the "
        "features. Train longer, or try other learning rates (optimizer.lr, embeddings.optimizer.lr) or a larger "
        "init_std."
    )
    experiment = make_experiment(
        embeddings__l2=0.05,
        embeddings__optimizer={"name": "adam", "lr": 0.1, "rows": "all", "l2": 0.25},
        embeddings__tables={"user": {"optimizer": {"name": "adam", "lr": 0.1, "weight_decay": 3}}, "item": {"dim": 4}},
        optimizer={"name": "adamw", "weight_decay": 0.5},
    )
    (shrunk,) = collapsed_tasks(metrics, experiment)
    assert shrunk.endswith(
        "embeddings.l2=0.05 and optimizer.weight_decay=0.5 and embeddings.optimizer.l2=0.25 and "
        "embeddings.tables.user.optimizer.weight_decay=3 may have shrunk its weights to nothing: try less, or 0."
    )


# Vectors that are initialised to 0 stay 0, because the gradient of a product with respect to one factor is the other.
CONSTANT: dict[str, Any] = {
    "model": {"name": "dlrm"},
    "features": [{"name": "user", "kind": "categorical"}, {"name": "item", "kind": "categorical"}],
    "embeddings__init_std": 0.0,
    "embeddings__l2": 0.05,
    "training__max_steps": 4,
}


def test_training_and_report_note_a_model_that_predicts_a_constant(make_experiment: MakeExperiment) -> None:
    progress = TrainingNotes()
    outcome = api.train(make_experiment(**CONSTANT), "constant", progress=progress)
    assert outcome.results is not None
    assert outcome.results["figures"]["validation"]["auc"] == pytest.approx(0.5, abs=0.01)
    (note,) = progress.notes
    assert note.startswith("The model predicts the same for every row (0.")
    assert note.endswith("embeddings.l2=0.05 may have shrunk its weights to nothing: try less, or 0.")
    assert note in report_run("constant", baselines=False).read_text(encoding="utf-8")
    progress = TrainingNotes()
    api.train(make_experiment(**{**CONSTANT, "embeddings__init_std": 0.3}), "varied", progress=progress)
    assert progress.notes == []
    assert "predicts the same" not in report_run("varied", baselines=False).read_text(encoding="utf-8")


def test_a_history_that_holds_its_own_row_is_noted(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    """After preparation, also of data that are prepared already, at the end of training, and in the report."""
    with (tmp_path / "log.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    with (tmp_path / "log.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, rows[0])
        out.writeheader()
        out.writerows({**row, "history": f"{row['history']}|{row['item']}".strip("|")} for row in rows)
    experiment = make_experiment(training__max_steps=4)
    note = ""
    for _ in range(2):
        progress = TrainingNotes()
        api.prepare(experiment, progress=progress)
        (note,) = progress.notes
        assert note.startswith("a likely leak: 'history' holds the row's own 'item' in 100.0% of the 2,")
    progress = TrainingNotes()
    api.train(experiment, "run", progress=progress)
    assert progress.notes == [note, note]
    page = report_run("run", baselines=False).read_text(encoding="utf-8")
    assert "A likely leak: " in page
    assert "holds the row’s own" in page or "holds the row&#x27;s own" in page or "holds the row's own" in page


def test_rows_that_were_set_aside_are_noted(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    """By training that prepares, and by another that finds the data prepared."""
    log = tmp_path / "log.csv"
    log.write_text(log.read_text(encoding="utf-8") + "u1,x,3,1,2,1,0,9,bad item\n", encoding="utf-8")
    experiment = make_experiment(training__max_steps=2, data__on_bad_row="quarantine")
    for run in ("first", "second"):
        progress = TrainingNotes()
        api.train(experiment, run, prepared="prepared", progress=progress)
        assert progress.notes == [f"1 row set aside in {Path('prepared/quarantine.jsonl')}"]
    assert "bad item" in Path("prepared/quarantine.jsonl").read_text(encoding="utf-8")


def test_features_that_tell_the_label_are_noted(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    """A revenue of 0 exactly where nothing was clicked, and a status; by name after preparation, and by the AUC."""
    with (tmp_path / "log.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        clicked = row["click"] == "1"
        row |= {"revenue": str(1 + number % 9) if clicked else "0", "status": "ab"[number % 2] if clicked else "c"}
        row |= {"known": "0" if number % 100 == 0 else row["revenue"], "row": str(number)}
    with (tmp_path / "log.csv").open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, rows[0])
        out.writeheader()
        out.writerows(rows)
    usual = config_values(Path())["features"]
    numbers = [{"name": name, "kind": "numeric"} for name in ("revenue", "known")]
    ids = [{"name": name, "kind": "categorical"} for name in ("status", "row")]
    progress = TrainingNotes()
    api.train(make_experiment(features=[*usual, *numbers, *ids]), "run", progress=progress)
    for name in ("revenue", "status"):
        said = [each for each in progress.notes if f"{name!r} alone tells 'click' in every training row" in each]
        assert len(said) == 2  # after preparation, and at the end
    assert len([each for each in progress.notes if each.startswith("a likely leak: ")]) == 4
    (found,) = (each for each in progress.notes if "is almost always a leak" in each)
    assert found.startswith(("The AUC is 0.999", "The AUC is 1.00000"))
    assert found in report_run("run", baselines=False).read_text(encoding="utf-8")
    progress = TrainingNotes()
    api.train(make_experiment(features=usual), "without", progress=progress)
    assert progress.notes == []


@pytest.mark.parametrize(
    ("rows", "kind", "noted"), [(200, "binary", True), (90, "binary", False), (200, "soft", False)]
)
def test_an_auc_near_1_needs_enough_rows(rows: int, kind: Any, noted: bool) -> None:
    metrics = MetricSet((Task("click", kind=kind),))
    labels = np.arange(rows) % 2
    metrics.update(labels[:, None].astype(np.float32), labels[:, None].astype(np.float32))
    assert bool(perfect_tasks(metrics)) == noted


@pytest.mark.parametrize(
    ("zeros", "ones", "tells"),
    [
        ([0.0] * 20, [1.0, 5.0] * 10, True),
        ([9.0] * 20, [1.0, 5.0] * 10, True),
        ([float("nan")] * 20, [1.0] * 20, True),
        ([float("nan")] * 10 + [0.0] * 10, [1.0] * 20, True),
        ([0.0] * 19, [1.0] * 19, False),
        ([0.0] * 20, [0.0] + [1.0] * 20, False),
        ([float("nan")] * 20, [float("nan")] * 20, False),
        ([float("nan")] + [0.0] * 20, [float("nan")] + [1.0] * 20, False),
    ],
)
def test_numbers_that_lie_apart(zeros: list[float], ones: list[float], tells: bool) -> None:
    separation = NumberSeparation()
    values = np.array([*zeros, *ones])
    is_one = np.arange(len(values)) >= len(zeros)
    for part in (slice(0, 7), slice(7, None)):
        separation.add(values[part], [~is_one[part], is_one[part]])
    assert separation.tells == tells


def test_a_feature_of_the_labels_column_is_noted(make_experiment: MakeExperiment) -> None:
    features = [*config_values(Path())["features"], {"name": "hint", "column": "click", "kind": "numeric"}]
    progress = TrainingNotes()
    api.train(make_experiment(training__max_steps=4, features=features), "run", progress=progress)
    note = next(each for each in progress.notes if each.startswith("a leak: "))
    assert "the feature 'hint' is made of column 'click', which the label 'click' is made of too" in note
    assert "A leak: " in report_run("run", baselines=False).read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "steps", "noted"), [("warmup_cosine", 5, True), ("warmup_linear", 4, False)])
def test_a_warm_up_longer_than_the_run_is_noted(
    make_experiment: MakeExperiment, name: str, steps: int, noted: bool
) -> None:
    progress = TrainingNotes()
    schedule = {"name": name, "warmup_steps": steps}
    api.train(make_experiment(training__schedule=schedule, training__max_steps=4), "run", progress=progress)
    sentence = (
        "training.schedule: the warm-up of 5 steps is longer than the 4 of this run: the learning rates never reach "
        "their full value"
    )
    assert progress.notes == [sentence] * noted


def test_the_monitored_task_decides_which_checkpoint_is_best(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(data__labels=[{"name": "click"}, {"name": "buy"}], training__monitor="buy/auc")
    outcome = api.train(experiment, "run")
    assert outcome.results is not None
    best = outcome.run.checkpoints.best()
    assert best is not None
    assert (best["metric"], best["value"]) == ("buy/auc", outcome.results["figures"]["validation"]["buy/auc"])
