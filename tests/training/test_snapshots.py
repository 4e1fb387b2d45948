"""Snapshots of a cyclic schedule: they are kept, resume bit for bit, and make an ensemble."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import ziggurat
from tests.commands import Command
from tests.training.conftest import MakeExperiment
from ziggurat.checkpoint.snapshots import snapshots
from ziggurat.core.errors import RunFolderError
from ziggurat.training import api
from ziggurat.training.experiment import to_yaml
from ziggurat.training.run_folder.metrics_log import read_metrics_log

CYCLES: dict[str, Any] = {"name": "cyclic_cosine", "cycles": 4}
STEPS = 70
ENDS = [17, 35, 52, 70]


def kept(folder: Path) -> list[int]:
    found = api.load_run(folder).checkpoints
    return snapshots(found.steps(), found.manifest)


def weights(folder: Path, step: int) -> dict[str, torch.Tensor]:
    with api.Predictor(folder, str(step)) as predictor:
        assert isinstance(predictor.run, ziggurat.Run)
        return {each.name: each.tensor.clone() for each in predictor.recommender.tensor_slices()}


def frame() -> pl.DataFrame:
    return pl.read_csv("log.csv", schema_overrides={"tags": pl.String, "history": pl.String})


def test_snapshots_stay_whatever_is_deleted(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(
        training__schedule=CYCLES, training__max_steps=STEPS, training__epochs=9, training__keep=1,
        training__save_every=5, checkpoints={"policy": "consecutive"},
    )  # fmt: skip
    outcome = api.train(experiment, "run")
    assert outcome.step == STEPS
    assert kept(Path("run")) == ENDS
    evaluated = [each["step"] for each in read_metrics_log(Path("run/metrics.jsonl")) if each["split"] == "validation"]
    assert set(ENDS) <= set(evaluated)
    folder = outcome.run.checkpoints
    pruned = ziggurat.prune_checkpoints("run", 1)
    assert set(ENDS) <= set(pruned.kept)
    needed = {need.step for step in ENDS for need in _needs(folder, step)}
    best = folder.resolve("best")
    assert set(folder.steps()) == {*ENDS, *needed, best, *(need.step for need in _needs(folder, best))}
    assert ziggurat.verify("run").whole
    for step in ENDS:
        assert ziggurat.evaluate("run", "validation", str(step)).compute()["auc"] > 0.5


def _needs(folder: ziggurat.CheckpointFolder, step: int) -> list[Any]:
    manifest = folder.manifest(step)
    return [] if manifest is None else list(manifest.needs)


@pytest.mark.parametrize("average", [None, 0.9])
def test_a_stopped_run_has_the_snapshots_of_an_uninterrupted_one(
    make_experiment: MakeExperiment, average: float | None
) -> None:
    experiment = make_experiment(
        training__schedule=CYCLES, training__max_steps=STEPS, training__epochs=9, training__accumulate=2,
        training__weight_average=average, training__save_every=2,
    )  # fmt: skip
    api.train(experiment, "straight")
    for stop in (10, 17, 36, 53, None):  # within a cycle, at the end of one, and just after
        api.train(experiment, "stopped", stop_after=stop)
    assert kept(Path("straight")) == kept(Path("stopped")) == ENDS
    for step in ENDS:
        straight, stopped = weights(Path("straight"), step), weights(Path("stopped"), step)
        assert straight.keys() == stopped.keys()
        for name, tensor in straight.items():
            assert torch.equal(tensor, stopped[name]), (step, name)


def test_ctrl_c_loses_no_snapshot(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(training__schedule=CYCLES, training__max_steps=400, training__epochs=99)
    Path("exp.yaml").write_text(to_yaml(experiment))
    api.train(experiment, "straight")
    command = Command("train", "exp.yaml", "--run", "stopped")
    while command.poll() is None and not Path("stopped/checkpoints/step-00000100/manifest.json").exists():
        time.sleep(0.01)
    command.send_signal(signal.SIGINT)
    command.communicate()
    api.train(experiment, "stopped")
    assert kept(Path("stopped")) == [100, 200, 300, 400]
    for name, tensor in weights(Path("straight"), 100).items():
        assert torch.equal(tensor, weights(Path("stopped"), 100)[name])


def test_an_ensemble_of_snapshots_predicts_their_mean(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(
        training__schedule=CYCLES, training__max_steps=STEPS, training__epochs=9, training__weight_average=0.8
    )
    api.train(experiment, "run")
    built = api.build_ensemble("run", "together", equal_weights=True)
    assert [each.step for each in built.ensemble.members] == ENDS
    logits: list[Any] = []
    for step in ENDS:  # with averaged weights, as evaluation and prediction use them
        with api.Predictor("run", str(step)) as predictor:
            probabilities = predictor.predict(frame()).astype(np.float64)
            logits.append(np.log(probabilities) - np.log1p(-probabilities))
    expected = 1 / (1 + np.exp(-np.mean(logits, axis=0)))
    np.testing.assert_allclose(ziggurat.predict("together", frame()), expected, atol=1e-5)
    chosen = api.build_ensemble("run", "chosen").chosen["click"]
    assert chosen.loss <= min(chosen.losses_M)
    for step, loss in zip(ENDS, chosen.losses_M, strict=True):
        assert api.evaluate("run", "validation", str(step)).compute()["log_loss"] == pytest.approx(loss, abs=1e-6)


def test_early_stopping_counts_the_ends_of_cycles(make_experiment: MakeExperiment) -> None:
    """A training that overfits soon and is evaluated often stops at the second end of a cycle after its best step."""
    experiment = make_experiment(
        training__schedule={"name": "cyclic_cosine", "cycles": 10}, training__max_steps=600, training__epochs=99,
        training__evaluate_every=5, training__early_stopping={"patience": 2}, optimizer={"lr": 0.01},
    )  # fmt: skip
    outcome = api.train(experiment, "run")
    after = [end for end in range(60, 601, 60) if end > outcome.run.checkpoints.resolve("best")]
    assert len(after) > 2, "the settings no longer overfit"
    assert outcome.step == after[1]
    assert kept(Path("run")) == list(range(60, after[1] + 1, 60))
    built = api.build_ensemble("run", "together", equal_weights=True)
    assert len(built.ensemble.members) == len(kept(Path("run")))


def test_a_lost_snapshot_is_named(make_experiment: MakeExperiment) -> None:
    api.train(make_experiment(training__schedule=CYCLES, training__max_steps=STEPS, training__epochs=9), "run")
    api.build_ensemble("run", "together", equal_weights=True)
    for file in Path("run/checkpoints/step-00000035").iterdir():
        file.unlink()
    with pytest.raises(RunFolderError, match=r"member 2 \(run, step 35\).*no checkpoint of step 35"):
        ziggurat.predict("together", frame())
    built = api.build_ensemble("run", "together", equal_weights=True)
    assert [each.step for each in built.candidates] == [17, 52, 70]
