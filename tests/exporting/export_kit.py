"""A small log with every kind of column, and experiments on it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ziggurat.core.config import parse_config, set_by_path
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.run import Run

ROWS = 2_400
LABELS: dict[str, dict[str, Any]] = {
    "binary": {"name": "click"},
    "corrected": {"name": "buy", "negative_rate": 0.25},
    "soft": {"name": "ctr", "kind": "soft", "positives": "clicks", "trials": "shown"},
    "squared": {"name": "watch", "kind": "regression"},
    "log1p": {"name": "seconds", "column": "watch", "kind": "regression", "loss": {"name": "log1p"}},
    "huber": {"name": "length", "column": "watch", "kind": "regression", "loss": {"name": "huber"}},
    "poisson": {"name": "orders", "kind": "regression", "loss": {"name": "poisson"}},
    "tweedie": {"name": "spent", "column": "orders", "kind": "regression", "loss": {"name": "tweedie"}},
    "quantile": {"name": "quantiles", "column": "watch", "kind": "regression", "loss": {"name": "quantile"}},
    "ordinal": {"name": "rating", "kind": "ordinal"},
}


def log_columns(rows: int = ROWS, seed: int = 0) -> dict[str, Any]:
    """Returns the columns of a log; about a tenth of the cells of each feature are empty."""
    draw = np.random.default_rng(seed)
    user, item = draw.integers(0, 50, rows), draw.zipf(1.4, rows) % 80
    score = draw.normal(size=50)[user] + draw.normal(size=80)[item]
    rate = 1 / (1 + np.exp(1 - score))
    shown = draw.integers(0, 6, rows)

    def holed(values: Any, every: int) -> list[Any]:
        return [None if number % every == 3 else value for number, value in enumerate(values)]

    def lists(most: int, ids: int) -> list[Any]:
        return [draw.integers(0, ids, draw.integers(0, most + 1)).tolist() for _ in range(rows)]

    return {
        "user": holed([f"u{each}" for each in user], 11),
        "item": holed(item.tolist(), 13),
        "city": holed([f"c{each}" for each in user % 7], 17),
        "category": (item % 9).tolist(),
        "age": holed(draw.normal(40, 12, rows).round(2).tolist(), 9),
        "price": holed(draw.lognormal(2, 1, rows).round(2).tolist(), 10),
        "stock": draw.integers(0, 500, rows).tolist(),
        "emb": holed(draw.normal(size=(rows, 3)).round(3).tolist(), 12),
        "tags": holed(lists(4, 20), 8),
        "topics": lists(40, 30),
        "history": holed(lists(9, 80), 7),
        "visits": lists(7, 80),
        "seen": lists(5, 40),
        "when": (1_700_000_000 + 977 * np.arange(rows)).tolist(),
        "click": draw.binomial(1, rate).tolist(),
        "buy": draw.binomial(1, rate / 2).tolist(),
        "clicks": draw.binomial(shown, rate).tolist(),
        "shown": shown.tolist(),
        "watch": np.exp(score + draw.normal(0, 0.2, rows)).round(2).tolist(),
        "orders": draw.poisson(np.exp(score / 2)).tolist(),
        "rating": np.clip(np.rint(3 + score), 1, 5).astype(int).tolist(),
    }


def write_log(path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), path)


PLAIN: list[dict[str, Any]] = [
    {"name": "user", "kind": "categorical"},
    {"name": "item", "kind": "categorical", "type": "integer"},
    {"name": "age", "kind": "numeric", "transforms": [{"name": "standardise"}]},
]
BINS: dict[str, Any] = {"name": "bucketise", "bins": 4, "strategy": "kmeans"}
EVERY_KIND: list[dict[str, Any]] = [
    *PLAIN,
    {"name": "city", "kind": "categorical", "encoder": {"name": "hash", "rows": 64}},
    {"name": "category", "kind": "categorical", "type": "integer", "encoder": {"name": "identity", "rows": 9}},
    {"name": "price", "kind": "numeric", "transforms": [{"name": "log"}, {"name": "quantile"}]},
    {"name": "stock", "kind": "numeric", "transforms": [{"name": "bucketise", "bins": 6}]},
    {"name": "emb", "kind": "vector", "length": 3, "transforms": [{"name": "standardise"}]},
    {"name": "tags", "kind": "bag", "type": "integer"},
    {"name": "topics", "kind": "bag", "type": "integer", "pooling": "sum"},
    {"name": "history", "kind": "sequence", "type": "integer", "last": 6, "table": "item"},
    {"name": "visits", "kind": "sequence", "type": "integer", "last": 5, "pooling": "sum"},
    {"name": "seen", "kind": "sequence", "type": "integer", "last": 4, "pooling": {"name": "attention"}},
    {"name": "hour", "column": "when", "kind": "time", "part": "hour", "format": "seconds"},
    {"name": "weekday", "column": "when", "kind": "time", "part": "weekday", "as": "categorical", "format": "seconds"},
    {"name": "days", "column": "when", "kind": "time", "part": "age", "format": "seconds"},
    {"name": "cheap", "column": "price", "kind": "numeric", "transforms": [{"name": "power"}, {"name": "min_max"}]},
    {
        "name": "stocked",
        "column": "stock",
        "kind": "numeric",
        "transforms": [
            {"name": "robust"},
            {"name": "quantile", "output": "normal"},
            {"name": "max_abs"},
            {"name": "spline", "knots": 3, "spacing": "quantile"},
        ],
    },
    {"name": "clustered", "column": "price", "kind": "numeric", "transforms": [BINS]},
    {"name": "ageless", "column": "age", "kind": "numeric", "transforms": [{"name": "missing_flag"}]},
    {"name": "neither", "kind": "missing_together", "columns": ["age", "price"]},
    {"name": "pair", "kind": "crossed", "columns": ["user", "item"], "encoder": {"name": "vocabulary", "min_count": 2}},
    {
        "name": "user_rate",
        "column": "user",
        "kind": "encoded",
        "encoding": {"name": "target", "folds": 3},
        "transforms": [{"name": "standardise"}],
    },
    {"name": "city_hot", "column": "city", "kind": "encoded", "encoding": {"name": "one_hot", "categories": 3}},
    {"name": "city_hash", "column": "city", "kind": "encoded", "encoding": {"name": "hash", "buckets": 3}},
    {
        "name": "item_place",
        "column": "item",
        "kind": "encoded",
        "type": "integer",
        "missing": "most_frequent",
        "encoding": {"name": "ordinal", "min_count": 2},
        "transforms": [{"name": "standardise"}],
    },
]


def with_pooling(features: list[dict[str, Any]], **pooling: Any) -> list[dict[str, Any]]:
    """Returns the features with other poolings."""
    return [{**each, "pooling": pooling[each["name"]]} if each["name"] in pooling else each for each in features]


def make_experiment(folder: Path, features: list[dict[str, Any]] = PLAIN, **changes: Any) -> Experiment:
    """Returns an experiment on the log in a folder; keyword ``a__b=c`` sets key ``a.b``."""
    values: dict[str, Any] = {
        "name": "small",
        "data": {
            "folder": str(folder),
            "source": {"name": "parquet", "files": ["log.parquet"]},
            "split": {"name": "random", "validation": 0.2, "test": 0.1},
            "labels": [{"name": "click"}],
            "block_rows": 512,
        },
        "features": features,
        "embeddings": {"dim": 8, "init_std": 0.3, "optimizer": {"name": "rowwise_adagrad", "lr": 0.1}},
        "model": {"name": "dnn", "head": {"bottom": {"hidden": [16, 8]}}},
        "training": {"batch_size": 256, "max_steps": 3, "seed": 3, "log_every": 5},
        "evaluation": {"batch_size": 1000},
    }
    for path, value in changes.items():
        set_by_path(values, path.replace("__", "."), value)
    return parse_config(Experiment, values)


def trained(folder: Path, features: list[dict[str, Any]] = PLAIN, name: str = "run", **changes: Any) -> Run:
    """Returns a run that was trained for a few steps on the log of :func:`log_columns`, in ``folder / name``."""
    if not (folder / "log.parquet").exists():
        write_log(folder / "log.parquet", log_columns())
    with contextlib.chdir(folder):
        return api.train(make_experiment(folder, features, **changes), folder / name).run
