"""The learned planner: placements fit into memory, swaps never worsen them, training improves them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from planning_kit import table, topology

from ziggurat.core.errors import ConfigError, DataError, NoFeasiblePlan
from ziggurat.core.plan import Plan
from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning import PlanEstimate, plan_tables
from ziggurat.planning.autoshard import weights
from ziggurat.planning.autoshard.baseline import Measure
from ziggurat.planning.autoshard.cost_network import EMBEDDING, CostNetwork
from ziggurat.planning.autoshard.costs import LearnedCosts, exchange_seconds
from ziggurat.planning.autoshard.features import FEATURES
from ziggurat.planning.autoshard.learned import learned_costs, learned_policy
from ziggurat.planning.autoshard.policy import Learner, Policy
from ziggurat.planning.autoshard.pool import statistics, table_pool, train_test_halves
from ziggurat.planning.autoshard.task import Task, greedy, improved_by_swaps
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.placement import Loads, items_of
from ziggurat.planning.problem import Problem
from ziggurat.planning.rules import WHOLE


def network() -> CostNetwork:
    """Returns a network whose time of a set is the sum of its embeddings plus one second."""
    zeros = {
        "table.0.weight": (128, FEATURES),
        "table.0.bias": (128,),
        "table.2.weight": (EMBEDDING, 128),
        "table.2.bias": (EMBEDDING,),
        "head.0.weight": (64, EMBEDDING),
        "head.0.bias": (64,),
        "head.2.weight": (1, 64),
        "head.2.bias": (1,),
    }
    weights = {name: np.zeros(shape, np.float32) for name, shape in zeros.items()}
    scale = np.full(EMBEDDING, np.log(np.expm1(1 / EMBEDDING)), np.float32)
    one, mean = np.array(1, np.float32), np.zeros(FEATURES, np.float32)
    others = {"fixed": one, "unit": one, "mean": mean, "std": mean + 1, "most": np.full(EMBEDDING, 9, np.float32)}
    return CostNetwork({**weights, "scale": scale, **others}, {})


def task(seed: int, items: int = 30, devices: int = 4, slack: float = 1.2) -> Task:
    draw = np.random.default_rng(seed)
    seconds, sizes = draw.pareto(1.5, items) + 0.1, draw.pareto(1.5, items) + 0.1
    free = max(sizes.sum() / devices * slack, sizes.max())
    return Task(
        network(),
        np.repeat(seconds[:, None], EMBEDDING, 1),
        sizes,
        np.zeros(items),
        np.full(devices, free),
        np.zeros((devices, EMBEDDING)),
        np.zeros(devices),
    )


def test_loads_are_those_of_all_items_on_a_device() -> None:
    found = task(0, items=6, devices=2)
    device_N = np.array([0, 1, 0, 0, 1, 0])
    alone = found.single_N - 1
    assert found.loads(device_N) == pytest.approx([1 + alone[[0, 2, 3, 5]].sum(), 1 + alone[[1, 4]].sum()])
    assert found.overflow(np.zeros(6, int)) == pytest.approx(found.bytes_N.sum() - found.free_D[0])


@pytest.mark.parametrize("seed", range(8))
def test_placements_fit_into_memory_and_swaps_never_worsen_them(seed: int) -> None:
    found = task(seed)
    played = Policy.untrained().place(found, 8, np.random.default_rng(seed)).device_PN
    legal = [each for each in [greedy(found), greedy(found, found.bytes_N), *played] if not found.overflow(each)]
    assert legal
    for device_N in legal:
        better = improved_by_swaps(found, device_N)
        assert not found.overflow(better)
        assert found.seconds(better) <= found.seconds(device_N)
        assert sorted(np.unique(better)) == list(range(4))


def test_swaps_find_the_even_split() -> None:
    seconds = np.array([5.0, 4, 3, 2])
    found = task(0, items=4, devices=2, slack=10)
    even = Task(
        found.network, np.repeat(seconds[:, None], EMBEDDING, 1), found.bytes_N, found.exchange_N, found.free_D,
        found.sums_DE, found.exchange_D,
    )  # fmt: skip
    assert even.seconds(improved_by_swaps(even, np.zeros(4, int))) == pytest.approx(1 + 7)


def test_rewards_count_the_slowest_device_and_exceeded_memory() -> None:
    found = task(1, slack=3)
    played = Policy.untrained().place(found, 5, np.random.default_rng(0))
    even = found.single_N.sum() / found.devices
    for device_N, reward in zip(played.device_PN, played.reward_P, strict=True):
        assert reward == pytest.approx(-found.seconds(device_N) / even)
    overloaded = Task(
        found.network, found.embedded_NE, found.bytes_N, found.exchange_N, found.free_D * 0.1, found.sums_DE,
        found.exchange_D,
    )  # fmt: skip
    assert (Policy.untrained().place(overloaded, 5, None).reward_P < -5).all()


def test_a_device_without_enough_memory_is_never_allowed() -> None:
    found = task(2, slack=1.1)
    played = Policy.untrained().place(found, 6, np.random.default_rng(0), learning=True)
    assert played.inputs is not None
    _, allowed, choices = played.inputs
    assert not allowed.all()
    assert np.take_along_axis(allowed, choices[..., None], 2).all()


def test_there_is_nothing_to_learn_if_only_one_device_has_room() -> None:
    """If the scores of the other devices were in the loss, their entropy would change the weights."""
    free = task(3, items=8, slack=10)
    only = np.array([free.bytes_N.sum(), 0, 0, 0])
    forced = Task(
        free.network, free.embedded_NE, free.bytes_N, free.exchange_N, only, free.sums_DE, free.exchange_D
    )  # fmt: skip
    for each, moves in ((forced, False), (free, True)):
        learner = Learner(before := Policy.untrained())
        learner.learn([each], 8)
        after = learner.policy.weights
        assert any((after[name] != weight).any() for name, weight in before.weights.items()) == moves


def test_training_makes_placements_better() -> None:
    """Training starts from a policy without the initial greed, which places at random."""
    tasks = [task(seed, items=15, devices=3, slack=3) for seed in range(4)]
    start = Policy.untrained()
    start.weights["greed"] = np.zeros_like(start.weights["greed"])
    learner = Learner(start)
    for _ in range(60):
        learner.learn(tasks, 16)
    before, after = (
        np.mean([policy.place(each, 64, np.random.default_rng(1)).reward_P.mean() for each in tasks])
        for policy in (start, learner.policy)
    )
    assert after > before + 0.1


def test_a_policy_is_saved_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy.untrained(3)
    policy.origin["rounds"] = 0
    policy.save(tmp_path / "policy.safetensors")
    loaded = Policy.load(tmp_path / "policy.safetensors")
    assert loaded.origin == {"rounds": 0}
    assert (loaded.place(task(0), 1, None).device_PN == policy.place(task(0), 1, None).device_PN).all()
    (tmp_path / "policy.json").unlink()  # this file is only for users
    assert Policy.load(tmp_path / "policy.safetensors").origin == {"rounds": 0}
    with monkeypatch.context() as patched:
        patched.setattr(weights, "VERSION", 0)
        policy.save(tmp_path / "policy.safetensors")
    with pytest.raises(DataError, match=f"learned weights of version 0; this ziggurat reads {weights.VERSION}"):
        Policy.load(tmp_path / "policy.safetensors")


def test_a_plan_for_an_unmeasured_kind_of_device_is_refused() -> None:
    config = PlanningConfig.model_validate({"planner": {"name": "autoshard"}})
    with pytest.raises(ConfigError, match=r"autoshard has costs of .*, and the plan is for cuda devices") as caught:
        plan_tables([table("a", 100)], None, topology(kind="cuda"), config, 20)
    assert "ziggurat doctor --measure" in str(caught.value)


def test_a_folder_without_a_network_is_refused(tmp_path: Path) -> None:
    config = PlanningConfig.model_validate({"planner": {"name": "autoshard", "learned": str(tmp_path)}})
    with pytest.raises(ConfigError, match=r"planning.planner.learned: .* has no network.safetensors"):
        plan_tables([table("a", 100)], None, topology(kind="cpu"), config, 20)


def pool_problem(
    seed: int, tables: int, devices: int, optimizer: str, memory_factor: float = 4.0
) -> tuple[list[TableSpec], Topology, DatasetStatistics]:
    """Returns pool tables outside the training half, on devices whose exchanges take negligible time."""
    draw, pool = np.random.default_rng(seed), train_test_halves(table_pool())[1]
    chosen = [pool[place] for place in draw.choice(len(pool), tables, replace=False)]
    need = sum(each.weight_bytes * (2 if optimizer == "adagrad" else 1.1) for each in chosen)
    where = Topology(1, devices, "test", "cpu", int(memory_factor * need / devices + 2e8), 1e10, 1e15, 1e15)
    return [each.spec(optimizer) for each in chosen], where, statistics(chosen)


def predicted_seconds(planned: PlanEstimate, costs: LearnedCosts, counted: DatasetStatistics) -> float:
    """Returns the predicted seconds of the plan's slowest device."""
    problem = Problem(planned.tables, planned.topology, counted, planned.batch_size)
    return max(costs.device_seconds(problem, planned.plan))


