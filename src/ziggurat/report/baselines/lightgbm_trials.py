"""The LightGBM baseline on the same columns, tuned carefully: deep models on tabular data most often lose to it.

Dense columns are used as they are, and ids of single-id features as LightGBM's own categorical columns. Each bag or
sequence gives its length and, for its ``BAG_COLUMNS`` most frequent training ids, their counts in the row. (Trees split
on one column at a time, so a column for every id of a large bag would cost much and be used little.)

Tuning: every setting of ``GRID`` with up to ``MAX_TREES`` trees, stopped when the validation loss has not fallen for
``PATIENCE`` trees; each tree uses 80 % of the rows. With many ids, a split must be able to group many of them
(``max_cat_threshold``), and not every tree may rely on the same id column (``feature_fraction``): on MovieLens-100K the
library's defaults lose .009 AUC. Everything is deterministic: fixed seeds, row-wise histograms, fixed threads.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from ziggurat.core.progress import Progress, Silent
from ziggurat.objectives.losses import Huber, Log1p, Poisson, Quantile, Squared, Tweedie
from ziggurat.objectives.task import Task
from ziggurat.report.baselines.data import (
    BaselineData,
    BaselineResult,
    BaselineSplit,
    fitted_task,
    settings_text,
    task_loss,
)

_DEFAULT_SPLITS = {"cat_smooth": 10.0, "max_cat_threshold": 32, "feature_fraction": 1.0}
_WIDE_SPLITS = {"cat_smooth": 10.0, "max_cat_threshold": 1024, "feature_fraction": 0.4}
_CAUTIOUS_SPLITS = {"cat_smooth": 50.0, "max_cat_threshold": 1024, "feature_fraction": 0.7}

GRID: tuple[dict[str, Any], ...] = (
    {"num_leaves": 31, "min_data_in_leaf": 20, **_DEFAULT_SPLITS},
    {"num_leaves": 63, "min_data_in_leaf": 20, **_WIDE_SPLITS},
    {"num_leaves": 127, "min_data_in_leaf": 20, **_WIDE_SPLITS},
    {"num_leaves": 31, "min_data_in_leaf": 100, **_CAUTIOUS_SPLITS},
)
LEARNING_RATE = 0.05
MAX_TREES = 2000
PATIENCE = 50
BAG_COLUMNS = 64


def fit_lightgbm(
    data: BaselineData,
    seed: int = 0,
    threads: int = 1,
    row_cap: int = 1_000_000,
    progress: Progress | None = None,
) -> BaselineResult:
    """Tunes LightGBM on validation and predicts test.

    Args:
        data: one task's encoded columns.
        seed: the seed of the subsample and of LightGBM.
        threads: the number of threads of LightGBM.
        row_cap: the most training rows; :meth:`BaselineData.capped` drops others.
        progress: receives the result of each setting.

    Raises:
        DataError: see :meth:`BaselineData.check`.
    """
    started = time.perf_counter()
    data.check()
    used = data.capped(row_cap, seed)
    progress = progress or Silent()
    progress.start("LightGBM", len(GRID), "settings")
    columns = TreeColumns(used.train)
    task = fitted_task(data.task)
    fixed = {
        "learning_rate": LEARNING_RATE,
        "bagging_fraction": 0.8,
        "bagging_freq": 1,
        "seed": seed,
        "num_threads": threads,
        "deterministic": True,
        "force_row_wise": True,
        "feature_pre_filter": False,
        "verbosity": -1,
    }
    train = _dataset(columns, used.train, task, fixed, None)
    validation_matrix = columns.matrix(used.validation)
    validation = _dataset(columns, used.validation, task, fixed, train)
    objectives = [fixed | objective for objective in _objectives(task)]
    best: tuple[dict[str, Any], float, list[lightgbm.Booster]] | None = None
    tried: list[tuple[dict[str, Any], float]] = []
    for settings in GRID:
        boosters = [
            lightgbm.train(
                {**objective, **settings},
                train,
                MAX_TREES,
                [validation],
                callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
            )
            for objective in objectives
        ]
        loss = task_loss(task, _predict(boosters, task, validation_matrix, threads), used.validation)
        trees = [booster.best_iteration for booster in boosters]
        chosen = {**settings, "trees": trees[0] if len(trees) == 1 else trees}
        tried.append((chosen, loss))
        progress.advance(len(tried), loss=loss)
        if best is None or loss < best[1]:
            best = (chosen, loss, boosters)
    assert best is not None
    settings, loss, boosters = best
    predictions_B = np.empty(0)
    if len(data.test):
        predictions_B = _predict(boosters, task, columns.matrix(data.test), threads)
    which = "log-loss" if task.is_probability else f"{objectives[0]['objective']} loss"
    progress.finish(f"best: {settings_text(settings)}, validation {which} {loss:.4f}")
    description = (
        f"{settings_text(settings)}; chosen by validation {which} ({loss:.4f}) among {len(GRID)} settings, learning "
        f"rate {LEARNING_RATE}, early stopping after {PATIENCE} trees without gain. {columns.count} columns, "
        f"{len(used.train):,} of {len(data.train):,} training rows."
    )
    return BaselineResult("LightGBM", predictions_B, time.perf_counter() - started, settings, loss, tried, description)


def _objectives(task: Task) -> list[dict[str, Any]]:
    """Returns LightGBM's objective and metric of each booster: one, but for a quantile label one for each level."""
    match task.loss:
        case Huber(delta=delta):
            return [{"objective": "huber", "metric": "huber", "alpha": delta}]
        case Poisson():
            return [{"objective": "poisson", "metric": "poisson"}]
        case Tweedie(power=power):
            return [{"objective": "tweedie", "metric": "tweedie", "tweedie_variance_power": power}]
        case Quantile(levels=levels):
            return [{"objective": "quantile", "metric": "quantile", "alpha": level} for level in levels]
        case Squared() | Log1p():
            return [{"objective": "regression", "metric": "l2"}]
        case None if task.kind == "soft":
            return [{"objective": "cross_entropy", "metric": "cross_entropy"}]
        case None:
            return [{"objective": "binary", "metric": "binary_logloss"}]


