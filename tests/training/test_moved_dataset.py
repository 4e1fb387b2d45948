"""The prepared dataset of a run may be moved, lost or replaced after training; errors say what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.report.gather import report_run
from ziggurat.training import api


@pytest.fixture
def run(make_experiment: MakeExperiment) -> Path:
    return api.train(make_experiment(training__epochs=1)).run.folder


def prepared(run: Path) -> Path:
    return api.load_run(run).dataset().folder


def test_the_folder_of_a_moved_dataset_can_be_given(run: Path, tmp_path: Path) -> None:
    before = api.evaluate(run).compute()
    moved = tmp_path / "a folder with spaces"
    old = prepared(run)
    old.rename(moved)
    with pytest.raises(DataError) as caught:
        api.evaluate(run)
    assert caught.value.problem.startswith(f"{old}: the prepared dataset of {run} is not there")
    assert "--prepared DIR" in caught.value.hint
    assert f"`ziggurat prepare {run}/config.yaml --prepared {old}`" in caught.value.hint
    assert api.evaluate(run, prepared=moved).compute() == before
    page = report_run(run, tmp_path / "page.html", baselines=False, prepared=moved)
    assert f"{before['auc']:.4f}".lstrip("0") in page.read_text()


def test_the_command_in_the_hint_prepares_the_dataset_again(run: Path) -> None:
    before = api.evaluate(run).compute()
    old = prepared(run)
    shutil.rmtree(old)
    api.prepare(api.load_experiment(run / "config.yaml"), old)
    assert api.evaluate(run).compute() == before


def test_a_run_resumes_with_a_moved_dataset(run: Path, tmp_path: Path, make_experiment: MakeExperiment) -> None:
    moved = prepared(run).rename(tmp_path / "moved")
    outcome = api.train(make_experiment(training__epochs=2), run, prepared=moved)
    assert outcome.results is not None
    assert prepared(run) == moved
    assert not list(Path("prepared").iterdir())


def test_another_dataset_is_refused(run: Path, tmp_path: Path, make_experiment: MakeExperiment) -> None:
    other = api.prepare(make_experiment(features__age__transforms=[]), tmp_path / "other")
    with pytest.raises(RunFolderError, match=rf"holds dataset {other.fingerprint[:12]}, the run was trained on "):
        api.evaluate(run, prepared=other.folder)
