from __future__ import annotations

import csv
import functools
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.progress import Silent
from ziggurat.training.experiment import Experiment

ROWS = 3000


class RecordedNotes(Silent):
    """A progress that records the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def write_log(path: Path, rows: int = ROWS, seed: int = 0) -> None:
    """Writes a log whose labels depend on the user, the item, a bag and a number; it has every kind of feature."""
    path.write_text(_log(rows, seed), encoding="utf-8", newline="")


@functools.lru_cache(maxsize=8)
def _log(rows: int, seed: int) -> str:
    random = np.random.default_rng(seed)
    users, items = random.integers(0, 40, rows), random.integers(0, 60, rows)
    user_vectors, item_vectors = random.normal(size=(40, 3)), random.normal(size=(60, 3))
    age = random.normal(40, 12, rows)
    tags = [sorted(set(random.integers(0, 8, random.integers(0, 4)).tolist())) for _ in range(rows)]
    history = [random.integers(0, 60, random.integers(0, 6)).tolist() for _ in range(rows)]
    logit = (
        (user_vectors[users] * item_vectors[items]).sum(1)
        + random.normal(size=60)[items]
        + 0.03 * (age - 40)
        + np.array([(0 in t) - (1 in t) for t in tags])
    )
    click = (random.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    buy = (random.random(rows) < 1 / (1 + np.exp(1 - logit))).astype(int)
    text = io.StringIO()
    out = csv.writer(text)
    out.writerow(["user", "item", "age", "tags", "history", "click", "buy", "when", "note"])
    for i in range(rows):
        shown_age = "" if i % 17 == 0 else f"{age[i]:.2f}"
        bags = ("|".join(map(str, ids)) for ids in (tags[i], history[i]))
        out.writerow([f"u{users[i]}", items[i], shown_age, *bags, click[i], buy[i], 1000 + i, f"row {i}, quoted"])
    return text.getvalue()


def config_values(folder: Path) -> dict[str, Any]:
    return {
        "name": "small",
        "data": {
            "folder": str(folder),
            "source": {"name": "csv", "files": ["log.csv"]},
            "split": {"name": "random", "validation": 0.15, "test": 0.15},
            "labels": [{"name": "click"}],
            "group": "user",
            "block_rows": 256,
        },
        "features": [
            {"name": "user", "kind": "categorical"},
            {"name": "item", "kind": "categorical", "type": "integer"},
            {"name": "age", "kind": "numeric", "transforms": [{"name": "standardise"}]},
            {"name": "tags", "kind": "bag", "type": "integer"},
            {"name": "history", "kind": "sequence", "type": "integer", "last": 3, "table": "item"},
        ],
        "embeddings": {"dim": 8, "optimizer": {"name": "rowwise_adagrad", "lr": 0.1}},
        "model": {"name": "deepfm", "deep": {"hidden": [32, 16]}},
        "training": {"batch_size": 128, "epochs": 4, "seed": 3, "log_every": 5},
        "evaluation": {"slices": ["user"]},
    }


MakeExperiment = Callable[..., Experiment]


@pytest.fixture
def make_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeExperiment:
    """Returns a function that makes experiments over one small log; keyword ``a__b=c`` sets key ``a.b``.

    The working directory is an empty folder.
    """
    write_log(tmp_path / "log.csv")
    monkeypatch.chdir(tmp_path)

    def make(**changes: Any) -> Experiment:
        values = config_values(tmp_path)
        for path, value in changes.items():
            set_by_path(values, path.replace("__", "."), value)
        return parse_config(Experiment, values)

    return make
