"""Batches whose weights sum to 0 contribute nothing, and data that weigh nothing are refused."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.training.conftest import MakeExperiment
from tests.training.test_train import tensors
from ziggurat.core.errors import DataError
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.training import api
from ziggurat.training.run_folder.metrics_log import read_metrics_log

STEPS = 12

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1}, "embeddings__l2": 0.1},
    "adam_on_all_rows": {"embeddings__optimizer": {"name": "adam", "rows": "all", "lr": 0.01, "l2": 0.1}},
    "beyond_memory": {
        "planning__beyond_memory": {"memory": "45kB"},
        "features__user__encoder": {"name": "hash", "rows": 4000},
        "evaluation__batch_size": 16,
    },
}
"""With momentum, weight decay or a penalty, even a gradient of 0 would move the weights."""


def weigh(log: Path, every: int) -> None:
    """Adds a column ``weight``: 1 in every so many lines, 0 in the others; 0 everywhere for 0."""
    header, *lines = log.read_text(encoding="utf-8").splitlines()
    weighted = [f"{line},{int(every > 0 and number % every == 0)}" for number, line in enumerate(lines)]
    log.write_text("\n".join([f"{header},weight", *weighted]) + "\n", encoding="utf-8")


def counted(dataset: Dataset, batch_size: int, seed: int) -> list[bool]:
    """Returns for each of the first steps whether a row of its batch has a weight."""
    loader = Loader(dataset.split("train"), dataset.schema, batch_size, shuffle=True, seed=seed, prefetch=0)
    batches = [batch for batch, _ in zip((b for b, _ in loader.epoch(Cursor())), range(STEPS), strict=False)]
    return [bool(batch.weights_B is not None and batch.weights_B.any()) for batch in batches]


@pytest.mark.parametrize("name", CONFIGS)
def test_only_batches_with_a_weight_change_anything(name: str, make_experiment: MakeExperiment, tmp_path: Path) -> None:
    """Every step is saved. Weights and states change, to the bit, in the steps whose batches weigh something."""
    weigh(tmp_path / "log.csv", 3)
    experiment = make_experiment(
        data__weight="weight", training__batch_size=2, training__max_steps=STEPS, training__save_every=1,
        training__keep=STEPS + 1, training__clip_norm=1.0, training__log_every=1, **CONFIGS[name],
    )  # fmt: skip
    expected = counted(api.prepare(experiment), 2, experiment.training.seed)
    assert 3 < sum(expected) < STEPS - 3
    outcome = api.train(experiment, "run")
    assert outcome.step == STEPS
    found = [tensors(Path("run"), step) for step in range(1, STEPS + 1)]
    changed = [
        any(not torch.equal(after[key], each) for key, each in before.items()) for before, after in pairwise(found)
    ]
    assert changed == expected[1:]
    logged = {
        row["step"]: row["loss"] for row in read_metrics_log(Path("run/metrics.jsonl")) if row["split"] == "train"
    }
    assert [step in logged for step in range(1, STEPS + 1)] == expected


def test_the_last_batch_of_an_epoch_may_be_a_row_without_weight(
    make_experiment: MakeExperiment, tmp_path: Path
) -> None:
    weigh(tmp_path / "log.csv", 2)
    make = lambda rows: make_experiment(  # noqa: E731
        data__weight="weight", training__batch_size=rows, training__epochs=3, training__weight_average=0.9
    )
    dataset = api.prepare(make(2), "prepared")
    rows = dataset.split("train").rows
    experiment = make(rows - 1)
    last = [not counted(dataset, rows - 1, seed)[-1] for seed in range(9)]
    assert any(last)
    experiment = experiment.model_copy(
        update={"training": experiment.training.model_copy(update={"seed": last.index(True)})}
    )
    outcome = api.train(experiment, "run", prepared="prepared")
    assert outcome.step == 6
    assert outcome.results is not None
    assert 0 < outcome.results["figures"]["test"]["log_loss"] < 1


def test_data_that_weigh_nothing_are_refused_at_preparation(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    weigh(tmp_path / "log.csv", 0)
    with pytest.raises(DataError, match=r"log\.csv: column 'weight': the weights of all [0-9,]+ training rows are 0"):
        api.prepare(make_experiment(data__weight="weight"))
