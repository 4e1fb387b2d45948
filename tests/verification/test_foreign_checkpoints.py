"""An intact checkpoint of another run, put in the place of a run's own, is named and never used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ziggurat
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.cli.main import app
from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training.run_folder.run import open_run

WRITTEN = r"step-\d+/manifest.json: was written by another run \(id .*\); this is run "


@pytest.fixture
def mixed(two_runs: tuple[Path, Path], tmp_path: Path) -> Path:
    """Returns a run that holds the checkpoints of another one."""
    shutil.copytree(two_runs[0], tmp_path / "one")
    shutil.rmtree(tmp_path / "one/run/checkpoints")
    shutil.copytree(two_runs[1] / "run/checkpoints", tmp_path / "one/run/checkpoints")
    (tmp_path / "one/run/checkpoints/best.json").unlink(missing_ok=True)
    return tmp_path / "one/run"


def test_it_is_not_used(mixed: Path) -> None:
    rows = {"user": ["u1"], "item": [1]}
    for use in (
        lambda: ziggurat.predict(mixed, rows),
        lambda: ziggurat.evaluate(mixed),
        lambda: ziggurat.Predictor(mixed, "last"),
        lambda: open_run(mixed).checkpoints.load("last"),
        lambda: ziggurat.report_run(mixed, baselines=False),
    ):
        with pytest.raises(RunFolderError, match=WRITTEN):
            use()


@pytest.mark.parametrize("command", [["verify"], ["checkpoint", "verify"]])
@pytest.mark.parametrize("place", ["", "checkpoints"])
def test_it_is_no_whole_checkpoint_of_this_run(mixed: Path, command: list[str], place: str) -> None:
    found = CliRunner().invoke(app, [*command, str(mixed / place)])
    assert found.exit_code == 1
    assert "was written by another run" in " ".join((found.stdout + found.stderr).split())


def test_another_runs_best_is_not_this_runs(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(two_runs[0] / "run", tmp_path / "run")
    mine, theirs = (open_run(each / "run").checkpoints for each in two_runs)
    CheckpointFolder(tmp_path / "run/checkpoints", run_id=theirs.run_id).mark_best(mine.steps()[-1], "auc", 0.9)
    with pytest.raises(RunFolderError, match=r"best\.json: belongs to another run"):
        open_run(tmp_path / "run").checkpoints.best()


def test_a_copied_and_moved_run_keeps_its_own(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(two_runs[0] / "run", tmp_path / "copy")
    assert open_run(tmp_path / "copy").checkpoints.find("last") > 0


def test_a_finished_run_without_checkpoints_is_damaged(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(two_runs[0], tmp_path / "one")
    shutil.rmtree(tmp_path / "one/run/checkpoints")
    found = CliRunner().invoke(app, ["verify", str(tmp_path / "one/run")])
    assert found.exit_code == 1
    assert "training has ended, and there is no checkpoint" in " ".join((found.stdout + found.stderr).split())


def test_a_split_that_is_a_link_is_refused(two_runs: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(two_runs[0] / "prepared", tmp_path / "prepared")
    (tmp_path / "prepared/train").rename(tmp_path / "elsewhere")
    (tmp_path / "prepared/train").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"train: is a symbolic link, which is not followed"):
        Dataset(tmp_path / "prepared").split("train")
