"""Runs whose checkpoints are stored on an S3 server or in another folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.training.conftest import config_values, write_log
from ziggurat.checkpoint.store.object_store import open_store
from ziggurat.core.config import parse_config
from ziggurat.core.errors import RunFolderError
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.run import Run, open_run


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Experiment]:
    """Makes experiments of six steps whose checkpoints are in the store given."""
    write_log(tmp_path / "log.csv", rows=600)
    monkeypatch.chdir(tmp_path)

    def make(store: str | None, name: str = "small") -> Experiment:
        values = config_values(tmp_path) | {"checkpoints": {"store": store}}
        values["training"] |= {"max_steps": 6, "save_every": 2}
        return parse_config(Experiment, values | {"name": name})

    return make


def tensors(run: Run) -> dict[str, Tensor]:
    groups = run.checkpoints.load("last").groups
    return {f"{group}/{name}": tensor for group, found in groups.items() for name, tensor in found.items()}


def test_a_run_resumes_from_the_store_bit_for_bit(s3: str, experiment: Callable[..., Experiment]) -> None:
    whole = api.train(experiment(None), "whole")
    first = api.train(experiment(s3), "halves", stop_after=3)
    assert (first.step, first.results) == (3, None)
    assert not Path("halves/checkpoints").exists()
    assert open_run("halves").checkpoints.where == s3
    Path("halves").rename("moved")
    second = api.train(experiment(s3), "moved")
    assert second.results is not None
    assert whole.results is not None
    assert second.results["figures"] == whole.results["figures"]
    left, right = tensors(whole.run), tensors(open_run("moved"))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    figures = api.evaluate("moved", "test").compute()
    assert figures["log_loss"] == pytest.approx(whole.results["figures"]["test"]["log_loss"], abs=1e-12)


def test_two_runs_cannot_share_a_store(tmp_path: Path, experiment: Callable[..., Experiment]) -> None:
    place = (tmp_path / "elsewhere").as_uri()
    api.train(experiment(place), "one", stop_after=2)
    steps = open_run("one").checkpoints.steps()
    with pytest.raises(RunFolderError, match="elsewhere: holds the checkpoints of another run, one "):
        api.train(experiment(place), "two", stop_after=2)
    assert open_run("one").checkpoints.steps() == steps
    assert open_store(place).folders()


def test_a_run_cannot_change_its_store(tmp_path: Path, experiment: Callable[..., Experiment]) -> None:
    api.train(experiment(None), "one", stop_after=2)
    with pytest.raises(RunFolderError, match=r"checkpoints\.store: the run has None, you ask for '/"):
        api.train(experiment(str(tmp_path / "elsewhere")), "one")
