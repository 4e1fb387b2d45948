"""Tables from scikit-learn, from the project's catalogue, from ``--data``, and a drawn one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from sklearn import datasets

from bench.quality.collection import archives, given
from bench.quality.tabular.labelled import TabularSet
from ziggurat.core.temporary import temporary_folder

CTR_ROWS = 6000
"""The most rows of a set on which a CTR model is trained."""
_CRITEO = ("label", *(f"count_{number}" for number in range(1, 14)), *(f"id_{number}" for number in range(1, 27)))


def shipped_sets() -> tuple[TabularSet, ...]:
    """Returns the sets that scikit-learn contains."""
    return (
        TabularSet("iris", "scikit-learn iris", lambda *_: _shipped(datasets.load_iris)),
        TabularSet("wine", "scikit-learn wine", lambda *_: _shipped(datasets.load_wine)),
        TabularSet("breast_cancer", "scikit-learn breast cancer", lambda *_: _shipped(datasets.load_breast_cancer)),
        TabularSet("digits", "scikit-learn digits", lambda *_: _shipped(datasets.load_digits)),
    )


def survey_sets() -> tuple[TabularSet, ...]:
    """Returns Adult and Census-Income."""
    return TabularSet("adult", "Adult", _adult), TabularSet("census", "Census-Income (KDD)", _census)


def ctr_sets() -> tuple[TabularSet, ...]:
    """Returns the sets with dense features on which CTR models are compared."""
    return (
        TabularSet("criteo_sample", "Criteo sample", _criteo, True, CTR_ROWS),
        TabularSet("census", "Census-Income (KDD)", _census, rows=CTR_ROWS),
        TabularSet("drawn", "drawn", lambda *_: drawn(CTR_ROWS), rows=CTR_ROWS),
    )


def drawn(rows: int, seed: int = 0) -> pl.DataFrame:
    """Returns a drawn log whose numeric features need different pipelines, beside two columns of ids.

    The logit is a sum of functions of standard normal numbers; what the log shows of these is their exponential
    (heavy tails), a value with a few huge outliers, a position in a cycle whose middle is best (no monotonous
    function shows that), a count rounded down, and the number itself. Each form comes twice. A tenth of the values of
    one feature is missing, more often where the label is 1. A column of noise has heavy tails as well.
    """
    draw = np.random.default_rng(seed)
    hidden = draw.normal(size=(rows, 8))
    cycle = draw.random((rows, 2))
    shop, weekday = draw.integers(0, 40, rows), draw.integers(0, 7, rows)
    logit = hidden @ np.array([0.7, -0.6, 0.7, -0.6, 0.5, 0.5, 0.5, -0.5])
    logit += 1.6 * np.cos(2 * np.pi * (cycle - 0.5)).sum(1) + draw.normal(size=40)[shop] - 0.5
    label = (draw.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    outliers = np.where(draw.random((rows, 2)) < 0.01, 1e4 * draw.normal(size=(rows, 2)), 0.0)
    missing = draw.random(rows) < np.where(label == 1, 0.15, 0.05)
    columns: dict[str, Any] = {
        "price": np.exp(2 * hidden[:, 0]),
        "revenue": np.exp(1.5 * hidden[:, 1]),
        "delay": hidden[:, 2] + outliers[:, 0],
        "error": hidden[:, 3] + outliers[:, 1],
        "visits": np.floor(np.exp(1.5 + hidden[:, 4])),
        "clicks": np.floor(np.exp(2 + hidden[:, 5])),
        "score": hidden[:, 6],
        "rating": np.where(missing, np.nan, hidden[:, 7]),
        "hour": 24 * cycle[:, 0],
        "place": cycle[:, 1],
        "noise": np.exp(3 * draw.normal(size=rows)),
        "shop": [f"shop {each}" for each in shop],
        "weekday": [f"day {each}" for each in weekday],
        "label": label,
    }
    return pl.DataFrame(columns)


def _shipped(load: Callable[..., Any]) -> pl.DataFrame:
    bunch = load()
    names = [str(name).replace(" ", "_") for name in bunch.feature_names]
    frame = pl.DataFrame({name: bunch.data[:, place] for place, name in enumerate(names)})
    return frame.with_columns(pl.Series("label", bunch.target))


def _written(write: archives.Write, folder: Path, data: Path | None, *names: str) -> list[Path]:
    """Returns files of the collection of logs, written into ``folder`` if they are not there."""
    if not all((folder / name).is_file() for name in names):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with temporary_folder("table-", folder.parent) as temporary:
            ready = temporary.path / "ready"
            ready.mkdir()
            write(ready, data)
            folder.mkdir(exist_ok=True)
            for name in names:
                (ready / name).replace(folder / name)
    return [folder / name for name in names]


def _adult(folder: Path, data: Path | None) -> pl.DataFrame:
    (path,) = _written(archives.adult, folder / "adult", data, "adult.parquet")
    frame = pl.read_parquet(path)
    text = pl.selectors.string()
    label = next(name for name in frame.columns if name.startswith("income"))
    frame = frame.drop("fnlwgt", strict=False)  # the weight of a row in the survey, not a trait of the person
    frame = frame.with_columns(pl.when(text == "?").then(None).otherwise(text).name.keep())
    return frame.select(pl.exclude(label), pl.col(label))


def _census(folder: Path, data: Path | None) -> pl.DataFrame:
    path, _ = _written(archives.census("income"), folder / "census", data, "train.csv", "test.csv")
    frame = pl.read_csv(path, infer_schema=False)
    codes = "code " + pl.col("column_3", "column_4")  # of industry and occupation
    return frame.with_columns(pl.all().exclude("column_3", "column_4").replace("?", None), codes.name.keep())


def _criteo(folder: Path, data: Path | None) -> pl.DataFrame:
    paths = _written(given.criteo, folder / "criteo_sample", data, "train.tsv", "dev.tsv", "test.tsv")
    frames = [
        pl.read_csv(path, separator="\t", has_header=False, infer_schema=False, new_columns=list(_CRITEO))
        for path in paths
    ]
    frame = pl.concat(frames)
    return frame.select(pl.exclude("label"), pl.col("label"))
