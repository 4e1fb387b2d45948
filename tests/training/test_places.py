"""A run, its data and its checkpoints are used through texts alone, as a notebook does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import ziggurat
from tests.training.conftest import config_values, write_log
from ziggurat.core.config import parse_config
from ziggurat.training.experiment import Experiment, to_yaml


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The working directory, with a config and a trained run."""
    folder = tmp_path_factory.mktemp("places")
    write_log(folder / "log.csv", 600)
    values = config_values(folder)
    values["training"] |= {"max_steps": 4, "save_every": 2, "keep": 3}
    (folder / "exp.yaml").write_text(to_yaml(parse_config(Experiment, values)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        outcome = ziggurat.train("exp.yaml", "runs/x", prepared="data")
        assert outcome.run.folder == Path("runs/x")
        yield folder


def test_experiments_are_named_by_their_file(folder: Path) -> None:
    dataset = ziggurat.prepare("exp.yaml", "data")
    assert ziggurat.Dataset("data").fingerprint == dataset.fingerprint
    assert isinstance(dataset.folder, Path)
    planned = ziggurat.plan("exp.yaml", prepared="data", devices=2)
    assert {table.name for table in planned.tables} == {"user", "item", "tags"}
    compared = ziggurat.compare_planners("exp.yaml", prepared="data", devices=2)
    assert compared.to_json()
    for refused, call in (
        ("planning.planner", lambda: ziggurat.train_planner("exp.yaml")),
        ("no such config file", lambda: ziggurat.train("exq.yaml")),
        ("no larger sizes|three", lambda: ziggurat.scale("exp.yaml", "sweep", sizes=2)),
    ):
        with pytest.raises(ziggurat.ConfigError, match=refused):
            call()


def test_runs_are_used_by_their_folder(folder: Path) -> None:
    figures = ziggurat.evaluate("runs/x", prepared="data").compute()
    assert figures == ziggurat.evaluate(ziggurat.load_run(Path("runs/x")), prepared=Path("data")).compute()
    assert ziggurat.predict_files("runs/x", "log.csv", "scored.csv").rows == 600
    Path("copy.csv").write_bytes(Path("log.csv").read_bytes())
    several = ziggurat.predict_files("runs/x", ["log.csv", Path("copy.csv")], Path("twice.csv"))
    assert several.rows == 1200
    once, twice = pl.read_csv("scored.csv"), pl.read_csv("twice.csv")
    assert pl.concat([once, once]).equals(twice)
    assert ziggurat.report_run("runs/x", "report.html", baselines=False) == Path("report.html")
    assert "<html" in Path("report.html").read_text(encoding="utf-8")


def test_checkpoints_are_named_by_their_run_or_their_folder(folder: Path) -> None:
    runs = ziggurat.open_checkpoints("runs/x")
    assert ziggurat.open_checkpoints(runs) is runs
    for place in ("runs/x", Path("runs/x"), "runs/x/checkpoints", runs):
        assert [entry.step for entry in ziggurat.list_checkpoints(place).entries] == [2, 4]
        assert ziggurat.inspect_checkpoint(place, "last").entry.step == 4
        assert ziggurat.verify_checkpoints(place, "last").whole
        assert ziggurat.verify_checkpoints(place, 2).verdicts[0].step == 2
        assert len(ziggurat.verify_checkpoints(place, ["last", 2]).verdicts) == 2
        assert ziggurat.gather_checkpoint(place, "last", "all.safetensors").step == 4
    opened = ziggurat.CheckpointFolder("runs/x/checkpoints")
    assert opened.steps() == ziggurat.CheckpointFolder(Path("runs/x/checkpoints")).steps() == [2, 4]
    assert opened.where == "runs/x/checkpoints"
    follower = ziggurat.Follower("runs/x/checkpoints")
    update = follower.advance()
    assert update is not None
    assert update.to_step == 4
    assert ziggurat.Follower(f"file://{Path('runs/x/checkpoints').resolve()}").latest() == 4
    assert (
        ziggurat.prune_checkpoints("runs/x", 1, dry_run=True).kept
        == ziggurat.prune_checkpoints(Path("runs/x"), 1, dry_run=True).kept
    )
    with pytest.raises(ziggurat.RunFolderError, match="s3://bucket/x: is a store"):
        ziggurat.prune_checkpoints("s3://bucket/x", 1)
