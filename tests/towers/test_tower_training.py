"""Towers on two hosts train what a single process trains, with modules and without, and their runs move between both.

Losses and weights differ in the order of float32 sums alone, as in tests/distributed/test_training.py.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.distributed.ranks import run_ranks
from tests.training.conftest import config_values, write_log
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import ConfigError, NoFeasiblePlan, ZigguratError
from ziggurat.core.plan import Plan
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.features.assemble import encoded_schema
from ziggurat.parallel.world import World
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.planner import plan_problem, problem_of
from ziggurat.planning.problem import Problem, TableConstraint
from ziggurat.towers.modules.dlrm import DLRMTower
from ziggurat.towers.placement import keeps, with_towers_on_hosts
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.placement.plan_resolution import read_plan, resolve_plan
from ziggurat.training.process_group import process_group
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.run_folder.run_files import PLAN_FILE

GIVEN = {"name": "given", "towers": [["tags", "user"], ["item", "history"]]}
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {"towers": {"partition": GIVEN}},
    "none_fsdp": {"towers": {"partition": GIVEN}, "parallel.dense": {"name": "fsdp"}},
    "dlrm": {
        "towers": {"partition": GIVEN, "module": {"name": "dlrm", "flat": 1, "each": 1, "width": 6}},
        "model": {"name": "dlrm", "top": {"hidden": [16]}},
        "optimizer": {"name": "adam", "lr": 0.01},
    },
    "dcn_accumulated": {
        "towers": {"partition": GIVEN, "module": {"name": "dcn", "width": 8}},
        "model": {"name": "dcn_v2", "deep": {"hidden": [16]}},
        "training.accumulate": 2,
        "training.clip_norm": 0.05,
        "training.weight_average": 0.9,
    },
    "wukong_by_rows": {
        "towers": {"partition": GIVEN, "module": {"name": "wukong", "fm_outputs": 1, "linear_outputs": 1, "rank": 2}},
        "planning": {"tables": {"item": {"sharding": "table_row_wise"}}},
        "parallel.pipeline": False,
    },
}
TRANSFORM = {"parallel.embeddings": {"name": "tower_transform"}}


def experiment(folder: Path, changes: dict[str, Any]) -> Experiment:
    values = config_values(folder)
    values["optimizer"] = {"name": "sgd", "lr": 0.1}
    values["features"][-1]["pooling"] = "sum"  # a mean of rows on several ranks is refused
    values["training"].update(max_steps=30, epochs=50, evaluate_every=10, batch_size=96, device="cpu")
    for path, value in changes.items():
        set_by_path(values, path, value)
    return parse_config(Experiment, values)


def train(folder: Path, name: str, place: str, changes: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    """Trains on all ranks; returns losses by step, final metrics and the last checkpoint's tensors."""
    outcome = api.train(
        experiment(folder, {**VARIANTS[name], **TRANSFORM, **(changes or {})}),
        folder / place / name,
        prepared=folder / "prepared",
        **options,
    )
    records = read_metrics_log(folder / place / name / "metrics.jsonl")
    groups = outcome.run.checkpoints.load("last").groups
    weights = {
        f"{group}/{key}": each
        for group in ("dense", "tables", "average")
        if group in groups
        for key, each in groups[group].items()
    }
    states = {
        f"{group}/{key}": each
        for group in ("table_optimizer", "dense_optimizer")
        if group in groups
        for key, each in groups[group].items()
    }
    return {
        "losses": {record["step"]: record["loss"] for record in records if record["split"] == "train"},
        "figures": None if outcome.results is None else outcome.results["figures"],
        "weights": weights,
        "states": states,
    }


def train_all(rank: int, folder: Path, place: str, local_size: int, names: list[str]) -> dict[str, Any]:
    os.environ["LOCAL_WORLD_SIZE"] = str(local_size)
    return {name: train(folder, name, place) for name in names}


