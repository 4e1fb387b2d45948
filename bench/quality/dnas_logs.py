"""The logs of the benchmark `dnas`, each with a hand-made config: three real ones, and one with planted structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from ruamel.yaml import YAML

from bench.benchmark import Context
from bench.quality.board import ROOT
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import DataError
from ziggurat.data.public.catalogue import get_dataset
from ziggurat.search.architecture.config import ArchitectureSearchConfig
from ziggurat.training.experiment import Experiment

FloatArray = npt.NDArray[np.float64]

SIGNAL, NOISE = ("a", "b", "c", "d"), ("noise_1", "noise_2", "noise_3")
_IDS, _NUMBERS, _DEVIATION = 30, 8, 1.75
"""Ids of each column, numbers of the vector of each id of a signal, and the standard deviation of the logit.

Of 100,000 rows a pair of ids is seen 78 times in training. With 200 ids, seen twice, the hand-made config learns
nothing in its first epochs (NE 1.00); with 60 it does, but the super-net learns nothing in as many passes.
"""


@dataclass(frozen=True, slots=True)
class SearchedLog:
    """A log with the config that a search begins with.

    Attributes:
        name: its name in figures.
        experiment: returns the config, after the data were fetched or written.
        config: returns what is searched, from the FLOPs and the table bytes of the config as it is.
    """

    name: str
    experiment: Callable[[Context], Experiment]
    config: Callable[[Mapping[str, float]], ArchitectureSearchConfig] = lambda own: ArchitectureSearchConfig()


def _example(
    name: str, folder: Callable[[Context], Path], changes: Mapping[str, Any]
) -> Callable[[Context], Experiment]:
    def make(context: Context) -> Experiment:
        values = YAML(typ="safe").load((ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8"))
        set_by_path(values, "data.folder", str(folder(context)))
        for key, value in changes.items():
            set_by_path(values, key, value)
        return parse_config(Experiment, values, f"examples/{name}.yaml")

    return make


def _given(context: Context) -> Path:
    if context.data is None or not (context.data / "frappe_x1").is_dir():
        raise DataError("benchmark dnas: Frappe is not there", "name the folder that holds frappe_x1: --data FOLDER")
    return context.data / "frappe_x1"


def _fetched(name: str) -> Callable[[Context], Path]:
    def fetch(context: Context) -> Path:
        folder = context.cache / "dnas" / name
        get_dataset(name, folder)
        return folder

    return fetch


def planted_columns(rows: int) -> tuple[pl.DataFrame, FloatArray]:
    """Returns the planted log, and the true logit of each row.

    Each id of a signal has a vector of 8 numbers, with a mean of zero over the ids of a column, so that no column tells
    anything by itself. The logit is u_a · u_b + u_c · u_d, scaled to a standard deviation of 1.75: a product of pairs
    of columns. Columns of noise have as many ids, so that only the label tells them apart.
    """
    draw = np.random.default_rng(7)
    columns = {name: draw.integers(0, _IDS, rows) for name in (*SIGNAL, *NOISE)}
    vectors: dict[str, FloatArray] = {}
    for name in SIGNAL:
        drawn = draw.normal(size=(_IDS, _NUMBERS))
        vectors[name] = drawn - drawn.mean(0)
    a, b, c, d = (vectors[name][columns[name]] for name in SIGNAL)
    products: FloatArray = (a * b).sum(1) + (c * d).sum(1)
    logit: FloatArray = _DEVIATION * products / products.std()
    frame = pl.DataFrame({**columns, "click": (draw.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64)})
    return frame, logit


def planted(folder: Path, rows: int) -> Experiment:
    """Writes the planted log, unless it is there already, and returns a config for it.

    A run refuses a log that was written anew, so that a case which was interrupted goes on only if it was not.
    """
    content = planted_columns(rows)[0].write_csv().encode()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "log.csv"
    if not path.is_file() or path.read_bytes() != content:
        path.write_bytes(content)
    values: dict[str, Any] = {
        "name": "planted",
        "data": {
            "folder": str(folder),
            "source": {"name": "csv", "files": ["log.csv"]},
            "split": {"name": "random", "validation": 0.15, "test": 0.15},
            "labels": [{"name": "click"}],
        },
        "features": [{"name": name, "kind": "categorical", "type": "integer"} for name in (*SIGNAL, *NOISE)],
        "embeddings": {"dim": 16, "optimizer": {"name": "rowwise_adagrad", "lr": 0.1}, "l2": 0.005},
        "model": {"name": "deepfm", "deep": {"hidden": [128, 64]}},
        "training": {"batch_size": 1024, "epochs": 20, "early_stopping": {"patience": 3}},
    }
    return parse_config(Experiment, values)


def planted_search(own: Mapping[str, float]) -> ArchitectureSearchConfig:
    """Returns a search that keeps all rows and may spend half of the bytes: it has to decide on which columns.

    Masks are soft, as no column tells anything alone: products begin to be learnt late, and with hard masks, of which a
    step trains one interaction of many, θ is decided before (docs/search.md says when to choose which).
    """
    limits = {"flops": own["flops"], "bytes": own["bytes"] / 2}
    values = {"tables": {"rows": [1.0]}, "limits": limits, "supernet": {"masks": "soft"}}
    return parse_config(ArchitectureSearchConfig, values)


LOGS = (
    SearchedLog("frappe", _example("frappe", _given, {"embeddings.dim": 16})),
    SearchedLog("movielens", _example("movielens", _fetched("movielens-100k"), {})),
    SearchedLog("census", _example("census", _fetched("census-income"), {})),
    SearchedLog("planted", lambda context: planted(context.cache / "dnas" / "planted", 100_000), planted_search),
)
