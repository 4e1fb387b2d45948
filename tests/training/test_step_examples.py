"""The examples by which a plan is made are those that training batches read and look up."""

from __future__ import annotations

from pathlib import Path

import pytest

import ziggurat
from tests.training.conftest import MakeExperiment
from ziggurat.core.topology import Topology
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.down_sampling import down_sampled
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.training.in_batch_negatives import rows_read
from ziggurat.training.placement.problem import planning_input

WORLD = 2
NEGATIVES = {"name": "in_batch", "user": "user", "item": "item", "item_columns": ["age", "tags"], "per_positive": 3}
TOPOLOGY = Topology(1, WORLD, "test", "cpu", 10**9, 1e10, 1e9, 1e9)


def test_in_batch_negatives_repeat_what_was_read(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    experiment = make_experiment(data__negatives=NEGATIVES, training__batch_size=64)
    ziggurat.prepare(experiment, tmp_path / "prepared")
    tables = experiment.layout(Dataset(tmp_path / "prepared").schema).tables
    problem = planning_input(experiment, TOPOLOGY, tables, tmp_path / "prepared", tmp_path / "run").problem
    assert (problem.batch_size, problem.looked_up) == (32, 32)
    assert problem.read == rows_read(64, experiment.data.negatives, WORLD) / WORLD == 8


def test_dropped_negatives_are_not_looked_up(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    experiment = make_experiment(training__negative_rate=0.25, training__batch_size=64)
    ziggurat.prepare(experiment, tmp_path / "prepared")
    dataset = Dataset(tmp_path / "prepared")
    tables = experiment.layout(dataset.schema).tables
    problem = planning_input(experiment, TOPOLOGY, tables, tmp_path / "prepared", tmp_path / "run").problem
    loader = Loader(dataset.split("train"), dataset.schema, 64, shuffle=True, prefetch=0)
    batches = down_sampled(loader.epoch(Cursor()), loader.steps(Cursor()), 0.25, 0, 0)
    left = sum(batch.size for batch, _ in batches) / loader.rows
    assert problem.batch_size == 32
    assert problem.looked_up == problem.read == pytest.approx(32 * left, rel=0.1)
