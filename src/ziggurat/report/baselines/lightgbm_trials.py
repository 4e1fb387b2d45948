"""The LightGBM baseline on the same columns, tuned carefully: deep models on tabular data most often lose to it.

Dense columns are used as they are, and ids of single-id features as LightGBM's own categorical columns. Each bag or
sequence gives its length and, for its ``BAG_COLUMNS`` most frequent training ids, their counts in the row. (Trees split
on one column at a time, so a column for every id of a large bag would cost much and be used little.)

Tuning: every setting of ``GRID`` with up to ``MAX_TREES`` trees, stopped when the validation loss has not fallen for
``PATIENCE`` trees; each tree uses 80 % of the rows. With many ids, a split must be able to group many of them
(``max_cat_threshold``), and not every tree may rely on the same id column (``feature_fraction``): on MovieLens-100K the
library's defaults lose .009 AUC. More trials than the grid has draw their settings at random. Everything is
deterministic: fixed seeds, row-wise histograms, fixed threads.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
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
    trials: int = len(GRID),
) -> BaselineResult:
    """Tunes LightGBM on validation and predicts test.

    Args:
        data: one task's encoded columns.
        seed: the seed of the subsample and of LightGBM.
        threads: the number of threads of LightGBM.
        row_cap: the most training rows; :meth:`BaselineData.capped` drops others.
        progress: receives the result of each setting.
        trials: the number of settings tried: those of the grid, then random ones (:func:`random_settings`).

    Raises:
        DataError: see :meth:`BaselineData.check`.
    """
    started = time.perf_counter()
    data.check()
    used = data.capped(row_cap, seed)
    progress = progress or Silent()
    grid = [*GRID, *random_settings(trials - len(GRID), seed)][:trials]
    progress.start("LightGBM", len(grid), "settings")
    trees = _Trees(used, seed, threads)
    best: tuple[dict[str, Any], float, list[lightgbm.Booster]] | None = None
    tried: list[tuple[dict[str, Any], float]] = []
    for settings in grid:
        chosen, loss, boosters = trees.fit(settings)
        tried.append((chosen, loss))
        progress.advance(len(tried), loss=loss)
        if best is None or loss < best[1]:
            best = (chosen, loss, boosters)
    assert best is not None
    settings, loss, boosters = best
    predictions_B = trees.predict(boosters, data.test)
    progress.finish(f"best: {settings_text(settings)}, validation {trees.measure} {loss:.4f}")
    rate = settings.get("learning_rate", LEARNING_RATE)
    description = (
        f"{settings_text(settings)}; chosen by validation {trees.measure} ({loss:.4f}) among {len(grid)} settings, "
        f"learning rate {rate}, early stopping after {PATIENCE} trees without gain. {trees.columns.count} columns, "
        f"{len(used.train):,} of {len(data.train):,} training rows."
    )
    return BaselineResult("LightGBM", predictions_B, time.perf_counter() - started, settings, loss, tried, description)


def refit_lightgbm(
    data: BaselineData, settings: Mapping[str, Any], seed: int = 0, threads: int = 1, row_cap: int = 1_000_000
) -> BaselineResult:
    """Fits LightGBM once, with settings that :func:`fit_lightgbm` has chosen, and predicts test.

    Args:
        data: one task's encoded columns.
        settings: :attr:`BaselineResult.settings`; their number of trees is found anew, by early stopping.
        seed: the seed of the subsample and of LightGBM.
        threads: the number of threads of LightGBM.
        row_cap: the most training rows.

    Raises:
        DataError: see :meth:`BaselineData.check`.
    """
    started = time.perf_counter()
    data.check()
    trees = _Trees(data.capped(row_cap, seed), seed, threads)
    chosen, loss, boosters = trees.fit({key: value for key, value in settings.items() if key != "trees"})
    predictions_B = trees.predict(boosters, data.test)
    seconds = time.perf_counter() - started
    return BaselineResult(
        "LightGBM", predictions_B, seconds, chosen, loss, [(chosen, loss)], f"{settings_text(chosen)}; one fit."
    )


class _Trees:
    """Fits LightGBM with any settings on the same matrices.

    Args:
        data: the rows to fit and to stop early on.
        seed: the seed of LightGBM.
        threads: its threads.
    """

    def __init__(self, data: BaselineData, seed: int, threads: int) -> None:
        self.columns = TreeColumns(data.train)
        self._task, self._threads, self._validation = fitted_task(data.task), threads, data.validation
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
        self._train = _dataset(self.columns, data.train, self._task, fixed, None)
        self._matrix = self.columns.matrix(data.validation)
        self._stopping = _dataset(self.columns, data.validation, self._task, fixed, self._train)
        self._objectives = [fixed | objective for objective in _objectives(self._task)]

    @property
    def measure(self) -> str:
        """The name of the loss by which settings are chosen."""
        return "log-loss" if self._task.is_probability else f"{self._objectives[0]['objective']} loss"

    def fit(self, settings: Mapping[str, Any]) -> tuple[dict[str, Any], float, list[lightgbm.Booster]]:
        """Returns the settings with the number of trees, their validation loss, and a booster for each objective."""
        boosters = [
            lightgbm.train(
                {**objective, **settings},
                self._train,
                MAX_TREES,
                [self._stopping],
                callbacks=[lightgbm.early_stopping(PATIENCE, verbose=False)],
            )
            for objective in self._objectives
        ]
        loss = task_loss(self._task, _predict(boosters, self._task, self._matrix, self._threads), self._validation)
        trees = [booster.best_iteration for booster in boosters]
        return {**settings, "trees": trees[0] if len(trees) == 1 else trees}, loss, boosters

    def predict(self, boosters: Sequence[lightgbm.Booster], split: BaselineSplit) -> npt.NDArray[np.float64]:
        """Returns the predictions of a split, in the label's units."""
        if not len(split):
            return np.empty(0)
        return _predict(boosters, self._task, self.columns.matrix(split), self._threads)


def random_settings(count: int, seed: int) -> list[dict[str, Any]]:
    """Draws settings: widths and penalties evenly on a logarithmic scale, shares evenly; none if ``count`` is below 1.

    The ranges are those that LightGBM's documentation and public tuning scripts search.
    """
    draw = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    return [
        {
            "num_leaves": round(between(7, 255)),
            "min_data_in_leaf": round(between(5, 300)),
            "learning_rate": round(between(0.02, 0.15), 4),
            "feature_fraction": round(draw.uniform(0.3, 1.0), 2),
            "lambda_l2": round(between(0.001, 30), 4),
            "cat_smooth": round(between(3, 100), 1),
            "max_cat_threshold": draw.choice([32, 256, 1024]),
        }
        for _ in range(count)
    ]


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
