"""Ranks that train together equal a single process, for every parallelism of the dense part.

The single process sums a batch's gradient in one order of its rows; ranks sum their own rows first and then each
other's. float32 sums in another order differ in the last bits (6e-8 of the largest term), 100 steps of SGD carry that
on, and so losses are compared to 1e-5 and weights to 1e-4, of numbers around 0.1; a step that is done wrongly (a
gradient not averaged, a row updated twice) shows in the first digits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load_file
from torch import Tensor

from tests.distributed.ranks import run_ranks
from tests.training.conftest import config_values, write_log
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.plan import Plan
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log

STEPS = 100
ORDERED: dict[str, Any] = {
    "planner": {"name": "recshard", "time_limit_s": 0},
    "reserve": 0,
    "topology": {
        "memory": "38.5kB", "lookup_bandwidth": 1e10, "intra_bandwidth": 1e9,
        "slow_memory": "1MB", "slow_bandwidth": 1e8,
    },
    "tables": {"item": {"sharding": "row_wise"}},
}  # fmt: skip
"""Memory that suffices for the buffers of a step and some of the rows."""
SHORTER: dict[str, Any] = {"training.max_steps": 40, "training.evaluate_every": 20}
FEW_WEIGHTS: dict[str, Any] = {
    "data.weight": "rare_weight",
    "training.batch_size": 4,
    "training.accumulate": 2,
    "training.clip_norm": 1.0,
    "embeddings.l2": 0.01,
}
"""Two rows in three weigh nothing: of 40 batches some do not count, on one rank or on all, also between two that do."""
KINDS: list[dict[str, Any]] = [
    {"name": "click"},
    {"name": "rate", "kind": "soft", "positives": "buy", "trials": "age_weight"},
    {"name": "number", "column": "item", "kind": "regression", "loss": {"name": "quantile"}, "loss_weight": 2.0},
    {"name": "level", "column": "age_weight", "kind": "ordinal"},
]
"""Labels with weights of their own, several outputs, and learnt thresholds."""
VARIANTS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp_small_buckets": {"parallel.dense": {"name": "ddp", "bucket_mb": 0.001}},
    "fsdp": {"parallel.dense": {"name": "fsdp"}},
    "hsdp": {"parallel.dense": {"name": "hsdp", "shard_size": 1}},
    "replicated": {
        **SHORTER,
        "planning": {"tables": {name: {"sharding": "data_parallel"} for name in ("user", "item", "tags")}},
    },
    "accumulated": {**SHORTER, "training.accumulate": 2},
    "accumulated_fsdp": {**SHORTER, "training.accumulate": 2, "parallel.dense": {"name": "fsdp"}},
    "recomputed_fsdp": {**SHORTER, "training.activation_checkpointing": True, "parallel.dense": {"name": "fsdp"}},
    "no_pipeline": {"parallel.pipeline": False},
    "sockets": {"parallel.shared_memory": False},
    "norms_weights_and_averages": {
        **SHORTER,
        "model.deep.norm": "batch",
        "data.weight": "age_weight",
        "training.weight_average": 0.9,
        "embeddings.l2": 0.01,
        "training.clip_norm": 1.0,
    },
    "weightless_batches": {**SHORTER, **FEW_WEIGHTS},
    "weightless_batches_sockets": {**SHORTER, **FEW_WEIGHTS, "parallel.shared_memory": False},
    "weightless_batches_fsdp": {**SHORTER, **FEW_WEIGHTS, "parallel.dense": {"name": "fsdp"}},
    "ordered_rows": {**SHORTER, "planning": ORDERED},
    "ordered_rows_weights_and_averages": {
        **SHORTER,
        "planning": ORDERED,
        "data.weight": "age_weight",
        "training.weight_average": 0.9,
    },
    "label_kinds": {**SHORTER, "data.labels": KINDS},
    "label_kinds_fsdp": {**SHORTER, "data.labels": KINDS, "parallel.dense": {"name": "fsdp"}},
    "thinned": {**SHORTER, "training.negative_rate": 0.5, "training.start_at_base_rate": True},
    "adam_tables": {**SHORTER, "embeddings.optimizer": {"name": "adam", "rows": "all", "l2": 0.001}, "planning": {}},
}
DEVICES: dict[str, Any] = {
    "device": "cpu", "memory": "1MB", "lookup_bandwidth": 1e8, "intra_bandwidth": 1e8, "inter_bandwidth": 1e8,
}  # fmt: skip
"""A topology without measured values, so that plans are reproducible."""
PLANNED: dict[str, dict[str, Any]] = {
    "rules": {**SHORTER, "planning": {"planner": {"replicate_up_to": 1, "fused": False}, "topology": DEVICES}},
    "recshard": {**SHORTER, "planning": {**ORDERED, "planner": {"name": "recshard"}, "tables": {}}},
    "baseline": {**SHORTER, "planning": {"planner": {"name": "baseline", "by": "lpt"}, "topology": DEVICES}},
    "autoshard": {
        **SHORTER,
        "planning": {"planner": {"name": "autoshard", "replicate_up_to": 1, "fused": False}, "topology": DEVICES},
    },
    "refined": {
        **SHORTER,
        "planning": {"planner": {"name": "autoshard", "refine_s": 0.2}, "topology": {"device": "local"}},
    },
    "torchrec": {**SHORTER, "planning": {"planner": {"name": "torchrec", "fused": False}, "topology": DEVICES}},
}
"""Plans of each planner; recshard's by its linear model. All equal a single process, which has no plan."""


