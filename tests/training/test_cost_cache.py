"""Planners use the costs measured on this machine if they plan for this machine."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.training.conftest import MakeExperiment
from ziggurat.planning.autoshard.baseline import BaselinePlanner
from ziggurat.planning.autoshard.cost_network import CostNetwork
from ziggurat.planning.autoshard.learned import NETWORK, SHIPPED
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.config import PlanningConfig, TopologyConfig
from ziggurat.planning.rules import Rules
from ziggurat.training import api
from ziggurat.training.placement.cost_cache import cost_cache_folder, with_measured_costs

LOCAL, OTHER = TopologyConfig(device="local"), TopologyConfig(device="cpu")


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of this machine's measured costs, with a network dated 1999."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = cost_cache_folder(torch.device("cpu"))
    network = CostNetwork.load(SHIPPED / NETWORK)
    network.origin["date"] = "1999-12-31"
    folder.mkdir(parents=True)
    network.save(folder / NETWORK)
    return folder


def test_learned_planners_use_measured_costs_for_this_machine_only(measured: Path) -> None:
    for planner in (AutoShard.Config(), BaselinePlanner.Config(by="lpt")):
        found = with_measured_costs(PlanningConfig(planner=planner, topology=LOCAL), "cpu").planner
        assert found == planner.model_copy(update={"learned": measured})
        elsewhere = PlanningConfig(planner=planner, topology=OTHER)
        assert with_measured_costs(elsewhere, "cpu") == elsewhere
    named = PlanningConfig(planner=AutoShard.Config(learned=Path("mine")), topology=LOCAL)
    assert with_measured_costs(named, "cpu") == named
    rules = PlanningConfig(planner=Rules.Config(), topology=LOCAL)
    assert with_measured_costs(rules, "cpu") == rules
    shutil.rmtree(measured)
    assert with_measured_costs(PlanningConfig(topology=LOCAL), "cpu") == PlanningConfig(topology=LOCAL)


@pytest.mark.parametrize("planner", ["rules", "autoshard"])
def test_a_comparison_is_judged_by_measured_costs_with_any_planner(
    measured: Path, make_experiment: MakeExperiment, planner: str
) -> None:
    local = {"device": "local", "lookup_bandwidth": 1e10, "intra_bandwidth": 1e9}
    experiment = make_experiment(planning={"planner": {"name": planner}, "topology": local}, training__device="cpu")
    judge = api.compare_planners(experiment, devices=2, memory="1GB").judge
    assert "1999-12-31 (5 % off where held out)" in judge
    elsewhere = make_experiment(planning={"planner": {"name": planner}, "topology": {**local, "device": "cpu"}})
    assert "1999-12-31" not in api.compare_planners(elsewhere, devices=2, memory="1GB").judge


@pytest.mark.parametrize("planner", ["rules", "torchrec"])
def test_plans_for_gpus_need_no_gpu(make_experiment: MakeExperiment, planner: str) -> None:
    experiment = make_experiment(planning={"planner": {"name": planner}, "topology": {"device": "h100"}})
    assert api.plan(experiment, devices=2).plan.world_size == 2
    assert api.compare_planners(experiment, devices=2).judge == "the cost model"
