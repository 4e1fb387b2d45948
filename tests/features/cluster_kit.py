"""A log with every kind of column and with bad rows, and a cluster to prepare it on."""

from __future__ import annotations

import gzip
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from feature_kit import Experiment, experiment, write_csv

ONE_HOT = {"name": "one_hot", "categories": 3}
FEATURES: list[dict[str, Any]] = [
    {"name": "user", "kind": "categorical", "type": "integer"},
    {"name": "city", "kind": "categorical", "encoder": {"name": "vocabulary", "min_count": 2, "oov_rows": 3}},
    {"name": "age", "kind": "numeric", "transforms": [{"name": "log"}, {"name": "standardise"}]},
    {"name": "price", "kind": "numeric", "transforms": [{"name": "quantile", "bins": 10}]},
    {"name": "age_bucket", "kind": "numeric", "column": "age", "transforms": [{"name": "bucketise", "bins": 4}]},
    {"name": "tags", "kind": "bag", "max_length": 3},
    {"name": "history", "kind": "sequence", "type": "integer", "last": 2, "table": "item"},
    {"name": "item", "kind": "categorical", "type": "integer", "encoder": {"name": "hash", "rows": 50}},
    {"name": "city_rate", "column": "city", "kind": "encoded", "encoding": {"name": "target"}},
    {"name": "user_hot", "column": "user", "kind": "encoded", "type": "integer", "encoding": ONE_HOT},
    {"name": "price_curve", "column": "price", "kind": "numeric", "transforms": [{"name": "spline", "knots": 3}]},
    {"name": "neither", "kind": "missing_together", "columns": ["age", "price"]},
    {"name": "pair", "kind": "crossed", "columns": ["user", "city"], "encoder": {"name": "vocabulary", "min_count": 2}},
]
FILES = {"a": 900, "b": 40, "c": 500}
"""Rows of each file; a twentieth of them are bad: a word in place of a price, or a label of 7."""


def columns_of(name: str, seed: int = 0) -> dict[str, list[Any]]:
    rows, random = FILES[name], np.random.default_rng([seed, ord(name)])

    def id_lists(length: int) -> list[str]:
        return ["|".join(str(i) for i in random.zipf(1.5, random.integers(0, length)) % 99) for _ in range(rows)]

    columns: dict[str, list[Any]] = {
        "user": random.integers(0, 60, rows).tolist(),
        "city": [None if random.random() < 0.1 else f"city {c}" for c in random.geometric(0.05, rows)],
        "age": [None if random.random() < 0.2 else int(a) for a in random.integers(1, 80, rows)],
        "price": [f"{p:.3f}" for p in random.lognormal(size=rows)],
        "tags": id_lists(5),
        "history": id_lists(4),
        "item": random.integers(0, 99, rows).tolist(),
        "click": random.choice([0, 1, 7], rows, p=[0.7, 0.27, 0.03]).tolist(),
        "t": random.integers(0, 300, rows).tolist(),
    }
    for row in random.choice(rows, rows // 50, replace=False):
        columns["price"][row] = "free"
    return columns


def write_log(folder: Path, kind: str = "csv") -> None:
    """Writes the log as ``csv``, ``gz`` or ``parquet`` (without words in place of prices, which its types exclude)."""
    for name in FILES:
        columns = columns_of(name)
        if kind == "parquet":
            prices = [0.0 if price == "free" else float(price) for price in columns["price"]]
            pq.write_table(pa.table({**columns, "price": prices}), folder / f"{name}.parquet", row_group_size=100)
            continue
        path = folder / f"{name}.csv"
        write_csv(path, columns)
        if kind == "gz":
            path.with_name(f"{name}.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()


def log_experiment(folder: Path, kind: str = "csv", **data: Any) -> Experiment:
    """Returns the configs of the log; blocks of 16 rows make files of 512 rows."""
    suffix = {"csv": ".csv", "gz": ".csv.gz", "parquet": ".parquet"}[kind]
    settings: dict[str, Any] = {
        "folder": str(folder),
        "source": {"name": "parquet" if kind == "parquet" else "csv", "files": [f"{name}{suffix}" for name in FILES]},
        "split": {"name": "random", "validation": 0.2, "test": 0.1},
        "on_bad_row": "quarantine",
        "group": "user",
        "time": "t",
        "block_rows": 16,
    }
    return experiment(FEATURES, **{**settings, **data})


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


class LocalCluster:
    """A cluster without workers: it processes a few items at a time, in reverse order, and pickles everything.

    Attributes:
        items: number of items processed.
    """

    def __init__(self) -> None:
        self.items = 0

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, work: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any]) -> Iterator[Any]:
        pickled, rest = pickle.dumps((work, shared)), iter(items)
        while batch := list(itertools.islice(rest, 3)):
            self.items += len(batch)
            yield from [self.work(*pickle.loads(pickled), pickle.loads(pickle.dumps(item))) for item in batch[::-1]][
                ::-1
            ]

    def work(self, work: Callable[[Any, Any], Any], shared: Any, item: Any) -> Any:
        return pickle.loads(pickle.dumps(work(shared, item)))
