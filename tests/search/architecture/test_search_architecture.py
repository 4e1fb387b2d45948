"""Whole searches: what they train, choose and write, by each method; and that they resume and refuse."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.search.architecture.conftest import SMALL, small_config
from tests.training.conftest import MakeExperiment
from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.core.sealed import read_sealed_json
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.search.architecture.feasible import Limits, keeps, uniform_draw
from ziggurat.search.architecture.records import ArchitectureTrial
from ziggurat.search.architecture.search import DRAWN_FILE, search_architecture
from ziggurat.search.architecture.space.decision import chosen
from ziggurat.search.architecture.space.whole_space import WholeSpace
from ziggurat.search.architecture.strategies import Method, strategy_of
from ziggurat.search.same_search import DAMAGE
from ziggurat.training.evaluate_run import evaluate
from ziggurat.training.experiment import as_yaml, load_experiment, to_yaml
from ziggurat.training.preparation import prepare
from ziggurat.training.run_folder.run import open_run


def test_a_search_stops_resumes_and_writes_a_config_that_trains(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(training__epochs=1)
    config = small_config()
    stopped = search_architecture(experiment, config=config, stop_after=5)
    assert not stopped.finished
    assert [each.number for each in stopped.found.trials] == [0]
    searched = search_architecture(experiment, config=config)
    assert searched.finished
    found, best = searched.found, searched.found.best
    assert best is not None
    assert [each.state for each in found.trials] == ["complete"] * 2
    # What is reported was trained from scratch, within the limits.
    run = open_run(searched.folder / "trials" / "0001")
    assert run.results is not None
    assert best.value == run.results["figures"]["validation"]["log_loss"]
    assert all(best.costs[name] <= limit * (1 + 1e-9) for name, limit in found.limits.items())
    assert set(found.test) == {0, 1}
    written = load_experiment(searched.folder / "best.yaml")
    assert written.model == run.experiment.model
    assert written.embeddings == run.experiment.embeddings
    assert written.name == "small-architecture"
    # What is retrained are the first that were drawn, and the figures on test are those of the test split.
    drawn = read_sealed_json(searched.folder / DRAWN_FILE, DAMAGE)["drawn"]
    assert [each.choices for each in found.trials[1:]] == [each["choices"] for each in drawn[: config.retrained]]
    for number, figures in found.test.items():
        wanted = evaluate(searched.folder / "trials" / f"{number:04d}", "test").compute()
        assert figures == pytest.approx({name: wanted[name] for name in figures}, nan_ok=True)
    # Both clocks ran: in the super-net, and in every trial.
    assert found.search.seconds == found.supernet.seconds + best.seconds
    assert found.search.cpu_seconds == found.supernet.cpu_seconds + best.cpu_seconds
    assert found.trials[0].cpu_seconds > 0
    assert 0 < best.cpu_seconds < found.search.cpu_seconds
    assert found.trainings == found.search.cpu_seconds / found.trials[0].cpu_seconds
    page = (searched.folder / "search.html").read_text()
    assert "Probabilities over time" in page
    assert "top.1.width" in page
    again = search_architecture(experiment, config=config)  # nothing is left to do
    assert again.found.trials == found.trials
    assert (searched.folder / "search.html").read_text() == page
    with pytest.raises(RunFolderError, match=r"holds a search with another search\.drawn: 3 there, 4 here"):
        search_architecture(experiment, config=small_config(drawn=4))


def test_the_super_net_stops_after_as_many_passes_as_the_config(make_experiment: MakeExperiment) -> None:
    """The config as it is stops early, with a rate at which nothing improves; the super-net does not go on alone."""
    experiment = make_experiment(
        training__epochs=9, training__early_stopping={"patience": 1}, optimizer__lr=1e-9, embeddings__optimizer__lr=1e-9
    )
    searched = search_architecture(experiment, config=small_config(supernet={"warmup_epochs": 1}))
    own = searched.found.trials[0]
    rows, size = Dataset(next(Path("prepared").iterdir())).split("train").rows, experiment.training.batch_size
    passes = math.ceil(own.steps / math.ceil(rows / size))
    assert passes < 9
    assert searched.found.history[-1].step == (1 + passes) * math.ceil((rows - round(0.2 * rows)) / size)


@pytest.mark.parametrize("method", ["random", "evolution", "tpe"])
def test_other_methods_stay_within_the_limits_and_improve_where_they_can(
    make_experiment: MakeExperiment, tmp_path: Path, method: Method
) -> None:
    """The value of an architecture is the width of its top layer, which evolution and TPE can learn to lower."""
    experiment, config = make_experiment(), small_config()
    space = WholeSpace(config.space, config.tables, experiment, prepare(experiment).schema)
    limits = config.limits.resolved(space.own_costs())
    trials: list[ArchitectureTrial] = []
    strategy = strategy_of(method, space, limits, 0, tmp_path, higher_is_better=False)
    for number in range(1, 21):
        choices = strategy.propose(trials)
        if number == 12:  # as after the search was stopped
            strategy = strategy_of(method, space, limits, 0, tmp_path, higher_is_better=False)
            assert strategy.propose(trials) == choices
        assert keeps(space, choices, limits)
        values = chosen(space.decisions, choices)
        value = float(values["top.1.width"] + values["top.2.width"] + values["table.user.dim"])
        trials.append(ArchitectureTrial(number, choices, {}, "complete", value, {}, 0, 0.0))
    found = [each.value or 0.0 for each in trials]
    assert len({tuple(each.choices.items()) for each in trials}) > 10
    if method != "random":
        assert sum(found[12:]) / 8 < sum(found[:8]) / 8


def test_tpe_whose_proposals_exceed_the_limits_goes_on_as_if_it_had_not_been_stopped(
    make_experiment: MakeExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what it proposes, little keeps the limit, so that some of what is trained is no proposal of its own."""
    monkeypatch.setattr("ziggurat.search.architecture.strategies._DRAWS", 3)
    experiment, config = make_experiment(), small_config()
    space = WholeSpace(config.space, config.tables, experiment, prepare(experiment).schema)
    draws = [uniform_draw(space, 5, 0)(number) for number in range(200)]
    limits: Limits = {"flops": float(np.quantile([space.costs(each)["flops"] for each in draws], 0.1))}
    trials: list[ArchitectureTrial] = []
    strategy = strategy_of("tpe", space, limits, 0, tmp_path, higher_is_better=False)
    within = 0
    for number in range(1, 9):
        choices = strategy.propose(trials)
        anew = strategy_of("tpe", space, limits, 0, tmp_path, higher_is_better=False)
        assert anew.propose(trials) == choices
        strategy = anew
        assert keeps(space, choices, limits)
        within += strategy._proposed.number is not None  # pyright: ignore
        trials.append(ArchitectureTrial(number, choices, {}, "complete", float(number), {}, 0, 0.0))
    assert 0 < within < 8


