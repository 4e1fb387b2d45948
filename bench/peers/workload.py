"""What a driver finds in a workload folder: `workload.json` and `train.parquet`. Written by `bench/workloads.py`.

Needs numpy and pyarrow only, so that every environment can read it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

LABEL = "label"


@dataclass(frozen=True)
class Workload:
    """One training task, the same for every contestant.

    Attributes:
        name: shown in the results.
        tables: feature name -> rows of its table; ids lie in ``[0, rows)``.
        dim: floats per embedding.
        hidden: widths of the MLP.
        batch_size: rows per step.
        lr: learning rate of Adam.
        source: what the rows are, for the notes.
    """

    name: str
    tables: dict[str, int]
    dim: int
    hidden: list[int]
    batch_size: int
    lr: float
    source: str

    @classmethod
    def read(cls, folder: Path) -> Workload:
        return cls(**json.loads((folder / "workload.json").read_text(encoding="utf-8")))


def columns(folder: Path) -> dict[str, npt.NDArray[Any]]:
    """The training rows, column by column: features int32, label float32."""
    table = pq.read_table(folder / "train.parquet")
    return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}
