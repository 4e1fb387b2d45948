"""Writes the training tasks of the throughput benchmark as folders that every contestant can read.

`frappe` has ten categorical columns of app usage, from `--data` or generated with the same shape, and rows held out.
`tables` has 26 tables of 200,000 rows with Zipf-distributed ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from bench.peers.workload import HELD_OUT, LABEL, TRAIN, Workload
from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_folder

BATCH_SIZE = 4096
DIM = 16
HIDDEN = {
    "frappe": [400, 400, 400],  # as on the BARS board
    "tables": [256, 128],  # the default of DeepCTR-Torch and of ziggurat, as this task is about the tables
}
LR = 0.001
ZIPF_EXPONENT = 1.05

FRAPPE_TABLES = {
    "user": 957, "item": 4082, "daytime": 7, "weekday": 7, "isweekend": 2,
    "homework": 3, "cost": 2, "weather": 9, "country": 80, "city": 233,
}  # fmt: skip
FRAPPE_ROWS = 202_027


def frappe(folder: Path, data: Path | None, quick: bool) -> Workload:
    """Writes the Frappe task to ``folder``, with the rows in ``data`` or, if that is None, generated rows.

    Raises:
        DataError: ``data`` lacks ``train.parquet`` or ``test.parquet``, or these lack a column.
    """
    if data is None:
        rows = 4 * BATCH_SIZE if quick else FRAPPE_ROWS
        columns = generate(FRAPPE_TABLES, rows + rows // 7, seed=1)
        held_out = {name: cells[rows:] for name, cells in columns.items()}
        columns = {name: cells[:rows] for name, cells in columns.items()}
        source = f"a generated stand-in of Frappe's shape, {rows:,} rows"
    else:
        limit = 4 * BATCH_SIZE if quick else None
        columns, held_out = _read_frappe(data / "train.parquet", limit), _read_frappe(data / "test.parquet", limit)
        source = f"Frappe, {len(columns[LABEL]):,} training rows"
    return _write(folder, "frappe", FRAPPE_TABLES, columns, source, held_out)


def tables(folder: Path, quick: bool, batches: int = 50) -> Workload:
    """Writes the 26-table task to ``folder``, with rows for ``batches`` batches."""
    table_rows, rows = (2_000, 2 * BATCH_SIZE) if quick else (200_000, batches * BATCH_SIZE)
    shape = {f"c{i}": table_rows for i in range(26)}
    source = f"generated: 26 tables of {table_rows:,} rows, Zipf({ZIPF_EXPONENT}) ids, {rows:,} rows"
    return _write(folder, "tables", shape, generate(shape, rows, seed=2), source)


def generate(shape: Mapping[str, int], rows: int, seed: int) -> dict[str, npt.NDArray[np.generic]]:
    """Returns Zipf-distributed ids for every table and a label that depends on them, equal for equal arguments."""
    random = np.random.default_rng(seed)
    columns: dict[str, npt.NDArray[np.generic]] = {}
    logit = np.zeros(rows)
    for name, table_rows in shape.items():
        weights = np.arange(1, table_rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT
        rank = np.searchsorted(np.cumsum(weights), random.random(rows) * weights.sum())
        ids = random.permutation(table_rows)[np.minimum(rank, table_rows - 1)]  # frequent ids are spread
        logit += random.normal(size=table_rows)[ids]
        columns[name] = ids.astype(np.int32)
    columns[LABEL] = (random.random(rows) < 1 / (1 + np.exp(-logit / np.sqrt(len(shape))))).astype(np.float32)
    return columns


def _read_frappe(path: Path, limit: int | None) -> dict[str, npt.NDArray[np.generic]]:
    try:
        frame = pl.read_parquet(path, n_rows=limit)
    except FileNotFoundError:
        raise DataError(
            f"{path}: missing", "give --data a folder with Frappe's train.parquet and test.parquet"
        ) from None
    missing = [name for name in (LABEL, *FRAPPE_TABLES) if name not in frame.columns]
    if missing:
        raise DataError(
            f"{path}: lacks {', '.join(missing)}", "give --data a folder with Frappe's train.parquet and test.parquet"
        )
    first = dict(zip(FRAPPE_TABLES, np.cumsum([0, *FRAPPE_TABLES.values()]), strict=False))  # columns share an id space
    columns = {name: frame[name].to_numpy() - start for name, start in first.items()}
    for name, ids in columns.items():
        if ids.min() < 0 or ids.max() >= FRAPPE_TABLES[name]:
            raise DataError(
                f"{path}: column {name!r} holds ids outside Frappe's", "give --data the BARS split of Frappe"
            )
    return {
        **{name: ids.astype(np.int32) for name, ids in columns.items()},
        LABEL: frame[LABEL].to_numpy().astype(np.float32),
    }


def _write(
    folder: Path,
    name: str,
    shape: Mapping[str, int],
    columns: Mapping[str, npt.NDArray[np.generic]],
    source: str,
    held_out: Mapping[str, npt.NDArray[np.generic]] | None = None,
) -> Workload:
    workload = Workload(name, dict(shape), DIM, HIDDEN[name], BATCH_SIZE, LR, source)
    with atomic_folder(folder) as place:
        pl.DataFrame(dict(columns)).write_parquet(place / TRAIN)
        if held_out is not None:
            pl.DataFrame(dict(held_out)).write_parquet(place / HELD_OUT)
        (place / "workload.json").write_text(json.dumps(asdict(workload), indent=2) + "\n", encoding="utf-8")
    return workload
