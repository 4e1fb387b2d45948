"""Searches over the small log of the training tests; a trial that this process starts is a fork."""

from __future__ import annotations

import os
from multiprocessing import forkserver, get_context

import pytest

from tests.commands import PRELOADED, Command
from tests.training.conftest import make_experiment
from ziggurat.search import trial_process

__all__ = ["make_experiment"]


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
