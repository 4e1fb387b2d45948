"""Random rows that replace the data of a leaderboard in a smoke run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROWS = 3_000
COLUMNS = {"user": 40, "item": 90, "place": 7}


def stand_in(folder: Path) -> dict[str, Any]:
    """Writes the rows to ``folder``, and returns the changes (dotted key -> value) to an experiment that read them."""
    draw = np.random.default_rng(0)
    columns = {name: draw.integers(0, rows, ROWS) for name, rows in COLUMNS.items()}
    columns["age"] = draw.integers(18, 80, ROWS)
    for label in ("click", "buy"):
        columns[label] = (draw.random(ROWS) < 0.3).astype(np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(columns).write_csv(folder / "log.csv")
    return {
        "data": {
            "folder": str(folder),
            "source": {"name": "csv", "files": ["log.csv"]},
            "split": {"name": "random"},
            "labels": [{"name": "click"}, {"name": "buy"}],
        },
        "features": [
            *({"name": name, "kind": "categorical", "type": "integer"} for name in COLUMNS),
            {"name": "age", "kind": "numeric", "transforms": [{"name": "standardise"}]},
        ],
        "evaluation": {"slices": []},
        "embeddings.tables": {},
        "training.max_steps": 5,
        "training.batch_size": 256,
        "training.monitor": "log_loss",
    }
