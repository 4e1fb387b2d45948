"""Searches over the small log of the training tests; a trial that this process starts is a fork."""

from __future__ import annotations

import os
from multiprocessing import forkserver, get_context
from pathlib import Path

import pytest

from tests.commands import PRELOADED, Command
from tests.training.conftest import MakeExperiment, make_experiment
from ziggurat.search import trial_process
from ziggurat.training.experiment import Experiment, to_yaml

__all__ = ["make_experiment"]

SPACE = "search: {space: {optimizer.lr: {log: [1e-6, 3e-2]}, embeddings.optimizer.lr: {log: [1e-6, 0.3]}}}"


@pytest.fixture(autouse=True)
def forked_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spares each trial the import of the engine; searches that are commands start trials as always."""

    def start(files: trial_process.TrialFiles, threads: int) -> Command:
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        parent = forkserver._forkserver._forkserver_pid  # pyright: ignore
        arguments = (str(files.spec), str(files.out), str(parent))
        return Command(*arguments, environment=environment, module="ziggurat.search.trial", errors=files.errors)

    get_context("forkserver").set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()
    monkeypatch.setattr(trial_process, "start_trial", start)


@pytest.fixture
def slow_start(make_experiment: MakeExperiment) -> Experiment:
    """An experiment that learns next to nothing, over a space with better rates."""
    Path("space.yaml").write_text(SPACE)
    experiment = make_experiment(
        optimizer={"lr": 1e-6}, embeddings__optimizer={"name": "rowwise_adagrad", "lr": 1e-6}, training__epochs=2
    )
    Path("exp.yaml").write_text(to_yaml(experiment))
    return experiment