def train_until(rank: int, folder: Path, local_size: int, stop_after: int | None) -> dict[str, Any]:
    os.environ["LOCAL_WORLD_SIZE"] = str(local_size)
    return train(folder, "dlrm", "moved", stop_after=stop_after)


def warm_started(rank: int, folder: Path, place: str, local_size: int) -> dict[str, Any]:
    """Trains from the weights of the single process, with the states of its optimizers."""
    os.environ["LOCAL_WORLD_SIZE"] = str(local_size)
    start = {"run": str(folder / "alone" / "dlrm"), "optimizer": True}
    return train(folder, "dlrm", place, {"training.warm_start": start, "training.max_steps": 10})


def evaluated(rank: int, run: Path, local_size: int) -> dict[str, float]:
    """Returns metrics over batches that do not divide evenly."""
    os.environ["LOCAL_WORLD_SIZE"] = str(local_size)
    opened = api.load_run(run)
    changed = opened.experiment.evaluation.model_copy(update={"batch_size": 101})
    opened = type(opened)(opened.folder, opened.experiment.model_copy(update={"evaluation": changed}))
    return api.evaluate(opened, "test", "last").compute()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("towers")
    write_log(path / "log.csv")
    return path


def asked_for(request: pytest.FixtureRequest) -> list[str]:
    """Returns the variants that this session compares, and that of the other tests; those of drills are left out."""
    items = [item for item in request.session.items if item.path == request.path and isinstance(item, pytest.Function)]
    names = {item.callspec.params.get("name") for item in items if hasattr(item, "callspec")}
    return [name for name in VARIANTS if name in {*names, "dlrm"}]


@pytest.fixture(scope="module")
def alone(request: pytest.FixtureRequest, folder: Path) -> dict[str, Any]:
    return train_all(0, folder, "alone", 1, asked_for(request))


@pytest.fixture(scope="module")
def hosts(request: pytest.FixtureRequest, folder: Path, alone: dict[str, Any]) -> dict[str, Any]:
    return run_ranks(4, train_all, folder, "hosts", 2, asked_for(request))[0]