def experiment(folder: Path, changes: dict[str, Any]) -> Experiment:
    values = config_values(folder)
    values["optimizer"] = {"name": "sgd", "lr": 0.1}
    # Such small tables would be replicated; so each is placed on one rank, and one is split.
    values["planning"] = {"planner": {"replicate_up_to": 1}, "tables": {"item": {"sharding": "row_wise"}}}
    values["training"].update(max_steps=STEPS, epochs=50, evaluate_every=50, batch_size=96, device="cpu")
    for path, value in changes.items():
        set_by_path(values, path, value)
    return parse_config(Experiment, values)


def train(folder: Path, name: str, place: str, changes: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Trains on all ranks; returns losses by step, final metrics and the last checkpoint's tensors."""
    run_folder = folder / place / name
    prepared = folder / f"prepared-{changes.get('data.weight')}-{len(changes.get('data.labels', '1'))}"
    outcome = api.train(experiment(folder, changes), run_folder, prepared=prepared, **options)
    records = read_metrics_log(run_folder / "metrics.jsonl")
    snapshot = outcome.run.checkpoints.load("last")
    return {
        "losses": {record["step"]: record["loss"] for record in records if record["split"] == "train"},
        "figures": None if outcome.results is None else outcome.results["figures"],
        "weights": {f"{group}/{k}": v for group in ("dense", "tables") for k, v in snapshot.groups[group].items()},
        "states": dict(snapshot.groups["table_optimizer"]),
    }


def train_all(rank: int, folder: Path, place: str, names: list[str]) -> dict[str, Any]:
    return {name: train(folder, name, place, {**VARIANTS, **PLANNED}[name]) for name in names}


def evaluated(rank: int, folder: Path, runs: list[Path]) -> list[dict[str, float]]:
    """Returns metrics of finished runs' checkpoints over batches that do not divide evenly."""
    figures: list[dict[str, float]] = []
    for run in runs:
        opened = api.load_run(run)
        changed = opened.experiment.evaluation.model_copy(update={"batch_size": 100})
        opened = type(opened)(opened.folder, opened.experiment.model_copy(update={"evaluation": changed}))
        metrics = api.evaluate(opened, "test", "last")
        figures.append({**metrics.compute(), **metrics.slice_figures()})
    return figures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ranks")
    write_log(path / "log.csv")
    lines = (path / "log.csv").read_text(encoding="utf-8").splitlines()
    weighted = [f"{line},{1 + number % 3},{int(number % 3 == 0)}" for number, line in enumerate(lines[1:])]
    header = f"{lines[0]},age_weight,rare_weight"
    (path / "log.csv").write_text("\n".join([header, *weighted]) + "\n", encoding="utf-8")
    return path


def asked_for(request: pytest.FixtureRequest, place: str) -> list[str]:
    """Returns the names that this session's tests compare at a place; those left to `make drills` are not trained."""
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    parameters = [item.callspec.params for item in items if hasattr(item, "callspec")]
    names = {each["name"] for each in parameters if each.get("place", "pair") == place}
    return [name for name in (*VARIANTS, *PLANNED) if name in names]


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    asked = {*asked_for(request, "pair"), "ddp", "ordered_rows", "adam_tables"}
    return train_all(0, folder, "alone", [name for name in VARIANTS if name in asked])


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, folder: Path, alone: dict[str, Any]) -> dict[str, Any]:
    asked = {*asked_for(request, "pair"), "ddp"}
    first, second = run_ranks(2, train_all, folder, "pair", [name for name in (*VARIANTS, *PLANNED) if name in asked])
    assert first.keys() == second.keys()
    return first


