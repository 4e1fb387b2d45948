"""What becomes of a search by its first trial, the config as it is: killed, failed, or compared with the best."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.search import trial_process
from ziggurat.search.hyperparameters import search_hyperparameters
from ziggurat.search.space import own_settings, read_space
from ziggurat.search.study import Study
from ziggurat.training.experiment import Experiment


def test_a_lead_of_several_labels_is_that_of_the_monitored_mean(make_experiment: MakeExperiment) -> None:
    lines = Path("log.csv").read_text().splitlines()
    added = [f"{lines[0]},rare,spent", *(f"{line},{int(n % 9 == 0)},{n % 7}" for n, line in enumerate(lines[1:]))]
    Path("log.csv").write_text("\n".join(added) + "\n")
    Path("space.yaml").write_text("search: {space: {optimizer.lr: [1e-6, 0.005, 0.01]}}")
    labels = [{"name": "click"}, {"name": "rare", "loss_weight": 7.0}]
    number = {"name": "spent", "kind": "regression", "loss_weight": 0.3}
    for monitor, given in (("log_loss", labels), ("ne", labels), ("relative_loss", [*labels, number])):
        experiment = make_experiment(
            data__labels=given, training__monitor=monitor, training__epochs=1, optimizer={"lr": 1e-6}
        )
        searched = search_hyperparameters(experiment, monitor, trials=2, space="space.yaml")
        lead, first = searched.lead, searched.trials[0].value
        assert lead is not None
        named = searched.trials[lead.trial].value
        assert first is not None
        assert named is not None
        assert lead.ahead > 1e-4
        assert lead.ahead == pytest.approx(first - named, rel=1e-4)
        assert f"in {monitor} on" in str(lead)


def _kill_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the system kill the next trial that starts, as it does for want of memory."""
    start = trial_process.start_trial

    def killed(files: trial_process.TrialFiles, threads: int) -> subprocess.Popen[bytes]:
        process = start(files, threads)
        files.errors.touch()  # where the trial is a command, it is open by now
        process.kill()
        monkeypatch.setattr(trial_process, "start_trial", start)
        return process

    monkeypatch.setattr(trial_process, "start_trial", killed)


def test_a_config_whose_trial_is_killed_stops_the_search_which_resumes_it(
    slow_start: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    _kill_first(monkeypatch)
    with pytest.raises(EnvironmentMismatch, match=r"trial 0, the config as it is, .* SIGKILL.*memory\n.*resumes"):
        search_hyperparameters(slow_start, trials=2, space="space.yaml")
    searched = search_hyperparameters(slow_start, trials=2, space="space.yaml")
    assert [each.state for each in searched.trials] == ["complete", "complete"]
    assert searched.lead is not None


def test_a_search_whose_config_has_failed_names_the_best_of_the_others(
    slow_start: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an earlier version left them."""
    _kill_first(monkeypatch)
    with pytest.raises(EnvironmentMismatch):
        search_hyperparameters(slow_start, "found", trials=1, space="space.yaml")
    space = read_space(Path("space.yaml"), slow_start)
    study = Study(
        Path("found/study.journal"), space, own_settings(slow_start, space),
        higher_is_better=False, first_share=250, seed=0,
    )  # fmt: skip
    study.unfinished()
    study.note(0, reason="was ended by SIGKILL")
    study.end(0, "failed")
    searched = search_hyperparameters(slow_start, "found", trials=2, space="space.yaml")
    assert searched.best is not None
    assert (searched.best.number, searched.lead) == (1, None)
    assert "of the config as it was: failed" in (searched.folder / "best.yaml").read_text()
