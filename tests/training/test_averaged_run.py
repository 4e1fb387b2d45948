"""A run with averaged weights evaluates, saves and predicts with the average, and resumes from the last weights."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn

from tests.training.conftest import MakeExperiment
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.core.plan import Plan
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.training import api
from ziggurat.training.averaged import NORM_BATCHES
from ziggurat.training.process_group import process_group
from ziggurat.training.recommender import assemble
from ziggurat.training.recommender_state import restore
from ziggurat.training.run_folder.metrics_log import read_metrics_log

MODEL: dict[str, Any] = {"name": "dcn_v2", "cross_layers": 2, "deep": {"hidden": [32], "norm": "batch", "dropout": 0.1}}


def test_a_run_resumes_bit_for_bit_with_its_average(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(model=MODEL, training__weight_average=0.9)
    straight = api.train(experiment, "straight")
    api.train(experiment, "halves", stop_after=straight.step // 2)
    second = api.train(experiment, "halves")
    assert straight.results is not None
    assert second.results == {**straight.results, "seconds": second.results["seconds"]}  # type: ignore[index]
    left, right = (
        CheckpointFolder(Path(run) / "checkpoints").load(straight.step).groups for run in ("straight", "halves")
    )
    assert left.keys() == right.keys() > {"average"}
    for group, tensors in left.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, right[group][name]), (group, name)


def test_evaluation_and_prediction_use_the_average(make_experiment: MakeExperiment) -> None:
    run = api.train(make_experiment(model=MODEL, training__epochs=2, training__weight_average=0.9)).run
    plain = api.train(make_experiment(model=MODEL, training__epochs=2), "plain").run
    groups = run.checkpoints.load("best").groups
    assert {"dense", "tables"} == {name.partition("/")[0] for name in groups["average"]}
    assert not torch.equal(groups["average"]["tables/item"], groups["tables"]["item"])
    # Averaging does not change how the weights are trained.
    last = plain.checkpoints.last()
    assert last is not None
    trained = plain.checkpoints.load(last).groups
    averaged = run.checkpoints.load(last).groups
    for group in ("dense", "tables"):
        assert all(torch.equal(tensor, averaged[group][name]) for name, tensor in trained[group].items())
    # The metrics log, an evaluation and predictions all use the average.
    figures = api.evaluate(run, "validation").compute()
    best = [row for row in read_metrics_log(run.metrics_path) if row["split"] == "validation"]
    assert figures["log_loss"] == min(row["log_loss"] for row in best)
    assert figures["log_loss"] != api.evaluate(plain, "validation").compute()["log_loss"]
    rows = pl.read_csv("log.csv", infer_schema_length=None)
    metrics = BinaryMetrics()
    probabilities_B = api.predict(run, rows)[:, 0]
    metrics.update(torch.from_numpy(probabilities_B).double().logit().float().numpy(), rows["click"].to_numpy())
    total_loss = sum(
        api.evaluate(run, split).compute()["log_loss"] * run.dataset().split(split).rows
        for split in ("train", "validation", "test")
    )
    assert metrics.compute()["log_loss"] == pytest.approx(total_loss / rows.height, abs=1e-6)


def test_batch_norms_are_measured_with_the_averaged_weights(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(model=MODEL, training__epochs=2, training__weight_average=0.95)
    run = api.train(experiment).run
    experiment = run.experiment
    snapshot = run.checkpoints.load(run.checkpoints.resolve("last"))
    dataset = run.dataset()
    loader = Loader(dataset.split("train"), dataset.schema, 128, shuffle=True, seed=experiment.training.seed)
    cpu = torch.device("cpu")
    with process_group(cpu):
        layout = experiment.layout(dataset.schema)
        plan = Plan.single_device(table.name for table in layout.tables)
        recommender = assemble(experiment, layout, plan, cpu)
        restore(recommender, snapshot)
        [norm] = [module for module in recommender.modules() if isinstance(module, nn.BatchNorm1d)]
        seen: list[torch.Tensor] = []
        norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        recommender.eval()
        with torch.no_grad():
            for batch, _ in itertools.islice(loader.epoch(Cursor()), NORM_BATCHES):
                recommender(batch)
    assert len(seen) == NORM_BATCHES
    means, variances = (torch.stack([getattr(x, name)(dim=0) for x in seen]).mean(0) for name in ("mean", "var"))
    assert norm.running_mean is not None
    assert norm.running_var is not None
    torch.testing.assert_close(norm.running_mean, means)
    torch.testing.assert_close(norm.running_var, variances)
    # The trained weights have other statistics.
    name = "model.deep.layers.1.running_var"
    assert not torch.allclose(snapshot.groups["average"][f"dense/{name}"], snapshot.groups["dense"][name], rtol=0.02)
