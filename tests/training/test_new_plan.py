"""Look-ups ahead of a resume: what is counted, when a new plan is taken by them, and how they are stored."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.training.test_offloaded_run import ITEMS, USERS, large_values, write_large_log
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.core.plan import Plan
from ziggurat.core.topology import Topology
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.planning.flexshard import FlexShard
from ziggurat.planning.problem import Problem
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.placement import new_plan
from ziggurat.training.placement.counted_lookups import count_lookups, planned_statistics, read_lookups
from ziggurat.training.placement.new_plan import recounted
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.run_folder.run_files import LOOKUPS_FILE, RunFiles
from ziggurat.verification.verify import verify

STEP = 5
FLEXSHARD = {"name": "flexshard", "tables": ["user", "item"], "extra_memory": None}
TOPOLOGY = Topology(2, 2, "test", "cpu", 10**9, 1e10, 1e9, 1e8)


def wanted(folder: Path, when: str = "never", **training: Any) -> Experiment:
    values = large_values(folder)
    values["features"][2]["pooling"] = {"name": "target_attention", "target": "item"}
    values["training"] |= {"max_steps": 2 * STEP, "evaluate_every": 99, "device": "cpu", **training}
    values["planning"] = {"new_plan": when, "planner": FLEXSHARD}
    return parse_config(Experiment, values)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a run that stopped after some steps."""
    path = tmp_path_factory.mktemp("ahead")
    write_large_log(path / "log.csv")
    api.train(wanted(path), path / "run", prepared=path / "prepared", stop_after=STEP)
    return path


def plan_of(folder: Path, **settings: Any) -> Plan:
    """Returns FlexShard's plan by the counts of preparation."""
    dataset = Dataset(folder / "prepared")
    problem = Problem(wanted(folder).layout(dataset.schema).tables, TOPOLOGY, dataset.statistics(), 64)
    return FlexShard(FlexShard.Config.model_validate({**FLEXSHARD, **settings})).plan(problem)


def again(
    folder: Path, when: str, ranks: dict[str, Any] | None = None, plan: Plan | None = None, **training: Any
) -> Any:
    experiment, dataset = wanted(folder, when, **training), Dataset(folder / "prepared")
    layout = experiment.layout(dataset.schema)
    statistics = planned_statistics(dataset.statistics(), RunFiles.open(folder / "run"))
    problem = Problem(layout.tables, TOPOLOGY, statistics, 64)
    return recounted(experiment, layout, plan, ranks, statistics, folder / "prepared", folder / "run", problem)


def test_an_epoch_is_counted_as_preparation_counts_it(folder: Path) -> None:
    dataset = Dataset(folder / "prepared")
    loader = Loader(dataset.split("train"), dataset.schema, 16, shuffle=True, prefetch=0)
    counts, examples = count_lookups(
        (batch for batch, _ in loader.epoch(Cursor())), wanted(folder).layout(dataset.schema)
    )
    assert examples == loader.rows
    for name, table in dataset.statistics().tables.items():
        assert np.array_equal(counts[name], table.accesses), name


def test_a_plan_is_kept_unless_lookups_move_or_it_is_asked_for(folder: Path) -> None:
    plan = plan_of(folder)
    assert all(each.copied_rows or each.host_rows for each in plan.placements.values())
    assert again(folder, "never", plan=plan) is None
    assert again(folder, "drifted", plan=plan) is None
    always = again(folder, "always", plan=plan)
    assert always.note.endswith("from step 5 on: as asked for")
    rows = Dataset(folder / "prepared").statistics().rows["train"]
    assert always.counts["user"].sum() == pytest.approx(rows, rel=0.02)  # one look-up an example
    turned = {name: np.arange(rows - 1, -1, -1, dtype=np.int32) for name, rows in (("user", USERS), ("item", ITEMS))}
    moved = again(folder, "drifted", turned, plan)
    assert "table 'user': other copies save " in moved.note


def test_a_plan_without_copies_gives_way_where_copies_would_save(folder: Path) -> None:
    """No look-up can move away from copied rows where there are none."""
    moved = again(folder, "drifted", plan=plan_of(folder, least_gain=0.99))
    assert "other copies save " in moved.note


def test_look_ups_ahead_are_counted_not_those_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_plan, "COUNTED_EXAMPLES", 64)
    found, dataset, experiment = again(folder, "always"), Dataset(folder / "prepared"), wanted(folder)
    config = experiment.training
    loader = Loader(
        dataset.split("train"), dataset.schema, config.batch_size, shuffle=True, seed=config.seed, prefetch=0
    )
    ahead = [batch for batch, _ in islice(loader.epoch(Cursor()), STEP, STEP + 64 // config.batch_size)]
    counts, examples = count_lookups(ahead, experiment.layout(dataset.schema))
    assert f"counted in the next {examples:,} examples from step {STEP} on" in found.note
    for name, each in counts.items():
        assert np.array_equal(found.counts[name], np.rint(each * dataset.statistics().rows["train"] / examples)), name


def test_for_other_ranks_lookups_ahead_are_counted_if_it_is_asked_for(folder: Path) -> None:
    """The plan that is stored is for other ranks: a new one is made in any case, by default by the counts before."""
    assert again(folder, "never") is None
    assert again(folder, "drifted") is None
    assert again(folder, "always").note.endswith("from step 5 on: as asked for")


def test_rows_that_down_sampling_drops_are_not_counted(folder: Path) -> None:
    whole, fewer = again(folder, "always"), again(folder, "always", negative_rate=0.1)
    assert "examples from" in fewer.note
    assert whole.note != fewer.note


def test_training_rows_of_readers_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"planning\.new_plan=always: look-ups are counted in training rows on this"):
        again(folder, "always", readers=["grpc://nowhere:1"])


def test_counts_are_stored_and_damage_is_named(folder: Path) -> None:
    run = open_run(folder / "run")
    files, statistics = RunFiles.open(run.folder), Dataset(folder / "prepared").statistics()
    assert read_lookups(files) is None
    assert planned_statistics(statistics, files).tables["user"] is statistics.tables["user"]
    counts = {"user": np.arange(USERS, dtype=np.int64), "item": np.ones(ITEMS, np.int64)}
    files.write_arrays(LOOKUPS_FILE, counts)
    path = run.folder / LOOKUPS_FILE
    assert np.array_equal(planned_statistics(statistics, files).tables["user"].accesses, counts["user"])
    assert verify(run.folder).whole
    for wrong, message in (
        ({**counts, "user": counts["user"][:-1]}, f"counts of {USERS - 1:,} rows, but it has {USERS:,}"),
        ({**counts, "user": counts["user"] - 1}, "a row has -1 look-ups"),
    ):
        files.write_arrays(LOOKUPS_FILE, wrong)
        with pytest.raises(RunFolderError, match=message):
            read_lookups(files, statistics)
    save_file(load_file(path), path)
    with pytest.raises(RunFolderError, match=r"lookups\.safetensors: has no checksum"):
        read_lookups(files)
    assert not verify(run.folder).whole
    path.unlink()