def close(ours: dict[str, Tensor], theirs: dict[str, Tensor], atol: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def equal(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    assert ours["losses"] == pytest.approx(theirs["losses"], abs=1e-5)
    close(ours["weights"], theirs["weights"], 1e-4)
    close(ours["states"], theirs["states"], 1e-4)
    for split, figures in theirs["figures"].items():
        assert ours["figures"][split]["log_loss"] == pytest.approx(figures["log_loss"], abs=1e-5)


@pytest.mark.parametrize("name", VARIANTS)
def test_two_hosts_of_two_ranks_equal_a_single_process(
    name: str, folder: Path, hosts: dict[str, Any], alone: dict[str, Any]
) -> None:
    assert len(alone[name]["losses"]) == 6
    equal(hosts[name], alone[name])
    plan = Plan.from_json(json.loads((folder / "hosts" / name / "plan.json").read_text(encoding="utf-8")))
    assert {table: {plan.host(rank) for rank in each.ranks} for table, each in plan.placements.items()} == {
        "user": {0},
        "tags": {0},
        "item": {1},
    }
    assert (plan.placements["item"].sharding == "table_row_wise") == (name == "wukong_by_rows")


def test_a_run_moves_between_hosts_and_one_process(folder: Path, alone: dict[str, Any]) -> None:
    """Also through ranks of one host, where rows are exchanged at once and the modules belong to the model."""
    run_ranks(4, train_until, folder, 2, 10)
    run_ranks(2, train_until, folder, 2, 15)
    run_ranks(2, train_until, folder, 1, 25)
    ended = train_until(0, folder, 1, None)
    assert ended["losses"] == pytest.approx(alone["dlrm"]["losses"], abs=1e-5)
    close(ended["weights"], alone["dlrm"]["weights"], 1e-4)
    close(ended["states"], alone["dlrm"]["states"], 1e-4)


def test_a_resumed_run_keeps_its_plan_if_towers_are_on_their_hosts(folder: Path, hosts: dict[str, Any]) -> None:
    run = open_run(shutil.copytree(folder / "hosts" / "dlrm", folder / "kept"))
    layout = run.experiment.layout(run.dataset(folder / "prepared").schema)
    plan = read_plan(run.files)
    assert plan is not None

    def resumed_with(stored: Plan) -> Plan:
        run.files.write_json(PLAN_FILE, stored.to_json())
        with process_group(torch.device("cpu")):
            return resolve_plan(run.experiment, layout, World(0, 4, 2), "cpu", folder / "prepared", run.folder)

    (rank,) = plan.placements["user"].ranks
    moved = plan.placed("user", "table_wise", (1 - rank,))
    assert resumed_with(moved) == moved  # a new plan would be the old one
    assert resumed_with(plan.placed("user", "table_wise", (2,))) == plan


def train_in_bf16(rank: int, folder: Path, place: str, local_size: int) -> tuple[dict[str, Any], set[bool]]:
    """Trains on all ranks; also returns whether modules computed in bfloat16."""
    os.environ["LOCAL_WORLD_SIZE"] = str(local_size)
    reduced: set[bool] = set()
    forward = DLRMTower.forward

    def observed(tower: DLRMTower, emb_BFN: Tensor) -> Tensor:
        reduced.add(torch.is_autocast_enabled("cpu"))
        return forward(tower, emb_BFN)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DLRMTower, "forward", observed)
        changes = {"training.precision": "bf16", "optimizer": {"name": "sgd", "lr": 0.1}}
        return train(folder, "dlrm", place, changes), reduced


def test_modules_on_their_hosts_compute_in_bf16_as_the_model_does(folder: Path) -> None:
    """With SGD: under Adam the rounding of small gradients grows to 1 % of the loss, with the flat exchange as well."""
    alone, reduced_alone = train_in_bf16(0, folder, "bf16-alone", 1)
    for found, reduced in run_ranks(2, train_in_bf16, folder, "bf16-hosts", 1):
        assert reduced == reduced_alone == {True}
        assert found["losses"] == pytest.approx(alone["losses"], rel=1e-3)
        assert found["figures"]["test"]["log_loss"] == pytest.approx(alone["figures"]["test"]["log_loss"], rel=1e-3)


def test_a_warm_start_gives_each_host_its_towers(folder: Path, alone: dict[str, Any]) -> None:
    theirs = warm_started(0, folder, "warm-alone", 1)
    assert theirs["losses"][5] < alone["dlrm"]["losses"][5]
    equal(run_ranks(4, warm_started, folder, "warm-hosts", 2)[0], theirs)


def test_metrics_on_hosts_equal_those_of_one_process(folder: Path, hosts: dict[str, Any]) -> None:
    run = folder / "hosts" / "dlrm"
    here = evaluated(0, run, 1)
    for there in run_ranks(4, evaluated, run, 2):
        assert there == pytest.approx(here, rel=1e-6, abs=1e-6, nan_ok=True)


def refused(rank: int, folder: Path) -> str:
    os.environ["LOCAL_WORLD_SIZE"] = "1"
    with pytest.raises(ZigguratError) as caught:
        train(folder, "dlrm", "refused")
    return str(caught.value)


def test_a_number_of_hosts_that_does_not_divide_the_towers_is_refused(folder: Path, alone: dict[str, Any]) -> None:
    assert all("there are 2 towers and 3 hosts" in message for message in run_ranks(3, refused, folder))


def test_a_plan_recommends_the_transform_only_where_it_can_be_used(folder: Path) -> None:
    """Its notes say which way is faster between the planned hosts, and what stands against it."""
    slow = {"planning.topology": {"hosts": 2, "devices": 2, "inter_bandwidth": "10MB/s"}}
    slow |= {"towers.module.width": 2}

    def note(changes: dict[str, Any]) -> str:
        asked = experiment(folder, {**VARIANTS["dlrm"], **slow, **changes})
        return next(each for each in api.plan(asked, prepared=folder / "prepared").notes if each.startswith("towers: "))

    assert note({}).endswith("use parallel.embeddings: {name: tower_transform}")
    assert note(TRANSFORM).endswith("as chosen")
    blocked = note({"embeddings.l2": 1e-6})
    assert (
        "not possible here, as it returns outputs of modules, while l2 is of the tables' rows (embeddings.l2)"
        in blocked
    )


def test_means_over_tables_split_by_rows_are_refused(folder: Path) -> None:
    changes = {**VARIANTS["wukong_by_rows"], **TRANSFORM, "features.history.pooling": "mean"}
    asked = experiment(folder, changes)
    assert asked.towers is not None
    tables = asked.layout(encoded_schema(asked.features, asked.data.targets, dict.fromkeys(ROWS, 9))).tables
    topology = Topology(2, 2, "cpu", "cpu", 10**9, 1e9, 1e9, 1e9)
    problem = problem_of(tables, None, topology, asked.planning, 8)
    towers = asked.towers.resolve([table.features for table in tables])
    with pytest.raises(ConfigError, match=r"planning\.tables\.item\.sharding: tower_transform has no means"):
        with_towers_on_hosts(problem, towers)
    asked = experiment(folder, {**changes, "planning": {"tables": {"user": {"sharding": "row_wise"}}}})
    problem = problem_of(tables, None, topology, asked.planning, 8)
    with pytest.raises(ConfigError, match=r"planning\.tables\.user\.sharding: 'row_wise' is not within one host"):
        with_towers_on_hosts(problem, towers)
    asked = experiment(folder, {**changes, "planning": {"tables": {"user": {"sharding": "column_wise"}}}})
    found = with_towers_on_hosts(problem_of(tables, None, topology, asked.planning, 8), towers).constraints["user"]
    assert (found.sharding, found.ranks) == ("column_wise", (0, 1))
    narrow = [replace(table, dim=4) for table in tables]
    with pytest.raises(ConfigError, match=r"planning\.tables\.user\.sharding: 4 columns have no 2 to 2 equal parts"):
        with_towers_on_hosts(
            problem_of(narrow, None, Topology(2, 2, "cpu", "cpu", 10**9, 1e9, 1e9, 1e9), PlanningConfig(), 8).but(
                constraints={"user": TableConstraint("column_wise", None)}
            ),
            towers,
        )
    asked = experiment(folder, {**changes, "planning": {"tables": {"user": {"sharding": "table_wise", "ranks": [3]}}}})
    problem = problem_of(tables, None, topology, asked.planning, 8)
    with pytest.raises(ConfigError, match=r"planning\.tables\.user\.ranks: received \[3\].*on host 0"):
        with_towers_on_hosts(problem, towers)


def test_tables_are_balanced_over_the_ranks_of_a_host_and_large_ones_split(folder: Path) -> None:
    names = [f"c{number}" for number in range(8)]
    tables = [
        TableSpec(name, 20_000 if name == "c6" else 10, 8, (name,), "sum", {"name": "sgd"}, 0.1) for name in names
    ]
    topology = Topology(2, 2, "cpu", "cpu", 10**6, 1e9, 1e9, 1e9)
    problem = problem_of(tables, None, topology, PlanningConfig(), 8)
    found = with_towers_on_hosts(problem, (tuple(names[::2]), tuple(names[1::2]))).constraints
    placed = {name: (each.sharding, each.ranks) for name, each in found.items()}
    assert placed["c6"] == ("table_row_wise", (0, 1))
    for ranks, host in (((0, 1), ("c0", "c2", "c4")), ((2, 3), ("c1", "c3", "c5", "c7"))):
        counts = [sum(placed[name] == ("table_wise", (rank,)) for name in host) for rank in ranks]
        assert sum(counts) == len(host)
        assert max(counts) - min(counts) <= 1


def test_tables_are_where_they_fit_and_a_plan_that_keeps_towers_on_hosts_is_kept() -> None:
    """By work alone, all tables but the first would be on the second rank, whose memory holds two of them."""
    keys = tuple(f"key{number}" for number in range(6))
    topology = Topology(2, 2, "cpu", "cpu", 10**6, 1e9, 1e9, 1e9)

    def problem_with(rows: int, **planning: Any) -> Problem:
        sizes = {"busy": 10, "b": rows, "c": rows, "d": rows, "other": 10}
        tables = [
            TableSpec(name, size, 8, keys if name == "busy" else (name,), "sum", {"name": "sgd"}, 0.1)
            for name, size in sizes.items()
        ]
        found = problem_of(tables, None, topology, parse_config(PlanningConfig, planning), 8)
        return with_towers_on_hosts(found, ((*keys, "b", "c", "d"), ("other",)))

    rows = int(0.45 * problem_with(10).capacity / 32)
    problem = problem_with(rows)
    ranks = {name: each.ranks for name, each in problem.constraints.items()}
    assert ranks == {"busy": (0,), "b": (1,), "c": (1,), "d": (0,), "other": (2,)}
    plan = plan_problem(problem, PlanningConfig().planner.build()).plan
    assert keeps(plan, problem)

    def with_d_on(rank: int) -> Plan:
        moved = replace(plan.placements["d"], ranks=(rank,))
        return replace(plan, placements={**plan.placements, "d": moved})

    assert keeps(with_d_on(1), problem)
    assert not keeps(with_d_on(2), problem)
    asked = problem_with(rows, tables={"d": {"sharding": "table_wise", "ranks": [0]}})
    assert not keeps(with_d_on(1), asked)
    with pytest.raises(NoFeasiblePlan) as caught:  # the advice is of what the user has set
        plan_problem(problem_with(2 * rows), PlanningConfig().planner.build())
    assert "planning.tables" not in str(caught.value)
    assert "hosts of" not in str(caught.value)  # other hosts would need other towers


ROWS = ("user", "item", "tags")
MODULE = {"partition": GIVEN, "module": {"name": "dcn", "width": 8}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no towers": ({"towers": None}, r"parallel\.embeddings: tower_transform needs the section towers"),
    "positions": (
        {"features.history.pooling": {"name": "attention"}},
        r"features\.history\.pooling: tower_transform exchanges pooled rows",
    ),
    "groups": ({"embeddings.groups": [{"features": ["user", "tags"]}]}, r"embeddings\.groups: tower_transform"),
    "narrow": ({"embeddings.tables": {"user": {"dim": 4}}}, r"embeddings\.tables\.user\.dim: .* rows of 8 floats"),
    "adam": ({"embeddings.optimizer": {"name": "adam"}}, r"embeddings\.optimizer: .* adam replicates table 'user'"),
    "tiers": ({"planning.planner": {"name": "recshard"}}, r"planning\.planner: tower_transform does not order rows"),
    "row tiers": ({"planning.planner": {"name": "flexshard"}}, r"planning\.planner: .* its rows have no tiers"),
    "fsdp": ({"parallel.dense": {"name": "fsdp"}}, r"parallel\.dense: .*only ddp allows"),
    "shampoo": ({"optimizer": {"name": "shampoo"}}, r"optimizer: .*shampoo divides all"),
    "l2": ({"embeddings.l2": 0.1}, r"embeddings\.l2: tower_transform"),
    "dropout": ({"embeddings.dropout": 0.1}, r"embeddings\.dropout: tower_transform"),
    "batch norm": (
        {"towers": {"partition": GIVEN, "module": {"name": "wukong", "fm_mlp": {"norm": "batch"}}}},
        r"towers\.module\.fm_mlp\.norm: tower_transform has no batch norms",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_support_is_refused_by_name(case: str, folder: Path) -> None:
    changes, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as caught:
        experiment(folder, {"towers": MODULE, **TRANSFORM, **changes}).check()
    assert "flat" in str(caught.value)
