"""The report of a trained run and its baselines, which are stored one by one and retrained if their recipe changes."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.training.conftest import MakeExperiment
from tests.training.conftest import make_experiment as make_experiment
from ziggurat.core.errors import DataError
from ziggurat.core.progress import Silent
from ziggurat.report.baselines import compare
from ziggurat.report.gather import report_run
from ziggurat.training import api


class RecordingProgress(Silent):
    """Records the stages that are started, among them the baselines that are trained."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self.started.append(stage)


@pytest.fixture
def run(make_experiment: MakeExperiment) -> Path:
    return api.train(make_experiment(training__epochs=1)).run.folder


def trained_baselines(run: Path, out: Path | None = None) -> set[str]:
    progress = RecordingProgress()
    report_run(run, out, progress=progress)
    return {"LightGBM", "logistic regression"} & {*progress.started}


def test_labels_are_shown_in_the_configs_order(make_experiment: MakeExperiment) -> None:
    run = api.train(make_experiment(training__epochs=1, data__labels=[{"name": "click"}, {"name": "buy"}])).run.folder
    report_run(run, baselines=False)
    page = (run / "report.html").read_text()
    places = [page.index(text) for text in ("Metrics of click on the test", "Metrics of buy on the test")]
    assert places == sorted(places)
    columns = [page.index(f"{task} · {split}") for task in ("click", "buy") for split in ("test", "validation")]
    assert columns == sorted(columns)


def test_the_report_names_the_source_of_a_warm_start(make_experiment: MakeExperiment, run: Path) -> None:
    started = make_experiment(training__epochs=1, training__warm_start={"run": str(run)})
    report_run(api.train(started, "warm").run.folder, baselines=False)
    best = api.load_run(run).checkpoints.resolve("best")
    line = f"This run began with a warm start from {run}, step {best}: table user: 42 of 42 rows; "
    assert line in Path("warm/report.html").read_text()


def test_a_second_report_trains_no_baseline_again(run: Path) -> None:
    assert trained_baselines(run) == {"LightGBM", "logistic regression"}
    first = json.loads((run / "baselines.json").read_text())["baselines"]
    page = (run / "report.html").read_text()
    assert {kept["row"]["model"] for kept in first.values()} == {"LightGBM", "Logistic regression"}
    assert trained_baselines(run) == set()
    assert json.loads((run / "baselines.json").read_text())["baselines"] == first
    again = (run / "report.html").read_text()
    for kept in first.values():
        figure = f"{kept['row']['figures']['auc']:.4f}".lstrip("0")
        assert figure in page
        assert figure in again


def test_an_interrupted_report_keeps_finished_baselines(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = compare.BASELINES

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compare, "BASELINES", (first, dataclasses.replace(second, fit=interrupted)))
        with pytest.raises(KeyboardInterrupt):
            report_run(run)
    assert not (run / "report.html").exists()
    assert trained_baselines(run) == {"logistic regression"}


def test_a_changed_recipe_is_trained_again(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained_baselines(run)
    first, second = compare.BASELINES
    newer = dataclasses.replace(second, recipe={**second.recipe, "sklearn": "99"})
    monkeypatch.setattr(compare, "BASELINES", (first, newer))
    assert trained_baselines(run) == {"logistic regression"}


@pytest.mark.parametrize("damage", ["", "[1]", '{"a": 1}', '{"a": {"row": {"task": "click"}, "notes": []}}', "{"])
def test_a_damaged_store_is_rewritten(run: Path, damage: str) -> None:
    (run / "baselines.json").write_text(damage)
    assert trained_baselines(run) == {"LightGBM", "logistic regression"}
    assert trained_baselines(run) == set()


def test_baselines_that_cannot_be_stored_are_shown(run: Path) -> None:
    (run / "baselines.json").mkdir()
    assert trained_baselines(run) == {"LightGBM", "logistic regression"}
    assert "The next report has to train the baselines again: " in (run / "report.html").read_text()


def test_labels_that_are_numbers_have_metrics_and_baselines_of_their_kind(make_experiment: MakeExperiment) -> None:
    labels = [
        {"name": "spent", "column": "when", "kind": "regression", "loss": {"name": "huber"}},
        {"name": "stars", "column": "buy", "kind": "ordinal", "levels": [0, 1]},
        {"name": "click"},
    ]
    run = api.train(make_experiment(training__epochs=1, data__labels=labels)).run.folder
    report_run(run)
    page = (run / "report.html").read_text()
    for label, metric in (("spent", "RMSE"), ("stars", "RMSE"), ("click", "AUC")):
        part = page[page.index(f"Metrics of {label} on the test") :]
        assert metric in part
    kept = json.loads((run / "baselines.json").read_text())["baselines"].values()
    figures = {(each["row"]["task"], each["row"]["model"]): each["row"]["figures"] for each in kept}
    assert len(figures) == 6
    for (label, _), values in figures.items():
        assert ("auc" in values) == (label == "click")
        assert ("rmse" in values) == (label != "click")


def test_a_place_that_cannot_be_written_is_told_before_evaluating(run: Path) -> None:
    progress = RecordingProgress()
    with pytest.raises(DataError, match=r"config\.yaml"):
        report_run(run, run / "config.yaml" / "report.html", progress=progress)
    assert progress.started == []
