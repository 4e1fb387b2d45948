"""``ziggurat search pipelines`` as a command: its options reach the search, and a signal leaves no config behind."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from tests.commands import Command, ziggurat
from tests.training.conftest import MakeExperiment, make_experiment
from ziggurat.search.pipelines.experiment_search import BEST_FILE, FOUND_FILE, PAGE_FILE
from ziggurat.search.pipelines.search import SETTINGS_FILE
from ziggurat.training.experiment import load_experiment, to_yaml

__all__ = ["make_experiment"]

FOLDER = Path("searches/small-pipelines")


def test_options_reach_the_search(make_experiment: MakeExperiment) -> None:
    features = [
        {"name": "user", "kind": "categorical"},
        {"name": "age", "kind": "numeric"},
        {"name": "tags", "kind": "bag", "type": "integer"},
    ]
    Path("exp.yaml").write_text(to_yaml(make_experiment(features=features)))
    options = ["--method", "kmeans", "--metric", "log_loss", "--budget", "4", "--rows", "500", "--folds", "3"]
    options += ["--clusters", "2", "--seed", "5"]
    status, printed, said = ziggurat("search", "pipelines", "exp.yaml", *options)
    assert (status, "Traceback" in said) == (0, False), said
    settings = json.loads((FOLDER / SETTINGS_FILE).read_text())
    assert settings["policy"]["clusters"] == 2
    assert settings["task"] == {**settings["task"], "metric": "log_loss", "folds": 3}
    assert (settings["method"], settings["seed"]) == ("kmeans", 5)
    found = json.loads((FOLDER / FOUND_FILE).read_text())
    assert (found["evaluations"], found["finished"]) == (4, True)
    assert set(found["clusters"].values()) <= {0, 1}
    assert "left as they are: tags" in printed
    assert printed.split()[-2:] == [str(FOLDER / PAGE_FILE), str(FOLDER / BEST_FILE)]
    assert load_experiment(FOLDER / BEST_FILE).name == "small-best"
    status, _, said = ziggurat("search", "pipelines", "exp.yaml", *options, "--metric", "auc")
    assert status == 1
    assert "holds a search with another task" in said


def test_a_search_that_is_interrupted_writes_no_config(make_experiment: MakeExperiment) -> None:
    features = [{"name": "user", "kind": "categorical"}, {"name": "age", "kind": "numeric"}]
    Path("exp.yaml").write_text(to_yaml(make_experiment(features=features)))
    options = ["search", "pipelines", "exp.yaml", "--method", "per_feature", "--budget", "100000", "--folds", "2"]
    command = Command(*options)
    records = FOLDER / "evaluations.jsonl"
    while not (records.exists() and len(records.read_text().splitlines()) >= 3):
        assert command.poll() is None, command.said()
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    printed, said = command.communicate()
    assert command.returncode == 128 + signal.SIGINT
    assert "stopped by SIGINT; what was evaluated is saved. Run the same command to resume." in said
    assert not (FOLDER / BEST_FILE).exists()
    assert BEST_FILE not in printed
    found = json.loads((FOLDER / FOUND_FILE).read_text())
    assert {each["scaler"] for each in found["pipelines"].values() if each["kind"] == "numeric"} == {"standard"}
    status, printed, _ = ziggurat(*options[:-3], "2", "--folds", "2")
    assert (status, (FOLDER / BEST_FILE).exists()) == (0, True)