def test_random_search_trains_goes_on_and_ends_with_its_budget(make_experiment: MakeExperiment) -> None:
    experiment = make_experiment(training__max_steps=2, training__epochs=1)
    first = search_architecture(experiment, config=small_config(), method="random", trials=1)
    more = search_architecture(experiment, config=small_config(), method="random", trials=2)
    assert more.found.trials[:2] == first.found.trials
    for budget in ({"seconds": 1e-9}, {"cpu_seconds": 1e-9}, {"trials": 99, "cpu_seconds": 1e-9}):
        ended = search_architecture(experiment, config=small_config(), method="random", **budget)
        assert ended.found.trials == more.found.trials


def test_the_command_predicts_and_searches(make_experiment: MakeExperiment) -> None:
    Path("exp.yaml").write_text(to_yaml(make_experiment(training__epochs=1)))
    Path("space.yaml").write_text(as_yaml({"search": {**SMALL, "limits": {"milliseconds": 1.0}}}))
    arguments = ["search", "architecture", "exp.yaml", "--space", "space.yaml"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(Path("cache").resolve()))
        unmeasured = CliRunner().invoke(app, arguments)
        assert isinstance(unmeasured.exception, ConfigError)
        assert "ziggurat doctor --architecture" in unmeasured.exception.hint
        measured = CliRunner().invoke(app, ["doctor", "--architecture", "exp.yaml", "--space", "space.yaml"])
        assert measured.exit_code == 0, measured.output
        ranks = CliRunner().invoke(app, [*arguments, "--dry-run", "--nproc", "2"])
        assert isinstance(ranks.exception, ConfigError)
        assert "measures on one process" in ranks.exception.problem
        other = CliRunner().invoke(app, [*arguments, "--dry-run", "--method", "random", "--trials", "3"])
        assert isinstance(other.exception, ConfigError)
        assert "a dry run measures the super-net" in other.exception.problem
        anew = CliRunner().invoke(app, [*arguments, "--prepared", "elsewhere", "--dry-run"])
        assert "preparations for those that keep fewer rows of a table, at most: 1 of " in anew.output, anew.output
        predicted = CliRunner().invoke(app, [*arguments, "--dry-run"])
        assert "in all:" in predicted.output, predicted.output
        assert "and the preparation of the data for each" in predicted.output
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 0, done.output
        assert "best.yaml" in done.output.replace("\n", "")
        assert "config as it is: validation" in " ".join(done.output.split())
        for option in ("--seconds", "--cpu-seconds"):
            refused = CliRunner().invoke(app, [*arguments, option, "5"])
            assert f"{option} 5.0: a super-net is one training" in str(refused.exception)