@pytest.fixture(scope="module")
def four(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    return run_ranks(4, train_all, folder, "four", asked_for(request, "four"))[0]


def close(ours: dict[str, Tensor], theirs: dict[str, Tensor], atol: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("name", VARIANTS)
def test_losses_and_weights_equal_a_single_process(name: str, pair: dict[str, Any], alone: dict[str, Any]) -> None:
    assert len(alone[name]["losses"]) == VARIANTS[name].get("training.max_steps", STEPS) // 5
    equal(pair[name], alone[name])


@pytest.mark.parametrize("place", ["pair", "four"])
@pytest.mark.parametrize("name", PLANNED)
def test_plans_of_all_planners_equal_a_single_process(
    request: pytest.FixtureRequest, place: str, name: str, folder: Path, alone: dict[str, Any]
) -> None:
    equal(request.getfixturevalue(place)[name], alone["ordered_rows"])
    plan = Plan.from_json(json.loads((folder / place / name / "plan.json").read_text(encoding="utf-8")))
    placements = plan.placements.values()
    assert plan.world_size == {"pair": 2, "four": 4}[place]
    assert {each.sharding for each in placements} != {"data_parallel"}
    assert len({rank for each in placements for rank in each.ranks}) > 1
    assert name != "recshard" or plan.notes[0].startswith("recshard: the linear model's plan; ")


LOSSES = {"log_loss", "rmse", "deviance", "pinball"}
"""Metrics that hardly depend on the order of sums; ranks may change places."""


def equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Asserts equal losses, weights, states and metrics, up to the order of sums."""
    assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-5)
    close(ours["weights"], theirs["weights"], 1e-4)
    close(ours["states"], theirs["states"], 1e-4)
    for split, figures in theirs["figures"].items():
        losses = {name: value for name, value in figures.items() if name.rpartition("/")[2] in LOSSES}
        assert losses
        assert {name: ours["figures"][split][name] for name in losses} == pytest.approx(losses, abs=1e-5)


@pytest.mark.parametrize("name", ["fsdp", "hsdp", "ddp_small_buckets", "no_pipeline", "sockets"])
def test_the_parallelism_of_the_dense_part_changes_nothing(name: str, pair: dict[str, Any]) -> None:
    """The sum of two numbers has one order, so two ranks give one result, bit for bit."""
    close(pair[name]["weights"], pair["ddp"]["weights"], 0.0)


def test_two_runs_are_bit_identical(folder: Path, pair: dict[str, Any]) -> None:
    again = run_ranks(2, train_all, folder, "again", ["ddp"])[0]["ddp"]
    assert again["losses"] == pair["ddp"]["losses"]
    close(again["weights"], pair["ddp"]["weights"], 0.0)


def test_metrics_of_several_ranks_equal_one_bit_for_bit(folder: Path, alone: dict[str, Any]) -> None:
    """For replicated tables; if the rows of a bag are on several ranks, they are summed in another order."""
    replicated, divided = folder / "alone" / "adam_tables", folder / "alone" / "ddp"
    here = evaluated(0, folder, [replicated, divided])
    assert len(here[0]) > 20
    for world_size in (2, 3):  # 450 rows in batches of 100: in the last step some ranks have none
        for there in run_ranks(world_size, evaluated, folder, [replicated, divided]):
            assert there[0] == pytest.approx(here[0], rel=0, abs=0, nan_ok=True)
            assert there[1] == pytest.approx(here[1], rel=1e-6, abs=1e-6, nan_ok=True)


def ensemble_figures(rank: int, ensemble: Path) -> dict[str, float]:
    return api.evaluate(ensemble, "test").compute()


def test_an_ensemble_has_the_metrics_of_one_process_on_several_ranks(folder: Path, alone: dict[str, Any]) -> None:
    runs = [folder / "alone" / name for name in ("adam_tables", "ddp")]
    built = api.build_ensemble(runs, folder / "ensemble", equal_weights=True)
    assert len(built.ensemble.members) == 2
    here = ensemble_figures(0, folder / "ensemble")
    for there in run_ranks(2, ensemble_figures, folder / "ensemble"):
        assert there == pytest.approx(here, rel=1e-6, abs=1e-6, nan_ok=True)


def train_until(rank: int, folder: Path, place: str, stop_after: int | None) -> dict[str, Any]:
    return train(folder, "run", place, {}, stop_after=stop_after)


def test_a_run_resumes_on_another_number_of_ranks(folder: Path, alone: dict[str, Any]) -> None:
    run_ranks(2, train_until, folder, "moved", 30)
    run_ranks(3, train_until, folder, "moved", 60)
    ended = train_until(0, folder, "moved", None)
    assert ended["losses"] == pytest.approx(alone["ddp"]["losses"], abs=1e-5)
    close(ended["weights"], alone["ddp"]["weights"], 1e-4)


def test_stopping_and_resuming_changes_nothing(folder: Path, pair: dict[str, Any]) -> None:
    run_ranks(2, train_until, folder, "stopped", 37)
    ended = run_ranks(2, train_until, folder, "stopped", None)[0]
    close(ended["weights"], pair["ddp"]["weights"], 0.0)


def train_with_plan(rank: int, folder: Path, stop_after: int | None, planning: dict[str, Any] | None) -> dict[str, Any]:
    if rank == 0:
        (folder / "replanned" / "run" / "plan.json").unlink(missing_ok=True)
    return train(folder, "run", "replanned", {} if planning is None else {"planning": planning}, stop_after=stop_after)


def test_a_run_with_ordered_rows_resumes_with_another_planner_and_number_of_ranks(
    folder: Path, alone: dict[str, Any]
) -> None:
    """Checkpoints identify rows by their ids, so that they do not depend on the order."""
    run_ranks(2, train_with_plan, folder, 30, ORDERED)
    run = folder / "replanned" / "run"
    plan = Plan.from_json(json.loads((run / "plan.json").read_text(encoding="utf-8")))
    fast = {name: placement.fast_rows for name, placement in plan.placements.items()}
    assert any(rows not in (None, 0) for rows in fast.values())
    assert load_file(run / "row_order.safetensors").keys() == {name for name, rows in fast.items() if rows is not None}
    run_ranks(3, train_with_plan, folder, 60, None)
    run_ranks(2, train_with_plan, folder, 80, ORDERED)
    ended = train_with_plan(0, folder, None, None)
    assert ended["losses"] == pytest.approx(alone["ddp"]["losses"], abs=1e-5)
    close(ended["weights"], alone["ddp"]["weights"], 1e-4)
    close(ended["states"], alone["ddp"]["states"], 1e-4)
    here = evaluated(0, folder, [run])[0]
    for there in run_ranks(2, evaluated, folder, [run]):
        assert there[0] == pytest.approx(here, rel=1e-6, abs=1e-6, nan_ok=True)
