"""Reads a workload folder, which has `workload.json` and `train.parquet` and is written by `bench/workloads.py`.

This module imports only numpy and pyarrow, so that it works in every contestant's environment.
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
TRAIN, HELD_OUT = "train.parquet", "held_out.parquet"


@dataclass(frozen=True)
class Workload:
    """One training task, the same for every contestant.

    Attributes:
        name: the name shown in the results.
        tables: feature name -> rows of its table; ids are in ``[0, rows)``.
        dim: the embedding dimension.
        hidden: the widths of the MLP.
        batch_size: the rows per step.
        lr: the learning rate of Adam.
        source: the origin of the rows, for the notes.
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


def columns(folder: Path, file: str = TRAIN) -> dict[str, npt.NDArray[Any]]:
    """Returns the columns of the training rows, or of a workload's other file: features as int32, label as float32."""
    table = pq.read_table(folder / file)
    return {name: np.asarray(table[name].to_numpy()) for name in table.column_names}