def _dataset(
    columns: TreeColumns,
    split: BaselineSplit,
    task: Task,
    parameters: dict[str, Any],
    reference: lightgbm.Dataset | None,
) -> lightgbm.Dataset:
    return lightgbm.Dataset(
        columns.matrix(split),
        label=np.log1p(split.labels_B) if isinstance(task.loss, Log1p) else split.labels_B,
        weight=split.weights_B,
        categorical_feature=columns.categorical_positions,
        reference=reference,
        params=parameters,
    )


def _predict(
    boosters: Sequence[lightgbm.Booster], task: Task, matrix: npt.NDArray[Any], threads: int
) -> npt.NDArray[np.float64]:
    """Returns the predictions (B,) in the label's units; (B, levels) of a quantile label."""
    found = [
        np.asarray(booster.predict(matrix, num_iteration=booster.best_iteration, num_threads=threads), np.float64)
        for booster in boosters
    ]
    if isinstance(task.loss, Quantile):
        return np.stack(found, axis=1)
    return np.maximum(np.expm1(found[0]), 0.0) if isinstance(task.loss, Log1p) else found[0]


class TreeColumns:
    """The columns of the matrix; fitted on the training split, which decides which ids of each bag get a column."""

    def __init__(self, train: BaselineSplit) -> None:
        self._bag_ids = {name: _most_frequent(bag.ids_N) for name, bag in train.bags.items()}
        dense = train.dense_BF.shape[1]
        self.categorical_positions = list(range(dense, dense + len(train.categorical)))
        self.count = dense + len(train.categorical) + sum(1 + len(ids) for ids in self._bag_ids.values())
        largest_id = max((int(ids_B.max(initial=0)) for ids_B in train.categorical.values()), default=0)
        self._type = np.float32 if largest_id < 1 << 24 else np.float64  # float32 counts exactly up to 2^24

    def matrix(self, split: BaselineSplit) -> npt.NDArray[Any]:
        """Returns the matrix (B, columns)."""
        matrix = np.zeros((len(split), self.count), self._type)
        dense = split.dense_BF.shape[1]
        matrix[:, :dense] = split.dense_BF
        for position, ids_B in enumerate(split.categorical.values(), dense):
            matrix[:, position] = ids_B
        position = dense + len(split.categorical)
        for name, bag in split.bags.items():
            matrix[:, position] = bag.lengths_B
            known = self._bag_ids[name]
            if len(known):
                row_N = np.repeat(np.arange(len(split)), bag.lengths_B)
                column_N = np.searchsorted(known, bag.ids_N).clip(max=len(known) - 1)
                found_N = known[column_N] == bag.ids_N
                np.add.at(matrix, (row_N[found_N], position + 1 + column_N[found_N]), 1)
            position += 1 + len(known)
        return matrix


def _most_frequent(ids_N: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns the ``BAG_COLUMNS`` most frequent ids, ascending; ties go to the smaller id."""
    ids, counts = np.unique(ids_N, return_counts=True)
    return np.sort(ids[np.argsort(-counts, kind="stable")[:BAG_COLUMNS]])
