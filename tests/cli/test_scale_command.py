"""``ziggurat scale`` as a user types it; ladders themselves are tested in tests/training/test_scale.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.training.conftest import MakeExperiment
from tests.training.conftest import make_experiment as make_experiment
from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError, DataError, RunFolderError
from ziggurat.training.experiment import to_yaml
from ziggurat.training.scale_result import ScaleResult


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["scale", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_ladders_are_trained_drawn_and_compared(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(to_yaml(make_experiment(training__max_steps=3)))
    small = "model={name: %s, head: {bottom: {hidden: [4]}}}"
    said = run(config, "--rungs", "3", "--seeds", "2", "--set", small % "dnn", "--run", "one").splitlines()
    assert said[0].startswith("small, dnn: ")
    assert said[1] == "one/scale.html"
    page = Path("one/scale.html").read_text(encoding="utf-8")
    assert "head.bottom.hidden [8, 8]" in page

    wide = "model={name: wide_deep, deep: {hidden: [4]}}"
    run(config, "--rungs", "3", "--seeds", "1", "--set", wide, "--run", "two", "--out", "two.html")
    assert Path("two.html").is_file()
    assert not Path("two/scale.html").exists()
    assert [rung.model["name"] for rung in ScaleResult.load("two").rungs] == ["wide_deep"] * 3

    said = run("--compare", "one", "two", "-o", "both.html").splitlines()
    assert [line.partition(":")[0] for line in said] == ["small, dnn", "small, wide_deep", "both.html"]
    page = Path("both.html").read_text(encoding="utf-8")
    assert "Rungs of dnn" in page
    assert "Rungs of wide_deep" in page


def test_misuse_is_explained(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(to_yaml(make_experiment()))
    with pytest.raises(ConfigError, match=r"scale takes one config, received one two\n  mend: .* add --compare"):
        run("one", "two")
    with pytest.raises(ConfigError, match="a power law has three constants, and the ladder has 2 rungs"):
        run(config, "--rungs", "2")
    with pytest.raises(RunFolderError, match="no ladder"):
        run("--compare", tmp_path)
    with pytest.raises(DataError, match="is a folder"):
        run("--compare", "one", "--out", tmp_path)
