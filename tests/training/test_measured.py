"""This machine's measurements are found by whoever plans for it."""

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
from ziggurat.training.placement.cost_cache import kernel_folder, with_measured

LOCAL, OTHER = TopologyConfig(device="local"), TopologyConfig(device="cpu")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this machine's measurements, with a network that says it is from 1999."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = kernel_folder(torch.device("cpu"))
    network = CostNetwork.load(SHIPPED / NETWORK)
    network.origin["date"] = "1999-12-31"
    folder.mkdir(parents=True)
    network.save(folder / NETWORK)
    return folder


def test_planners_that_learn_have_them_where_the_plan_is_for_this_machine(own: Path) -> None:
    for planner in (AutoShard.Config(), BaselinePlanner.Config(by="lpt")):
        found = with_measured(PlanningConfig(planner=planner, topology=LOCAL), "cpu").planner
        assert found == planner.model_copy(update={"learned": own})
        elsewhere = PlanningConfig(planner=planner, topology=OTHER)
        assert with_measured(elsewhere, "cpu") == elsewhere
    named = PlanningConfig(planner=AutoShard.Config(learned=Path("mine")), topology=LOCAL)
    assert with_measured(named, "cpu") == named
    rules = PlanningConfig(planner=Rules.Config(), topology=LOCAL)
    assert with_measured(rules, "cpu") == rules
    shutil.rmtree(own)
    assert with_measured(PlanningConfig(topology=LOCAL), "cpu") == PlanningConfig(topology=LOCAL)


@pytest.mark.parametrize("planner", ["rules", "autoshard"])
def test_plans_side_by_side_are_judged_by_them_whoever_is_configured(
    own: Path, make_experiment: MakeExperiment, planner: str
) -> None:
    local = {"device": "local", "lookup_bandwidth": 1e10, "intra_bandwidth": 1e9}
    experiment = make_experiment(planning={"planner": {"name": planner}, "topology": local}, training__device="cpu")
    judge = api.compare_planners(experiment, devices=2, memory="1GB").judge
    assert "1999-12-31 (5 % off where held out)" in judge
    elsewhere = make_experiment(planning={"planner": {"name": planner}, "topology": {**local, "device": "cpu"}})
    assert "1999-12-31" not in api.compare_planners(elsewhere, devices=2, memory="1GB").judge


@pytest.mark.parametrize("planner", ["rules", "torchrec"])
def test_for_gpus_one_plans_where_there_are_none(make_experiment: MakeExperiment, planner: str) -> None:
    experiment = make_experiment(planning={"planner": {"name": planner}, "topology": {"device": "h100"}})
    assert api.plan(experiment, devices=2).plan.world_size == 2
    assert api.compare_planners(experiment, devices=2).judge == "the cost model"