def test_a_replicated_tables_gradient_is_in_its_costs() -> None:
    """Learned costs cover the kernel's look-ups; the cost model covers the whole gradient: 20 bytes a weight."""
    spec = table("small", 50_000)
    for lookup_bandwidth in (1e9, 1e10):
        where = Topology(1, 2, "test", "cpu", 10**12, lookup_bandwidth, 1e12, 1e12)
        problem = Problem((spec,), where, None, 256)
        plan = Plan(2, {}, 2).placed("small", "data_parallel", (0, 1))
        [(shard, cost), _] = problem.costs(spec, plan)
        sent = (cost.intra_bytes + cost.inter_bytes) / 1e12
        expected = 20 * shard.rows.size * shard.columns.size / lookup_bandwidth + sent
        assert exchange_seconds(problem, cost) == pytest.approx(expected)
        assert learned_costs(None).device_seconds(problem, plan)[0] > expected


@pytest.mark.parametrize(("tables", "devices"), [(20, 5), (60, 7), (120, 16), (300, 128)])
def test_the_shipped_policy_generalises_to_unseen_tables_and_device_counts(tables: int, devices: int) -> None:
    """The policy alone, without swaps and splits. It was trained on 2, 3, 4, 6 and 8 devices."""
    specs, where, counted = pool_problem(devices, tables, devices, "adagrad", max(6, devices / 2))
    problem = Problem(tuple(specs), where, counted, 64)
    items = [item for each in specs for item in items_of(problem, each, WHOLE)]
    found = learned_costs(None).task(problem, Plan(devices, {}, devices), items, Loads(problem))
    [device_N] = learned_policy(None).place(found, 1, None).device_PN
    assert not found.overflow(device_N)
    assert found.seconds(device_N) <= 1.05 * found.seconds(greedy(found))
    drawn = np.random.default_rng(0).integers(0, devices, len(items))
    assert found.seconds(device_N) < found.seconds(drawn)


