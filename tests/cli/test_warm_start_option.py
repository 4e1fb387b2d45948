"""``ziggurat train --warm-start``: the short form of one key, refused together with other settings of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.training.conftest import config_values, write_log
from ziggurat.cli.main import main


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates the working directory, with a log and ``exp.yaml``."""
    write_log(tmp_path / "log.csv")
    values = config_values(tmp_path)
    values["training"].update(device="cpu", max_steps=4)
    with (tmp_path / "exp.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(values, file)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Runs the command line in this process and returns the exit status."""
    monkeypatch.setattr(sys, "argv", ["ziggurat", "train", "exp.yaml", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


def test_a_run_starts_from_the_given_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(monkeypatch, "--run", "old") == 0
    assert train(monkeypatch, "--run", "new", "--warm-start", "old", "--stop-after", "2") == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert "warm start from old, step 4: table user: 42 of 42 rows" in shown
    assert json.loads(Path("new/warm_start.json").read_text(encoding="utf-8"))["step"] == 4
    assert train(monkeypatch, "--run", "new", "--warm-start", "old") == 0
    assert "warm start" not in capsys.readouterr().err


def test_the_option_and_a_warm_start_in_the_config_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = YAML(typ="safe").load(Path("exp.yaml").read_text(encoding="utf-8"))
    values["training"]["warm_start"] = {"run": "other"}
    with Path("exp.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(values, file)
    assert train(monkeypatch, "--warm-start", "old") == 1
    assert "--warm-start old: the config's training.warm_start names other" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_a_missing_run_creates_no_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(monkeypatch, "--warm-start", "nowhere") == 1
    assert "training.warm_start.run: nowhere: no run folder" in capsys.readouterr().err
    assert not Path("runs/small/config.yaml").exists()
    assert not Path("prepared").exists()