def test_a_config_that_cannot_be_searched_is_refused(make_experiment: MakeExperiment) -> None:
    with pytest.raises(ConfigError, match=r"training\.warm_start: cannot be combined"):
        search_architecture(make_experiment(training__warm_start={"run": "runs/a"}))
    with pytest.raises(ConfigError, match="--method random: trains until it is told to stop"):
        search_architecture(make_experiment(), method="random")
    with pytest.raises(ConfigError, match=r"limits\.flops: received 10, and the cheapest architectures"):
        search_architecture(
            make_experiment(training__epochs=1), config=small_config(limits={"flops": 10}), method="random", trials=1
        )


def test_costs_are_those_of_the_config_that_is_written(make_experiment: MakeExperiment) -> None:
    """To the last FLOP and byte, those of the maps from narrow vectors included."""
    experiment, config = make_experiment(), small_config()
    schema = prepare(experiment).schema
    space = WholeSpace(config.space, config.tables, experiment, schema)
    draw, widths = uniform_draw(space, 3, 0), set[int]()
    for number in range(8):
        choices = {name: 0 if name.endswith(".rows") else choice for name, choice in draw(number).items()}
        widths.update(choices[each.name] for each in space.decisions if each.name.endswith(".dim"))
        written = WholeSpace(config.space, config.tables, space.decoded(choices), schema).own_costs()
        assert {name: space.costs(choices)[name] for name in ("flops", "bytes")} == {
            name: written[name] for name in ("flops", "bytes")
        }
    assert len(widths) > 1


def test_hashed_tables_and_narrow_vectors_are_an_ordinary_config(make_experiment: MakeExperiment) -> None:
    experiment, config = make_experiment(), small_config()
    space = WholeSpace(config.space, config.tables, experiment, prepare(experiment).schema)
    choices = {each.name: 0 for each in space.decisions}
    user = next(each for each in space.decisions if each.name == "table.user.rows")
    choices["table.user.rows"] = user.choices.index(0.5)
    found = space.decoded(choices)
    dataset = prepare(found, folder="hashed")
    assert dataset.schema.rows["user"] == round(0.5 * space.schema.rows["user"])
    layout = found.layout(dataset.schema)
    costs = space.costs(choices)
    assert sum(spec.rows * spec.dim * 4 for spec in layout.tables) == costs["bytes"]
