"""``ziggurat scale`` through the command line; sweeps are tested in tests/training/test_scale.py."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.training.conftest import MakeExperiment
from tests.training.conftest import make_experiment as make_experiment
from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError, DataError, RunFolderError
from ziggurat.training.experiment import to_yaml
from ziggurat.training.scaling.result import ScaleResult


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["scale", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_sweeps_are_trained_drawn_and_compared(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(to_yaml(make_experiment(training__max_steps=3)))
    small = "model={name: %s, head: {bottom: {hidden: [4]}}}"
    lines = run(config, "--sizes", "3", "--seeds", "2", "--set", small % "dnn", "--run", "one").splitlines()
    assert lines[0].startswith("small, dnn: ")
    assert re.fullmatch(r"small, dnn: The largest size is only \d\.\d times the smallest: .*", lines[1])
    assert lines[2] == "one/scale.html"
    page = Path("one/scale.html").read_text(encoding="utf-8")
    assert "head.bottom.hidden [8, 8]" in page

    wide = "model={name: wide_deep, deep: {hidden: [4]}}"
    run(config, "--rungs", "3", "--seeds", "1", "--set", wide, "--run", "two", "--out", "two.html")
    assert Path("two.html").is_file()
    assert not Path("two/scale.html").exists()
    assert [entry.model["name"] for entry in ScaleResult.load("two").sizes] == ["wide_deep"] * 3

    lines = run("--compare", "one", "two", "-o", "both.html").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["small, dnn"] * 2 + ["small, wide_deep"] * 2 + ["both.html"]
    page = Path("both.html").read_text(encoding="utf-8")
    assert "Model sizes of dnn" in page
    assert "Model sizes of wide_deep" in page


@pytest.mark.parametrize("option", ["--sizes-file", "--ladder"])
def test_both_names_of_the_sizes_file_option_are_accepted(
    make_experiment: MakeExperiment, tmp_path: Path, option: str
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(to_yaml(make_experiment()))
    with pytest.raises(ConfigError, match=r"missing\.yaml: no such file"):
        run(config, option, "missing.yaml")


@pytest.mark.parametrize("option", ["--sizes", "--rungs"])
def test_both_names_of_the_sizes_option_are_accepted(
    make_experiment: MakeExperiment, tmp_path: Path, option: str
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(to_yaml(make_experiment()))
    with pytest.raises(ConfigError, match="a power law has three constants"):
        run(config, option, "2")


def test_misuse_is_explained(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(to_yaml(make_experiment()))
    with pytest.raises(ConfigError, match=r"scale takes one config, received one two\n  hint: .* add --compare"):
        run("one", "two")
    with pytest.raises(ConfigError, match="needs three model sizes or more, received 2"):
        run(config, "--sizes", "2")
    with pytest.raises(RunFolderError, match="holds no scaling sweep"):
        run("--compare", tmp_path)
    with pytest.raises(DataError, match="is a folder"):
        run("--compare", "one", "--out", tmp_path)
    with pytest.raises(RunFolderError, match=r"small\.yaml: is a file\n  hint: name the folder of a trained sweep"):
        run("--compare", config)
    with pytest.raises(DataError, match=r"small\.yaml"):
        run(config, "--run", "never", "--out", config / "scale.html")
    assert not Path("never").exists()


def test_a_diverged_size_is_reported_and_a_sweep_is_compared_only_once(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    config, sizes_file = tmp_path / "small.yaml", tmp_path / "sizes.yaml"
    config.write_text(to_yaml(make_experiment(training__max_steps=4, training__log_every=1)))
    sizes = ["model.deep.hidden: [4]", "model.deep.hidden: [8]", "model: {name: dnn, head: {bottom: {hidden: [64]}}}"]
    broken = "model.deep.hidden: [16], optimizer: {name: sgd, lr: 1.0e+30}"
    sizes_file.write_text("".join(f"- {{{size}}}\n" for size in (*sizes[:2], broken, sizes[2])))
    lines = run(config, "--sizes-file", sizes_file, "--seeds", "1", "--run", "one").splitlines()
    assert lines[0].startswith("small, deepfm → dnn: ")
    assert lines[1].startswith(
        "small, deepfm → dnn: Size 3, seed 3, diverged and is left out: the training loss became"
    )
    page = Path("one/scale.html").read_text(encoding="utf-8")
    assert "Size 3, seed 3, diverged and is left out" in page
    with pytest.raises(
        RunFolderError, match="one: is a scaling sweep, not a run\n  hint: name one of its runs, such as one/rung-01"
    ):
        CliRunner().invoke(app, ["evaluate", "one"], catch_exceptions=False)

    shutil.copytree("one", "two")
    lines = run("--compare", "one", "two", "-o", "both.html").splitlines()
    assert lines[0].startswith("small, deepfm → dnn, one: ")
    assert any(line.startswith("small, deepfm → dnn, two: ") for line in lines)
    with pytest.raises(ConfigError, match="one: the same sweep is given 2 times\n  hint: give each folder once"):
        run("--compare", "one", "two/../one", "-o", "both.html")
