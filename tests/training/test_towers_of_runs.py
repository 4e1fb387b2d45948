"""Towers from runs whose features share other tables than those of the config; what is measured of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.conftest import MakeExperiment, config_values
from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Silent
from ziggurat.planning.usage import Usage
from ziggurat.training import api
from ziggurat.training.partitioning import partition, run_affinity
from ziggurat.training.partitioning.loads import feature_loads
from ziggurat.training.partitioning.partition import partition_towers
from ziggurat.training.partitioning.run_affinity import measure_affinity
from ziggurat.training.run_folder.run import Run

EACH = 8  # floats of a row


class Recorded(Silent):
    """A progress that records the stages and how often each advanced."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, float | None]] = []
        self.advanced: list[int] = []

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self.stages.append((stage, total))
        self.advanced.append(0)

    def advance(self, done: float, **figures: float | str) -> None:
        self.advanced[-1] += 1


def features(*, shared: bool, backwards: bool = False, age: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Returns features in which a history shares the table of its items, or has its own."""
    found = [dict(each) for each in config_values(Path())["features"]]
    if not shared:
        del found[-1]["table"]
    if age is not None:
        found[2] = {"name": "age", **age}
    return found[::-1] if backwards else found


def trained(make_experiment: MakeExperiment, name: str, **changes: Any) -> Run:
    changes = {"training__max_steps": 6, "training__device": "cpu", "evaluation__slices": [], **changes}
    return api.train(make_experiment(**changes), name, prepared=f"{name}-prepared").run


def test_features_may_share_other_tables_in_the_run(make_experiment: MakeExperiment) -> None:
    """Towers, loads and the order are those of the config, whichever way round."""
    runs = {shared: trained(make_experiment, str(shared), features=features(shared=shared)) for shared in (True, False)}
    separate = make_experiment(features=features(shared=False))
    found = partition_towers(separate, 4, run=runs[True])
    assert found.partition is not None
    assert sorted(map(len, found.partition.towers)) == [1, 1, 1, 1]
    again = partition_towers(separate, 4, run=runs[False])
    assert again.partition is not None
    for (name, load), (other, expected) in zip(_loads(found.partition), _loads(again.partition), strict=True):
        assert name == other
        assert load == pytest.approx(expected, rel=0.1)  # a shared table counts those of both
    together = make_experiment(features=features(shared=True, backwards=True))
    for seed in range(4):
        found = partition_towers(together, 3, run=runs[False], seed=seed)
        assert found.partition is not None
        assert any({"item", "history"} == set(tower) for tower in found.partition.towers)
        assert found.experiment is not None
    assert found.partition is not None
    places = [runs[False].dataset().schema.sparse.index(name) for name in found.partition.features]
    assert places != sorted(places)
    run = runs[False]
    measured_FF = measure_affinity(run, run.dataset(), run.experiment.layout(run.dataset().schema))
    np.testing.assert_array_equal(found.partition.affinity_FF, measured_FF[np.ix_(places, places)])


def _loads(found: partition.Partition) -> list[tuple[str, float]]:
    return sorted(zip(found.features, found.loads_F, strict=True))


def test_features_that_share_a_table_share_its_load(make_experiment: MakeExperiment) -> None:
    run = trained(make_experiment, "run")
    dataset = run.dataset()
    layout, statistics = run.experiment.layout(dataset.schema), dataset.statistics()
    loads = feature_loads(layout, layout, statistics)
    tables = {spec.name: Usage.of(spec, statistics).ids_per_row * EACH for spec in layout.tables}
    assert loads["item"] == loads["history"] == pytest.approx(tables["item"] / 2)
    assert loads["user"] == pytest.approx(tables["user"]) == EACH
    assert tables["item"] > 2 * EACH  # the history holds two items on average
    assert feature_loads(layout, layout, None) == dict.fromkeys(loads, float(EACH))


@pytest.mark.parametrize("numeric", ["run", "config"])
def test_features_with_a_table_in_the_run_alone_or_the_config_alone_are_refused(
    make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, numeric: str
) -> None:
    """Before anything is measured."""
    number, ids = features(shared=True), features(shared=True, age={"kind": "categorical"})
    run = trained(make_experiment, "run", features=number if numeric == "run" else ids)
    experiment = make_experiment(features=ids if numeric == "run" else number)
    monkeypatch.delattr(partition, "measure_affinity")
    there, here = "numeric without a table", "categorical with a table"
    if numeric == "config":
        there, here = here, there
    with pytest.raises(RunFolderError, match=f"run: 'age' is {there} in the run, {here} in the config") as caught:
        partition_towers(experiment, 2, run=run)
    assert "towers.partition" not in str(caught.value)


def test_the_best_checkpoint_is_measured_on_validation_rows(
    make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"training__evaluate_every": 17, "training__max_steps": 170, "training__epochs": 10}
    run = trained(make_experiment, "run", **changes, embeddings__optimizer={"name": "rowwise_adagrad", "lr": 1.0})
    dataset = run.dataset()
    layout, progress = run.experiment.layout(dataset.schema), Recorded()
    found = measure_affinity(run, dataset, layout, progress=progress)
    rows = dataset.split("validation").rows
    assert progress.stages == [("mean vectors on validation", rows), ("affinity on validation", rows)]
    assert run.checkpoints.resolve("best") != run.checkpoints.resolve("last")
    np.testing.assert_array_equal(found, measure_affinity(run, dataset, layout, checkpoint="best"))
    assert (found != measure_affinity(run, dataset, layout, checkpoint="last")).any()

    monkeypatch.setattr(run_affinity, "MOST_ROWS", 200)
    small = run.experiment.evaluation.model_copy(update={"batch_size": 64})
    few = Run(run.folder, run.experiment.model_copy(update={"evaluation": small}))
    measure_affinity(few, dataset, layout, progress=(progress := Recorded()))
    assert progress.advanced == [4, 4]  # batches of 64 until 200 rows are reached
    assert [total for _, total in progress.stages] == [200, 200]


def test_the_members_of_a_group_have_its_affinities(make_experiment: MakeExperiment) -> None:
    run = trained(make_experiment, "run", embeddings__groups=[{"features": ["user", "tags"]}])
    dataset = run.dataset()
    found = measure_affinity(run, dataset, layout := run.experiment.layout(dataset.schema))
    user, tags = (layout.schema.sparse.index(name) for name in ("user", "tags"))
    assert found[user, tags] == found[tags, user] == found[user, user] == found[tags, tags] == 1
    others = [number for number in range(len(found)) if number not in (user, tags)]
    assert found[user, others].min() > 0
    np.testing.assert_array_equal(found[user, others], found[tags, others])
    np.testing.assert_array_equal(found, found.T)
