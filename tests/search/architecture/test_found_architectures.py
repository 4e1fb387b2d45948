"""What is told of a search: by two clocks, of trials of older versions, and where each method begins."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.search.architecture.conftest import small_config
from tests.training.conftest import MakeExperiment
from ziggurat.core.sealed import write_sealed_json
from ziggurat.search.architecture.clock import Spent
from ziggurat.search.architecture.drawings import pareto_front
from ziggurat.search.architecture.feasible import Limits
from ziggurat.search.architecture.found import FoundArchitectures, write_best
from ziggurat.search.architecture.page import render
from ziggurat.search.architecture.records import TRIALS_FILE, ArchitectureTrial, read_trials
from ziggurat.search.architecture.space.whole_space import WholeSpace
from ziggurat.search.architecture.strategies import POPULATION, Evolution, Method, strategy_of
from ziggurat.training.preparation import prepare

METHODS: tuple[Method, ...] = ("random", "evolution", "tpe")


def trial(number: int, value: float | None, flops: float = 1.0, **changes: float) -> ArchitectureTrial:
    made = ArchitectureTrial(number, {}, {"flops": flops}, "complete", value, {}, 3, 0.0)
    return dataclasses.replace(made, **changes)  # pyright: ignore[reportArgumentType]


def small_space(make_experiment: MakeExperiment) -> WholeSpace:
    experiment, config = make_experiment(), small_config()
    return WholeSpace(config.space, config.tables, experiment, prepare(experiment).schema)


@pytest.mark.parametrize(("own", "keeps"), [(0.4, True), (0.5, True), (0.6, False)])
def test_a_config_that_nothing_beats_is_kept_aloud(make_experiment: MakeExperiment, own: float, keeps: bool) -> None:
    trials = trial(0, own, 9.0), trial(1, 0.5, 8.0)
    found = FoundArchitectures("exp", "random", "log_loss", False, (), {"flops": 9.0}, trials, trials[1])
    assert bool(found.keeps_config) is keeps
    assert ("Keep the config." in render(found)) is keeps
    write_best(Path("best.yaml"), make_experiment(), found)
    assert ("Keep the config." in Path("best.yaml").read_text().splitlines()[0]) is keeps
    assert bool(dataclasses.replace(found, higher_is_better=True).keeps_config) is (own >= 0.5)


def test_trainings_are_a_ratio_of_processor_seconds() -> None:
    """Of the super-net and all trials but the config as it is, whatever else the machine did meanwhile."""
    trials = (
        trial(0, 0.5, seconds=100.0, cpu_seconds=2.0),
        trial(1, 0.4, seconds=1.0, cpu_seconds=3.0),
        trial(2, None, seconds=1.0, cpu_seconds=4.0),
    )
    found = FoundArchitectures(
        "exp", "supernet", "log_loss", False, (), {}, trials, trials[1], supernet=Spent(5.0, 7.0)
    )
    assert found.search == Spent(7.0, 14.0)
    assert found.trainings == 7.0
    assert dataclasses.replace(found, trials=(trial(0, 0.5, seconds=9.0),)).trainings is None


def test_trials_of_a_version_without_processor_time_are_read(tmp_path: Path) -> None:
    made = trial(1, 0.5, seconds=5.0)
    stored = {name: each for name, each in dataclasses.asdict(made).items() if name != "cpu_seconds"}
    write_sealed_json(tmp_path / TRIALS_FILE, {"trials": [stored]})
    assert read_trials(tmp_path) == [made]


def test_the_front_has_what_no_other_trial_beats_in_cost_and_value() -> None:
    trials = [trial(0, 0.5, 4.0), trial(1, 0.6, 3.0), trial(2, 0.7, 3.5), trial(3, 0.45, 9.0), trial(4, 0.5, 9.0)]
    assert [each.number for each in pareto_front(trials, "flops", higher_is_better=False)] == [1, 0, 3]
    assert [each.number for each in pareto_front(trials, "flops", higher_is_better=True)] == [1, 2]


def test_methods_begin_with_architectures_of_their_own_and_soon_choose(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    """With ten trainings, a method whose first eight are those of random search is random search."""
    space = small_space(make_experiment)
    limits = space.own_costs()
    proposed: dict[str, list[dict[str, int]]] = {}
    for method in METHODS:
        (tmp_path / method).mkdir()
        strategy = strategy_of(method, space, limits, 0, tmp_path / method, higher_is_better=False)
        trials: list[ArchitectureTrial] = []
        for number in range(1, 8):
            trials.append(dataclasses.replace(trial(number, float(number)), choices=strategy.propose(trials)))
        proposed[method] = [each.choices for each in trials]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert proposed[METHODS[one]][0] != proposed[METHODS[other]][0]
    children = proposed["evolution"]
    for number in range(POPULATION, 7):  # a child differs in one decision from one of those that are alive
        parents = children[number - POPULATION : number]
        changed = [sum(children[number][name] != parent[name] for name in parent) for parent in parents]
        assert min(changed) == 1
    assert POPULATION == 4


def test_evolution_lets_the_oldest_die(make_experiment: MakeExperiment) -> None:
    """The first of five trials is by far the best, and can no longer be a parent."""
    space = small_space(make_experiment)
    limits: Limits = {name: 10 * cost for name, cost in space.own_costs().items()}
    best = {each.name: 0 for each in space.decisions}
    other = {each.name: len(each.choices) - 1 for each in space.decisions}
    trials = [
        dataclasses.replace(trial(number, float(number > 1)), choices=other if number > 1 else best)
        for number in range(1, POPULATION + 2)
    ]
    for seed in range(8):
        child = Evolution(space, limits, seed, higher_is_better=False).propose(trials)
        assert sum(child[name] != other[name] for name in child) == 1
