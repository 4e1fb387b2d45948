"""Random rows that replace the data of a leaderboard in a smoke run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROWS = 3_000
COLUMNS = {"user": 40, "item": 90, "place": 7}


def stand_in(folder: Path, numbers: bool = False) -> dict[str, Any]:
    """Writes the rows to ``folder``, and returns the changes (dotted key -> value) to an experiment that read them.

    Args:
        folder: the folder for the rows.
        numbers: whether the label is a number, as on the leaderboard; otherwise two labels are binary.
    """
    draw = np.random.default_rng(0)
    columns = {name: draw.integers(0, rows, ROWS) for name, rows in COLUMNS.items()}
    columns["age"] = draw.integers(18, 80, ROWS)
    for label in ("click", "buy"):
        columns[label] = (draw.random(ROWS) < 0.3).astype(np.int64)
    columns["stars"] = draw.integers(1, 6, ROWS)
    folder.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(columns).write_csv(folder / "log.csv")
    return {
        "data": {
            "folder": str(folder),
            "source": {"name": "csv", "files": ["log.csv"]},
            "split": {"name": "random"},
            "labels": [{"name": "stars", "kind": "regression"}] if numbers else [{"name": "click"}, {"name": "buy"}],
        },
        "features": [
            *({"name": name, "kind": "categorical", "type": "integer"} for name in COLUMNS),
            {"name": "age", "kind": "numeric", "transforms": [{"name": "standardise"}]},
        ],
        "evaluation": {"slices": []},
        "embeddings.tables": {},
        "training.max_steps": 5,
        "training.batch_size": 256,
        "training.monitor": "rmse" if numbers else "log_loss",
    }
