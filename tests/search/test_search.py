"""Searches with real trainings: what they find, write and refuse, and that no kill loses or repeats a trial."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil
import pytest

from tests.commands import Command, ziggurat
from tests.training.conftest import MakeExperiment, RecordedNotes
from ziggurat.core.errors import ConfigError, DataError, EnvironmentMismatch, RunFolderError
from ziggurat.core.files import FolderInUse, locked_folder
from ziggurat.search.hyperparameters import search_hyperparameters
from ziggurat.training.evaluate_run import evaluate
from ziggurat.training.experiment import Experiment, load_experiment
from ziggurat.training.preparation import prepare
from ziggurat.training.train import train


def test_a_search_finds_better_rates_and_writes_what_it_found(slow_start: Experiment) -> None:
    progress = RecordedNotes()
    searched = search_hyperparameters(slow_start, trials=5, jobs=2, space="space.yaml", progress=progress)
    first, best = searched.trials[0], searched.best
    assert first.settings == {"optimizer.lr": 1e-6, "embeddings.optimizer.lr": 1e-6}
    assert best is not None
    assert best.value is not None
    assert first.value is not None
    assert best.value < first.value - 0.01
    assert [each.number for each in searched.trials] == [0, 1, 2, 3, 4]
    assert searched.missing == 0
    assert sum(note.startswith("trial ") for note in progress.notes) == 5

    lines = [json.loads(line) for line in (searched.folder / "trials.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[best.number]["value"] == best.value == lines[best.number]["validation"]["log_loss"]
    assert lines[best.number]["settings"] == best.settings

    # the test split was read once, for the best; its own run has no figures of it
    kept = [folder.name for folder in (searched.folder / "trials").iterdir()]
    assert sorted(kept) == ["0000", f"{best.number:04d}"]
    results = json.loads((searched.folder / "trials" / f"{best.number:04d}" / "results.json").read_text())
    assert list(results["figures"]) == ["validation"]
    assert searched.test["auc"] > 0.5
    assert json.loads((searched.folder / "test.json").read_text())["trial"] == best.number

    page = (searched.folder / "search.html").read_text(encoding="utf-8")
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert "<script" not in page
    assert all(f"trial {each.number}" in page for each in searched.trials if each.value is not None)
    assert f"{best.value:.4f}" in page

    # the best config trains as it stands, to the figure that was found
    found = load_experiment(searched.folder / "best.yaml")
    assert found.name == "small-best"
    assert found.optimizer.lr == best.settings["optimizer.lr"]
    outcome = train(found)
    assert outcome.results is not None
    assert outcome.results["figures"]["validation"]["log_loss"] == pytest.approx(best.value, abs=1e-4)
    assert outcome.results["figures"]["test"]["auc"] == pytest.approx(searched.test["auc"], abs=1e-3)


def test_a_search_killed_in_the_middle_resumes_with_each_trial_once(slow_start: Experiment) -> None:
    arguments = ["search", "hyperparameters", "exp.yaml", "--trials", "3", "--space", "space.yaml"]
    command = Command(*arguments)
    metrics = Path("searches/small/trials/0001/metrics.jsonl")
    _wait(lambda: metrics.exists() or command.poll() is not None)
    children = psutil.Process(command.pid).children()
    command.kill()
    command.communicate()
    psutil.wait_procs(children, timeout=60)
    assert children
    assert not any(child.is_running() for child in children)  # no trial outlives its search
    assert load_experiment("searches/small/best.yaml").name == "small-best"  # the best so far, here the config itself

    journal = Path("searches/small/study.journal")
    with journal.open("a") as file:
        file.write('{"op_code": 4, "worker')  # the line that the kill cut short
    status, out, err = ziggurat(*arguments)
    assert status == 0, err
    assert "trial 0:" not in err  # it had ended before
    lines = [json.loads(line) for line in Path("searches/small/trials.jsonl").read_text().splitlines()]
    assert [line["number"] for line in lines] == [0, 1, 2]
    assert all(line["state"] in {"complete", "pruned"} for line in lines)
    assert "searches/small/best.yaml" in out


def test_sigterm_saves_the_trials_and_more_trials_continue_the_search(slow_start: Experiment) -> None:
    arguments = ["search", "hyperparameters", "exp.yaml", "--space", "space.yaml"]
    command = Command(*arguments, "--trials", "2")
    _wait(lambda: Path("searches/small/trials/0000.json").exists() or command.poll() is not None)
    os.kill(command.pid, signal.SIGTERM)
    _, err = command.communicate()
    assert command.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; 2 of 2 trials are left" in err
    assert "Run the same command to resume" in err
    searched = search_hyperparameters(slow_start, trials=1, space="space.yaml")
    assert [each.number for each in searched.trials] == [0]
    assert [each.number for each in searched.trials if each.state == "complete"] == [0]


def test_a_hopeless_trial_is_ended_and_its_figures_are_kept(make_experiment: MakeExperiment) -> None:
    Path("space.yaml").write_text("search: {space: {embeddings.optimizer.lr: [1e-9, 1e-8, 1e-7, 1e-6]}}")
    experiment = make_experiment(optimizer={"lr": 1e-6}, training__epochs=12)
    searched = search_hyperparameters(experiment, trials=5, space="space.yaml")
    assert searched.best is not None
    assert searched.best.number == 0  # the config is the only one that learns
    pruned = [each for each in searched.trials if each.state == "pruned"]
    assert pruned
    for each in pruned:
        assert each.value is None
        assert 0 < each.history[-1][0] < 1000
        assert each.figures["log_loss"] is not None
        assert not (searched.folder / "trials" / f"{each.number:04d}").exists()


def test_trials_that_are_trained_to_their_end_are_complete(slow_start: Experiment) -> None:
    """Each is evaluated once, at its end, where there is nothing left to save by ending it."""
    Path("exp.yaml").write_text(Path("exp.yaml").read_text().replace("epochs: 2", "epochs: 1"))
    searched = search_hyperparameters("exp.yaml", trials=6, jobs=2, space="space.yaml")
    assert [each.state for each in searched.trials] == ["complete"] * 6


def test_a_file_of_the_working_directory_does_not_stand_for_the_standard_library(slow_start: Experiment) -> None:
    Path("queue.py").write_text("raise SystemExit('the queue of the working directory was imported')\n")
    # -P, as the command `ziggurat` has it: its own folder is first on the path, not the working directory
    command = [sys.executable, "-P", "-m", "ziggurat", "search", "hyperparameters", "exp.yaml", "--trials", "1"]
    ended = subprocess.run(
        [*command, "--space", "space.yaml", "--run", "found"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_a_metric_that_is_undefined_for_the_config_itself_stops_the_search(make_experiment: MakeExperiment) -> None:
    split = {"name": "time", "validation": 0.15, "test": 0.15}  # an early row alone is positive
    lines = Path("log.csv").read_text().splitlines()
    added = [f"{lines[0]},rare", f"{lines[1]},1", *(f"{line},0" for line in lines[2:])]
    Path("log.csv").write_text("\n".join(added) + "\n")
    experiment = make_experiment(
        data__labels=[{"name": "rare"}], data__time="when", data__time_format="seconds", data__split=split,
        training__monitor="auc", training__epochs=1,
    )  # fmt: skip
    with pytest.raises(DataError, match="trial 0, the config as it is: auc is undefined on the validation split"):
        search_hyperparameters(experiment, trials=2)


def test_ray_is_asked_for_before_the_data_are_prepared(slow_start: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnvironmentMismatch, match="Ray, which is not installed"):
        search_hyperparameters(slow_start, trials=2, space="space.yaml", ray="local")
    assert not list(Path().glob("prepared/*/manifest.json"))


def test_a_second_search_in_the_folder_is_refused(slow_start: Experiment) -> None:
    with (
        locked_folder(Path("searches/small"), "searching"),
        pytest.raises(FolderInUse, match="another process is searching in this folder"),
    ):
        search_hyperparameters(slow_start, trials=1, space="space.yaml")


def test_a_folder_of_another_search_or_of_something_else_is_refused(
    slow_start: Experiment, make_experiment: MakeExperiment
) -> None:
    search_hyperparameters(slow_start, trials=1, space="space.yaml")
    other = make_experiment(optimizer={"lr": 1e-6}, training__epochs=3)
    with pytest.raises(RunFolderError, match=r"another experiment\..*\n  hint: name another folder with --run"):
        search_hyperparameters(other, trials=1, space="space.yaml")
    with pytest.raises(RunFolderError, match=r"another space\..*there"):
        search_hyperparameters(slow_start, trials=1)
    with pytest.raises(RunFolderError, match="another seed: 0 there, 1 here"):
        search_hyperparameters(slow_start, trials=1, space="space.yaml", seed=1)
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty and holds no search"):
        search_hyperparameters(slow_start, "mine", trials=1, space="space.yaml")


def test_settings_that_cannot_be_trained_fail_and_the_search_goes_on(make_experiment: MakeExperiment) -> None:
    Path("space.yaml").write_text("search: {space: {optimizer.lr: [1e-3, 1e30]}}")
    searched = search_hyperparameters(make_experiment(training__epochs=1), trials=3, space="space.yaml", seed=1)
    failed = [each for each in searched.trials if each.state == "failed"]
    assert failed
    assert all("the training loss became" in each.reason for each in failed)
    assert searched.best is not None
    assert searched.best.settings == {"optimizer.lr": 1e-3}


def test_a_config_that_cannot_be_searched_is_refused(make_experiment: MakeExperiment) -> None:
    split = {"name": "random", "validation": 0.0, "test": 0.2}
    with pytest.raises(ConfigError, match="the validation split has no rows"):
        search_hyperparameters(make_experiment(data__split=split), trials=1)
    with pytest.raises(ConfigError, match=r"checkpoints\.store: .* a search trains several"):
        search_hyperparameters(make_experiment(checkpoints={"store": "file:///tmp/x"}), trials=1)
    for wrong in ({"trials": 0}, {"trials": 1, "jobs": 0}, {"trials": 1, "hours": 0.0}):
        with pytest.raises(ConfigError, match="received 0"):
            search_hyperparameters(make_experiment(), **wrong)


def _wait(ready: object, seconds: float = 200) -> None:
    assert callable(ready)
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_lead_within_the_noise_of_validation_keeps_the_config(make_experiment: MakeExperiment) -> None:
    Path("space.yaml").write_text("search: {space: {optimizer.lr: [0.01, 0.0100001, 0.0099999]}}")
    experiment = make_experiment(optimizer={"lr": 0.01}, training__epochs=1)
    found = [search_hyperparameters(experiment, trials=trials, space="space.yaml") for trials in (3, 6)]
    named = max((each for each in found[-1].trials if each.value is not None), key=lambda each: -(each.value or 0))
    for searched in found:
        assert searched.best is not None
        assert searched.best.number == 0
    lead = found[-1].lead
    assert named.number != 0, "two trials of three are as good as the config, and some rounding ahead of it"
    assert lead is not None
    assert (lead.trial, lead.is_noise) == (named.number, True)
    first = found[-1].trials[0].value
    assert first is not None
    assert named.value is not None
    assert lead.ahead == pytest.approx(first - named.value, abs=1e-6)
    assert lead.error < 1e-4  # of differences of nearly equal models, row by row
    text = (found[-1].folder / "best.yaml").read_text()
    assert f"Trial {lead.trial} has the best value, but is ahead of the config as it was by {lead}" in text
    assert load_experiment(found[-1].folder / "best.yaml").optimizer.lr == 0.01
    assert json.loads((found[-1].folder / "test.json").read_text())["trial"] == 0
    page = (found[-1].folder / "search.html").read_text(encoding="utf-8")
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert "so the config was kept" in page


def test_a_lead_has_the_error_of_the_paired_difference(slow_start: Experiment) -> None:
    searched = search_hyperparameters(slow_start, trials=4, space="space.yaml", seed=1)
    lead, best = searched.lead, searched.best
    assert lead is not None
    assert best is not None
    assert (lead.trial, lead.is_noise) == (best.number, False)
    rows = prepare(slow_start).split("validation").rows
    assert lead.rows == rows
    first = searched.trials[0].value
    assert first is not None
    assert best.value is not None
    assert lead.ahead == pytest.approx(first - best.value, abs=1e-6)
    assert 0 < lead.error < 1 / math.sqrt(rows)


def test_an_ensemble_of_the_best_trials_is_kept_and_used(slow_start: Experiment) -> None:
    searched = search_hyperparameters(slow_start, trials=5, jobs=2, space="space.yaml", ensemble=3)
    found, folder = searched.ensemble, searched.folder
    assert found is not None
    assert searched.best is not None
    complete = [each for each in searched.trials if each.state == "complete"]
    ranked = [number for _, number in sorted((each.value, each.number) for each in complete if each.value is not None)]
    assert list(found.trials) == ranked[:3]
    assert found.trials[0] == searched.best.number
    assert sorted(each.name for each in (folder / "trials").iterdir()) == sorted(f"{n:04d}" for n in {0, *ranked[:3]})

    # validation decides: it is never worse there than the best trial, and test is only looked at
    chosen = found.built.chosen["click"]
    assert found.validation["log_loss"] == pytest.approx(chosen.loss, abs=1e-6)
    assert searched.best.value is not None
    assert chosen.loss <= searched.best.value + 1e-6
    assert found.test == evaluate(folder / "ensemble", "test").compute()
    page = (folder / "search.html").read_text(encoding="utf-8")
    ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>"))
    assert "The ensemble" in page

    # another call leaves it as it is, with the runs that it needs
    more = search_hyperparameters(slow_start, trials=6, space="space.yaml")
    assert more.ensemble is None
    assert evaluate(folder / "ensemble", "test").compute() == found.test
    kept = {each.name for each in (folder / "trials").iterdir()}
    assert {member.run.folder.name for member in found.built.ensemble.members} <= kept


def test_an_ensemble_needs_the_runs_of_two_trials(slow_start: Experiment) -> None:
    with pytest.raises(ConfigError, match="an ensemble is made of 2 to 1,000 trials, received 1"):
        search_hyperparameters(slow_start, trials=2, space="space.yaml", ensemble=1)
    search_hyperparameters(slow_start, trials=1, space="space.yaml")
    with pytest.raises(RunFolderError, match="needs the runs of two complete trials or more, and has those of 1"):
        search_hyperparameters(slow_start, trials=1, space="space.yaml", ensemble=3)
    before = search_hyperparameters(slow_start, trials=4, space="space.yaml")
    assert sum(each.state == "complete" for each in before.trials) > 2  # of which the first and the best are kept
    progress = RecordedNotes()
    searched = search_hyperparameters(slow_start, trials=5, space="space.yaml", ensemble=5, progress=progress)
    assert searched.ensemble is not None
    assert any("were deleted before --ensemble was given" in note for note in progress.notes)
