"""The logs of the benchmark `dnas`, each with a hand-made config: three real ones, and one with planted structure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from ruamel.yaml import YAML

from bench.benchmark import Context
from bench.quality.board import ROOT
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import DataError
from ziggurat.data.public.catalogue import get_dataset
from ziggurat.training.experiment import Experiment

SIGNAL, NOISE = ("a", "b", "c", "d"), ("noise_1", "noise_2", "noise_3")
PLANTED_ORDER = 2
_IDS, _NOISE_IDS = 40, 2000


@dataclass(frozen=True, slots=True)
class SearchedLog:
    """A log with the config that a search begins with.

    Attributes:
        name: its name in figures.
        experiment: returns the config, after the data were fetched or written.
    """

    name: str
    experiment: Callable[[Context], Experiment]


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


def planted(folder: Path, rows: int) -> Experiment:
    """Writes a log whose label depends on products of two columns, beside columns of noise; returns a config for it.

    The logit is 1.5 · (s_a s_b + s_c s_d) with signs s of ids that have a mean of zero over the ids of each column, so
    that no column tells anything by itself. Three columns of 2,000 ids tell nothing at all.
    """
    draw = np.random.default_rng(7)
    columns = {name: draw.integers(0, _IDS, rows) for name in SIGNAL}
    signs = {name: draw.permutation(np.repeat([-1.0, 1.0], _IDS // 2)) for name in SIGNAL}
    a, b, c, d = (signs[name][columns[name]] for name in SIGNAL)
    logit = 1.5 * (a * b + c * d)
    columns.update({name: draw.integers(0, _NOISE_IDS, rows) for name in NOISE})
    columns["click"] = (draw.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(columns).write_csv(folder / "log.csv")
    values: dict[str, Any] = {
        "name": "planted",
        "data": {
            "folder": str(folder),
            "source": {"name": "csv", "files": ["log.csv"]},
            "split": {"name": "random", "validation": 0.15, "test": 0.15},
            "labels": [{"name": "click"}],
        },
        "features": [{"name": name, "kind": "categorical", "type": "integer"} for name in (*SIGNAL, *NOISE)],
        "embeddings": {"dim": 16, "optimizer": {"name": "rowwise_adagrad", "lr": 0.1}},
        "model": {"name": "deepfm", "deep": {"hidden": [128, 64]}},
        "training": {"batch_size": 1024, "epochs": 4},
    }
    return parse_config(Experiment, values)


LOGS = (
    SearchedLog("frappe", _example("frappe", _given, {"embeddings.dim": 16})),
    SearchedLog("movielens", _example("movielens", _fetched("movielens-100k"), {})),
    SearchedLog("census", _example("census", _fetched("census-income"), {})),
    SearchedLog("planted", lambda context: planted(context.cache / "dnas" / "planted", 100_000)),
)
