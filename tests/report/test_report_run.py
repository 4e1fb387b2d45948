"""A trained run's report with its baselines: trained once, kept as each is done, trained anew for another dataset."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from tests.training.conftest import MakeExperiment
from tests.training.conftest import make_experiment as make_experiment
from ziggurat.core.progress import Silent
from ziggurat.report.baselines import compare
from ziggurat.report.gather import report_run
from ziggurat.training import api


class Trainings(Silent):
    """Counts the baselines that were trained."""

    def __init__(self) -> None:
        self.started: list[str] = []

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self.started.append(stage)


@pytest.fixture
def run(make_experiment: MakeExperiment) -> Path:
    return api.train(make_experiment(training__epochs=1)).run.folder


def trained(run: Path, out: Path | None = None) -> set[str]:
    progress = Trainings()
    report_run(run, out, progress=progress)
    return {"LightGBM", "logistic regression"} & {*progress.started}


def test_labels_are_shown_in_the_configs_order(make_experiment: MakeExperiment) -> None:
    run = api.train(make_experiment(training__epochs=1, data__labels=[{"name": "click"}, {"name": "buy"}])).run.folder
    report_run(run, baselines=False)
    page = (run / "report.html").read_text()
    places = [page.index(text) for text in ("Figures of click on the test", "Figures of buy on the test")]
    assert places == sorted(places)
    columns = [page.index(f"{task} · {split}") for task in ("click", "buy") for split in ("test", "validation")]
    assert columns == sorted(columns)


def test_a_run_that_began_with_anothers_weights_says_so(make_experiment: MakeExperiment, run: Path) -> None:
    started = make_experiment(training__epochs=1, training__warm_start={"run": str(run)})
    report_run(api.train(started, "warm").run.folder, baselines=False)
    best = api.load_run(run).checkpoints.resolve("best")
    line = f"Began with a warm start from {run}, step {best}: table user: 42 of 42 rows; "
    assert line in Path("warm/report.html").read_text()


def test_a_second_report_trains_no_baseline_again(run: Path) -> None:
    assert trained(run) == {"LightGBM", "logistic regression"}
    first = json.loads((run / "baselines.json").read_text())
    page = (run / "report.html").read_text()
    assert {kept["row"]["model"] for kept in first.values()} == {"LightGBM", "Logistic regression"}
    assert trained(run) == set()
    assert json.loads((run / "baselines.json").read_text()) == first
    again = (run / "report.html").read_text()
    for kept in first.values():
        figure = f"{kept['row']['figures']['auc']:.4f}".lstrip("0")
        assert figure in page
        assert figure in again


def test_an_interrupted_report_keeps_the_baseline_that_was_done(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = compare.BASELINES

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(compare, "BASELINES", (first, dataclasses.replace(second, fit=interrupted)))
        with pytest.raises(KeyboardInterrupt):
            report_run(run)
    assert not (run / "report.html").exists()
    assert trained(run) == {"logistic regression"}


def test_another_recipe_is_trained_anew(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(run)
    first, second = compare.BASELINES
    newer = dataclasses.replace(second, recipe={**second.recipe, "sklearn": "99"})
    monkeypatch.setattr(compare, "BASELINES", (first, newer))
    assert trained(run) == {"logistic regression"}


@pytest.mark.parametrize("damage", ["", "[1]", '{"a": 1}', '{"a": {"row": {"task": "click"}, "notes": []}}', "{"])
def test_a_damaged_file_is_written_anew(run: Path, damage: str) -> None:
    (run / "baselines.json").write_text(damage)
    assert trained(run) == {"LightGBM", "logistic regression"}
    assert trained(run) == set()


def test_figures_that_cannot_be_kept_are_shown_all_the_same(run: Path) -> None:
    (run / "baselines.json").mkdir()
    assert trained(run) == {"LightGBM", "logistic regression"}
    assert "The next report has to train the baselines again: " in (run / "report.html").read_text()
