"""Training learns, is reproducible bit for bit, and resumes exactly where it was stopped, also by a signal."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.commands import Command
from tests.training.conftest import MakeExperiment, RecordedNotes
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.core.errors import ConfigError, RunFolderError, ZigguratError
from ziggurat.core.files import locked_folder
from ziggurat.core.sealed import sealed
from ziggurat.training import api
from ziggurat.training.experiment import to_yaml
from ziggurat.training.run_folder.metrics_log import read_metrics_log

MODELS: list[dict[str, Any]] = [
    {"name": "logistic_regression"},
    {"name": "deepfm", "deep": {"hidden": [32, 16], "dropout": 0.1}},
    {"name": "dlrm", "bottom": {"hidden": [16]}, "top": {"hidden": [32]}},
    {"name": "dcn_v2", "cross_layers": 2, "deep": {"hidden": [32], "norm": "batch"}},
]


def tensors(folder: Path, step: int) -> dict[str, Tensor]:
    groups = CheckpointFolder(folder / "checkpoints").load(step).groups
    return {f"{group}:{name}": tensor for group, values in groups.items() for name, tensor in values.items()}


def assert_same_bits(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        assert torch.equal(tensor, right[name]), name


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model["name"])
def test_every_model_learns_and_resumes_bit_for_bit(make_experiment: MakeExperiment, model: dict[str, Any]) -> None:
    # With the default learning rate and four epochs, a tenth of DLRM's seeds end below the bound; with these, none of
    # 150 did. Logistic regression needs more steps to overcome its initial weights of two numeric features.
    linear = model["name"] == "logistic_regression"
    experiment = make_experiment(
        model=model,
        optimizer={"name": "adam", "lr": 0.03 if linear else 0.003},
        training__epochs=8,
        training__schedule={"name": "warmup_cosine", "warmup_steps": 5},
    )
    straight = api.train(experiment, "straight")
    assert straight.results is not None
    assert straight.results["figures"]["test"]["auc"] > (0.58 if linear else 0.62)
    first = api.train(experiment, "halves", stop_after=straight.step // 2)
    assert (first.results, first.step) == (None, straight.step // 2)
    second = api.train(experiment, "halves")
    assert second.results is not None
    assert second.results["figures"] == straight.results["figures"]
    assert_same_bits(tensors(Path("straight"), straight.step), tensors(Path("halves"), straight.step))


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam"])
def test_row_optimizers_resume_bit_for_bit(make_experiment: MakeExperiment, optimizer: str) -> None:
    lr = {"sgd": 0.5, "adagrad": 0.1, "adam": 0.01}[optimizer]
    experiment = make_experiment(
        embeddings__optimizer={"name": optimizer, "lr": lr},
        embeddings__l2=0.001,
        training__max_steps=12,
        training__clip_norm=1.0,
    )
    api.train(experiment, "straight")
    for stop in (3, 7, None):
        api.train(experiment, "parts", stop_after=stop)
    assert_same_bits(tensors(Path("straight"), 12), tensors(Path("parts"), 12))


def test_the_seed_determines_the_weights(make_experiment: MakeExperiment) -> None:
    for folder, seed in (("a", 1), ("b", 1), ("c", 2)):
        api.train(make_experiment(training__seed=seed, training__max_steps=6), folder)
    assert_same_bits(tensors(Path("a"), 6), tensors(Path("b"), 6))
    assert not torch.equal(tensors(Path("a"), 6)["tables:user"], tensors(Path("c"), 6)["tables:user"])


def test_a_finished_run_is_not_changed(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(training__max_steps=6)
    first = api.train(experiment, "run")
    before = {path: path.stat().st_mtime_ns for path in Path("run/checkpoints").glob("step-*/*")}
    again = api.train(experiment, "run")
    assert again.results == first.results
    assert before == {path: path.stat().st_mtime_ns for path in Path("run/checkpoints").glob("step-*/*")}


def test_a_run_can_be_made_longer(make_experiment: MakeExperiment) -> None:
    api.train(make_experiment(training__max_steps=6), "run")
    outcome = api.train(make_experiment(training__max_steps=10), "run")
    assert outcome.step == 10
    api.train(make_experiment(training__max_steps=10), "straight")
    assert_same_bits(tensors(Path("run"), 10), tensors(Path("straight"), 10))


def test_a_run_that_failed_before_its_first_step_is_started_again(make_experiment: MakeExperiment) -> None:
    api.train(make_experiment(training__max_steps=2), "old")
    progress = RecordedNotes()
    with pytest.raises(ZigguratError, match="dim"):
        api.train(make_experiment(training__warm_start={"run": "old"}, embeddings__dim=4), "new")
    good = make_experiment(training__warm_start={"run": "old"}, training__max_steps=2, training__seed=9)
    assert api.train(good, "new", progress=progress).step == 2
    assert sum("starting again" in note for note in progress.notes) == 1
    with pytest.raises(RunFolderError, match="belongs to another config"):
        api.train(make_experiment(training__max_steps=2, training__seed=8), "new")


def test_rows_of_the_best_checkpoint_in_fewer_bits_are_noted(make_experiment: MakeExperiment) -> None:
    message = "the checkpoint of step 4 has its rows in 4 bits a number"
    for bits, average, times in ((4, None, 1), (32, None, 0), (4, 0.9, 0)):
        averaged: dict[str, Any] = {} if average is None else {"training__weight_average": average}
        steps = {"training__max_steps": 6, "training__evaluate_every": 4}
        experiment = make_experiment(checkpoints__bits=bits, **steps, **averaged)
        run, progress = f"run-{bits}-{average}", RecordedNotes()
        api.train(experiment, run, progress=progress)
        CheckpointFolder(Path(run) / "checkpoints").mark_best(4, "auc", 1.0)
        api.evaluate(run, progress=progress)
        assert sum(note.startswith(message) for note in progress.notes[-1:]) == times
        with api.Predictor(run) as predictor:
            assert (predictor.note or "").startswith(message) == bool(times)


def test_early_stopping_keeps_the_best(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(
        training__epochs=60,
        training__monitor="log_loss",
        training__early_stopping={"patience": 2},
        embeddings__optimizer__lr=0.5,
    )
    outcome = api.train(experiment, "run")
    assert outcome.results is not None
    validated = [r for r in read_metrics_log(Path("run/metrics.jsonl")) if r["split"] == "validation"]
    best = min(validated, key=lambda record: record["log_loss"])
    assert len(validated) < 60
    assert outcome.results["best_step"] == best["step"] == validated[-3]["step"]
    assert outcome.results["figures"]["validation"]["log_loss"] == best["log_loss"]
    assert api.train(experiment, "run").step == outcome.step


def test_the_metrics_log_holds_each_step_once_after_stops(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(training__evaluate_every=4, training__log_every=2)
    for stop in (7, 15, None):
        outcome = api.train(experiment, "run", stop_after=stop)
    seen = [(record["split"], record["step"]) for record in read_metrics_log(Path("run/metrics.jsonl"))]
    assert len(seen) == len(set(seen))
    assert {step for split, step in seen if split == "validation"} >= set(range(4, outcome.step, 4))


def start(folder: Path, config: Path, run: str) -> Command:
    return Command("train", str(config), "--run", run, folder=folder)


def wait_for_step(run: Path, step: int) -> None:
    for _ in range(4800):
        if any(record["step"] >= step for record in read_metrics_log(run / "metrics.jsonl")):
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} did not reach step {step}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_training_resumes_exactly_after_any_signal(
    make_experiment: MakeExperiment, tmp_path: Path, number: signal.Signals
) -> None:
    experiment = make_experiment(
        training__epochs=25, training__save_every=7, training__log_every=1, training__threads=1
    )
    config = tmp_path / "small.yaml"
    config.write_text(to_yaml(experiment))
    stopped = start(tmp_path, config, "stopped")
    wait_for_step(tmp_path / "stopped", 20)
    stopped.send_signal(number)
    _, errors = stopped.communicate(timeout=240)
    if number == signal.SIGKILL:
        assert stopped.returncode == -signal.SIGKILL
    else:
        assert stopped.returncode == 128 + number, errors
        assert f"stopped by {number.name}; saved at step" in errors
    resumed = start(tmp_path, config, "stopped")
    _, errors = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, errors
    assert "resuming at step" in errors
    straight = api.train(experiment, "straight")
    assert_same_bits(tensors(Path("straight"), straight.step), tensors(tmp_path / "stopped", straight.step))


def test_another_config_is_refused_and_its_keys_named(make_experiment: MakeExperiment) -> None:
    api.train(make_experiment(training__max_steps=2), "run")
    with pytest.raises(RunFolderError, match=r"training\.batch_size: the run has 128, you ask for 64") as caught:
        api.train(make_experiment(training__max_steps=2, training__batch_size=64), "run")
    assert "--run" in str(caught.value)


@pytest.mark.parametrize("key", ["torch", "ziggurat"])
def test_other_versions_are_refused(make_experiment: MakeExperiment, key: str) -> None:
    experiment = make_experiment(training__max_steps=2)
    api.train(experiment, "run")
    path = Path("run/environment.json")
    path.write_text(json.dumps(sealed({**json.loads(path.read_text()), key: "0.0.1"})))
    with pytest.raises(RunFolderError, match=f"was trained with {key} 0.0.1"):
        api.train(experiment, "run")


def test_a_folder_that_is_no_run_is_refused(make_experiment: MakeExperiment) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("do not touch")
    with pytest.raises(RunFolderError, match="is not empty and is no run folder"):
        api.train(make_experiment(), "mine")
    assert Path("mine/thesis.txt").read_text() == "do not touch"


def test_a_batch_larger_than_the_data_is_refused(make_experiment: MakeExperiment) -> None:
    with pytest.raises(ConfigError, match=r"batch_size=100000 exceeds the \d+ training rows"):
        api.train(make_experiment(training__batch_size=100_000), "run")


def test_a_diverging_loss_is_explained_and_not_evaluated(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(optimizer={"name": "sgd", "lr": 1e30}, training__log_every=1, training__save_every=1)
    with pytest.raises(ZigguratError, match=r"the training loss became (nan|inf)[\s\S]*lower optimizer\.lr"):
        api.train(experiment, "run")
    assert not Path("run/results.json").exists()


@pytest.mark.parametrize(
    ("monitor", "message"), [("acu", "did you mean 'auc'"), ("base_rate", "has no better direction")]
)
def test_an_unknown_metric_is_refused_before_training(
    make_experiment: MakeExperiment, monitor: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        api.train(make_experiment(training__monitor=monitor), "run")
    assert not Path("run/checkpoints").exists()


def test_two_labels_are_trained_together(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(data__labels=[{"name": "click"}, {"name": "buy"}])
    outcome = api.train(experiment, "run")
    assert outcome.results is not None
    figures = outcome.results["figures"]["test"]
    assert figures["click/auc"] > 0.62
    assert figures["buy/auc"] > 0.6


def test_bf16_and_fp32_agree_to_bf16s_precision(make_experiment: MakeExperiment) -> None:
    found = {}
    for precision in ("fp32", "bf16"):
        outcome = api.train(make_experiment(training__precision=precision, training__epochs=2), precision)
        assert outcome.results is not None
        found[precision] = outcome.results["figures"]["test"]["auc"]
    assert found["bf16"] == pytest.approx(found["fp32"], abs=0.02)  # 8 bits of mantissa over 30 steps


def test_two_processes_do_not_train_in_one_folder(make_experiment: MakeExperiment) -> None:
    message = rf"another process is training in this folder \(pid {os.getpid()} on "
    with locked_folder(Path("run"), "training"), pytest.raises(RunFolderError, match=message):
        api.train(make_experiment(), "run")
    assert api.train(make_experiment(training__max_steps=2), "run").step == 2
