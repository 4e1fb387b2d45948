"""A run trained on a GPU is evaluated, scored, stopped and resumed like any; its checkpoints fit any device."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cuda.conftest import WANTED, Make, without_gpu
from tests.training.test_offloaded_run import large, write_large_log
from tests.training.test_train import assert_same_bits, tensors
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.follow.follower import Follower
from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.training import api
from ziggurat.training.experiment import to_yaml
from ziggurat.training.open_recommender import open_recommender
from ziggurat.training.process_group import process_group
from ziggurat.training.run_folder.metrics_log import read_metrics_log

ROWS = {"user": ["u1", "u2", "nobody"], "item": [3, 4, 5], "age": [30.0, None, 50.0], "tags": [[1, 2], [], [7]],
        "history": [[1, 2], [], [7]]}  # fmt: skip
CLOSE = 2e-6
"""Of probabilities: the same float32 arithmetic in another order."""


def weights_on(run: str, device: torch.device, step: int) -> dict[str, torch.Tensor]:
    """Returns the weights of a checkpoint as they are restored on a device."""
    opened = api.load_run(run)
    layout = opened.experiment.layout(opened.transform().schema)
    with process_group(device), open_recommender(opened, layout, device, prepared=None, checkpoint=step) as found:
        slices = found.recommender.tensor_slices()
        assert all(each.tensor.device.type == device.type for each in slices)
        return {each.name.replace("/", ":", 1): each.tensor.detach().cpu().clone() for each in slices}


def test_a_checkpoint_is_restored_bit_for_bit_on_either_device(make: Make, device: torch.device) -> None:
    cpu = torch.device("cpu")
    api.train(make(training__max_steps=6, training__device="auto"), "device")
    with without_gpu():
        api.train(make(training__max_steps=6, training__device="auto"), "cpu")
    for run, other in (("device", cpu), ("device", device), ("cpu", device), ("cpu", cpu)):
        saved = tensors(Path(run), 6)
        restored = weights_on(run, other, 6)
        assert restored
        assert_same_bits(restored, {name: saved[name] for name in restored})


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "adagrad", "adam"])
def test_a_run_goes_on_on_the_other_device(make: Make, optimizer: str) -> None:
    """Every state is taken over: training goes on as if it had stayed on its device, up to rounding."""
    changes = {"training__device": "auto", "training__max_steps": 10, "embeddings__optimizer__name": optimizer}
    changes |= {"embeddings__optimizer__lr": 0.05, "optimizer": {"name": "sgd", "lr": 0.05}}
    api.train(make(**changes), "straight")
    api.train(make(**changes), "there", stop_after=5)
    with without_gpu():
        api.train(make(**changes), "there")
        api.train(make(**changes), "back", stop_after=5)
    api.train(make(**changes), "back")
    expected = [each["loss"] for each in read_metrics_log(Path("straight/metrics.jsonl")) if each["split"] == "train"]
    for run in ("there", "back"):
        found = [each["loss"] for each in read_metrics_log(Path(run) / "metrics.jsonl") if each["split"] == "train"]
        assert found == pytest.approx(expected, rel=2e-3 if optimizer == "adam" else 2e-4)
        saved, other = tensors(Path("straight"), 10), tensors(Path(run), 10)
        assert saved.keys() == other.keys()
        for name in saved:
            if name.startswith("tables:"):
                torch.testing.assert_close(saved[name], other[name], rtol=1e-2, atol=5e-3)


@pytest.mark.parametrize("policy", ["full", "one_shot", "consecutive", "intermittent"])
@pytest.mark.parametrize("bits", [32, 8, 4, 2])
def test_deltas_hold_the_rows_of_their_moment(make: Make, policy: str, bits: int) -> None:
    """Training goes on while they are written; exact ones equal those of a run that stopped there."""
    changes = {
        "training__max_steps": 20,
        "training__save_every": 4,
        "training__keep": 9,
        "training__evaluate_every": 20,
    }
    api.train(make(**changes, checkpoints__policy=policy, checkpoints__bits=bits), "run")
    exact = make(**changes, checkpoints__policy="full")
    for step in (4, 8, 12, 16, 20):
        api.train(exact, "exact", stop_after=step)
    folder = CheckpointFolder(Path("run/checkpoints"))
    assert folder.steps()[-1] == 20
    for step in folder.steps():
        found, expected = tensors(Path("run"), step), tensors(Path("exact"), step)
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            if not name.startswith("tables:") or bits == 32 or step == 20:
                assert torch.equal(tensor, expected[name]), (step, name)
            else:
                span = expected[name].amax(1) - expected[name].amin(1)
                off = (tensor - expected[name]).abs().amax(1)
                assert (off <= span / (2**bits - 1) * (1.01 if bits > 4 else 2**bits / 2)).all(), (step, name)


def test_a_follower_holds_tables_on_the_device(make: Make, device: torch.device) -> None:
    """It reads all rows once, then those that changed, which are few of a large table."""
    changes = {"training__max_steps": 12, "training__save_every": 3, "training__keep": 9}
    changes |= {"training__evaluate_every": 12, "checkpoints__policy": "consecutive"}
    api.train(make(**changes, features__user__encoder={"name": "hash", "rows": 20_000}), "run")
    tables = {
        name.removeprefix("tables:"): torch.full(tensor.shape, torch.nan, device=device)
        for name, tensor in tensors(Path("run"), 3).items()
        if name.startswith("tables:")
    }
    follower = Follower("seen", tables)
    for step in (3, 6, 9):
        shutil.copytree(f"run/checkpoints/step-{step:08}", f"seen/step-{step:08}")
        update = follower.advance()
        assert update is not None
        assert (update.to_step, update.full) == (step, step == 3)
        assert (len(update.rows["user"]) == 20_000) == (step == 3)
        follower.verify()
        saved = tensors(Path("run"), step)
        for name, table in tables.items():
            assert table.device == device
            assert torch.equal(table.cpu(), saved[f"tables:{name}"])
    tables["user"][7] += 1
    with pytest.raises(RunFolderError, match=r"table 'user': 1 of 20,000 rows, row 7 first, differ"):
        follower.verify()


def test_predictions_and_evaluations_equal_those_on_the_cpu(make: Make) -> None:
    api.train(make(training__max_steps=30, training__device="auto"), "run")
    here, figures = api.predict("run", ROWS), api.evaluate("run").compute()
    scored = api.predict_files("run", ["log.csv"], Path("here.csv"))
    with without_gpu():
        there, expected = api.predict("run", ROWS), api.evaluate("run").compute()
        api.predict_files("run", ["log.csv"], Path("there.csv"))
    assert scored.rows == 3000
    np.testing.assert_allclose(here, there, atol=CLOSE)
    assert figures.keys() == expected.keys()
    for name, value in figures.items():
        # A bin's border, or the order of two rows whose scores are equal up to rounding, moves a row.
        assert value == pytest.approx(expected[name], rel=2e-3, abs=2e-3, nan_ok=True), name
    assert len(Path("here.csv").read_text()) == pytest.approx(len(Path("there.csv").read_text()), rel=0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_resumes_to_the_same_weights(make: Make, number: signal.Signals) -> None:
    experiment = make(training__epochs=60, training__save_every=7, training__evaluate_every=100)
    Path("exp.yaml").write_text(to_yaml(experiment))
    command = [sys.executable, "-m", "ziggurat", "train", "exp.yaml", "--run", "stopped"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not any(each["step"] >= 20 for each in read_metrics_log(Path("stopped/metrics.jsonl"))):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), errors
    outcome = api.train(experiment, "stopped")
    assert api.train(experiment, "straight").step == outcome.step
    assert_same_bits(tensors(Path("straight"), outcome.step), tensors(Path("stopped"), outcome.step))


def test_a_warm_start_takes_rows_and_states(make: Make) -> None:
    api.train(make(training__max_steps=8), "old")
    start: dict[str, Any] = {"run": "old", "optimizer": True}
    api.train(make(training__max_steps=8, training__warm_start=start), "new", stop_after=1)
    old, new = tensors(Path("old"), 8), tensors(Path("new"), 1)
    same = (old["tables:user"] == new["tables:user"]).all(1).float().mean()
    assert 0 < same < 1


@pytest.mark.skipif(WANTED != "cuda", reason="works on the CPU")
def test_tables_larger_than_memory_are_refused(make: Make, tmp_path: Path) -> None:
    del make
    write_large_log(tmp_path / "log.csv")
    with pytest.raises(ConfigError, match="trained on the CPU only so far"):
        api.train(large(tmp_path, "70kB", training__device="cuda"), "run")