@pytest.mark.parametrize("optimizer", ["sgd", "rowwise_adagrad"])
def test_by_its_own_costs_no_plan_is_worse_than_the_rules(optimizer: str) -> None:
    costs = learned_costs(None)
    for seed, (tables, devices, memory_factor) in enumerate([(20, 2, 4.0), (30, 4, 1.3), (12, 8, 4.0)]):
        specs, where, counted = pool_problem(seed, tables, devices, optimizer, memory_factor)
        settings = {"replicate_up_to": 1}
        ours, rules = (
            plan_tables(specs, counted, where, PlanningConfig.model_validate({"planner": planner}), 256)
            for planner in ({"name": "autoshard", **settings}, settings)
        )
        assert ours.notes[0].startswith("autoshard: ")
        by_ours, by_rules = (predicted_seconds(each, costs, counted) for each in (ours, rules))
        assert by_ours <= by_rules * (1 + 1e-9)
        for by in get_args(Measure):
            baseline = PlanningConfig.model_validate({"planner": {"name": "baseline", "by": by}})
            with contextlib.suppress(NoFeasiblePlan):  # whole tables may not fit if memory is tight
                rule = plan_tables(specs, counted, where, baseline, 256)
                assert by_ours <= predicted_seconds(rule, costs, counted) * (1 + 1e-9), by
        assert all(device.spare_bytes >= 0 for device in ours.devices)


@pytest.mark.parametrize(("dim", "optimizer"), [(128, "sgd"), (4, "sgd"), (128, "rowwise_adagrad")])
def test_one_table_that_dominates_all_others_is_split(dim: int, optimizer: str) -> None:
    """This includes tables whose number of columns or optimizer only allows a split by rows."""
    specs, where, counted = pool_problem(0, 6, 4, optimizer)
    heavy = TableSpec("heavy", 200_000, dim, ("heavy",), "sum", {"name": optimizer, "lr": 0.1}, 0.01)
    accesses = {**counted.tables, "heavy": TableStatistics("heavy", 200_000, np.full(200_000, 400, np.int64))}
    config = PlanningConfig.model_validate({"planner": {"name": "autoshard", "replicate_up_to": 1}})
    both = DatasetStatistics(counted.rows, {}, tables=accesses)
    planned = plan_tables([*specs, heavy], both, where, config, 256)
    placement = planned.plan.placements["heavy"]
    assert len(placement.ranks) > 1
    if (dim, optimizer) != (128, "sgd"):
        assert placement.sharding == "row_wise"


def test_a_table_that_the_rules_split_may_stay_whole() -> None:
    """By the cost model one table is too much for a device; by measured costs it is not."""
    draw, pool = np.random.default_rng([2, 5]), train_test_halves(table_pool())[1]
    draw.uniform()
    chosen = [pool[place] for place in sorted(draw.choice(len(pool), 21, replace=False))]
    where = Topology(1, 2, "test", "cpu", 10**12, 1e10, 1e15, 1e15)
    specs, counted = [each.spec("adagrad") for each in chosen], statistics(chosen)
    ours, rules = (
        plan_tables(specs, counted, where, PlanningConfig.model_validate({"planner": planner}), 768)
        for planner in ({"name": "autoshard", "replicate_up_to": 1}, {"replicate_up_to": 1})
    )
    costs = learned_costs(None)
    split = {name for name, each in rules.plan.placements.items() if len(each.ranks) > 1}
    assert predicted_seconds(ours, costs, counted) < predicted_seconds(rules, costs, counted)
    assert any(len(ours.plan.placements[name].ranks) == 1 for name in split)
