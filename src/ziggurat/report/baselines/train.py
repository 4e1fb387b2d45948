"""The list of baselines that a run is compared with, trained on the same columns, tuned on the same validation rows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import lightgbm
import sklearn

from ziggurat.core.progress import Progress
from ziggurat.report.baselines import lightgbm_trials as baseline_lightgbm
from ziggurat.report.baselines import linear_regression as baseline_linear
from ziggurat.report.baselines import logistic_regression as baseline_logistic
from ziggurat.report.baselines.data import BaselineData, BaselineResult, BaselineSplit, JaggedColumn, subsample_rows
from ziggurat.report.baselines.lightgbm_trials import fit_lightgbm
from ziggurat.report.baselines.linear_regression import fit_linear_regression
from ziggurat.report.baselines.logistic_regression import fit_logistic_regression

__all__ = [
    "BASELINES",
    "VALUE_BASELINES",
    "BaselineData",
    "BaselineModel",
    "BaselineResult",
    "BaselineSplit",
    "JaggedColumn",
    "fit_baselines",
    "fit_lightgbm",
    "fit_linear_regression",
    "fit_logistic_regression",
    "machine_threads",
    "subsample_rows",
]


class Fit(Protocol):
    """Tunes on validation rows and predicts test rows."""

    def __call__(
        self, data: BaselineData, seed: int = 0, threads: int = 1, *, progress: Progress | None = None
    ) -> BaselineResult: ...


@dataclass(frozen=True, slots=True)
class BaselineModel:
    """A model that every run is compared with.

    Attributes:
        name: its name in the comparison table.
        fit: the function that trains it.
        recipe: library version and grid; a stored result is valid as long as the recipe does not change.
    """

    name: str
    fit: Fit
    recipe: Mapping[str, Any]


BASELINES = (
    BaselineModel(
        "LightGBM",
        fit_lightgbm,
        {
            "lightgbm": lightgbm.__version__,
            "grid": baseline_lightgbm.GRID,
            "learning_rate": baseline_lightgbm.LEARNING_RATE,
            "trees": baseline_lightgbm.MAX_TREES,
            "patience": baseline_lightgbm.PATIENCE,
            "bag_columns": baseline_lightgbm.BAG_COLUMNS,
        },
    ),
    BaselineModel(
        "Logistic regression",
        fit_logistic_regression,
        {
            "sklearn": sklearn.__version__,
            "grid": baseline_logistic.C_GRID,
            "iterations": baseline_logistic.MAX_ITERATIONS,
            "tolerance": baseline_logistic.TOLERANCE,
        },
    ),
)


"""The baselines of labels that are 0, 1 or rates between them."""

VALUE_BASELINES = (
    BASELINES[0],
    BaselineModel(
        "Linear regression",
        fit_linear_regression,
        {"sklearn": sklearn.__version__, "grid": baseline_linear.ALPHA_GRID, "iterations": baseline_linear.ITERATIONS},
    ),
)
"""The baselines of labels that are numbers."""


def fit_baselines(data: BaselineData, seed: int = 0, progress: Progress | None = None) -> list[BaselineResult]:
    """Trains all baselines of the data's label with all of this process's cores and returns their results.

    Raises:
        DataError: see :meth:`BaselineData.check`.
    """
    chosen = BASELINES if data.task.is_probability else VALUE_BASELINES
    return [baseline.fit(data, seed, machine_threads(), progress=progress) for baseline in chosen]


def machine_threads() -> int:
    """Returns the number of cores that this process may use; ``OMP_NUM_THREADS`` lowers it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(wanted))) if wanted.isdigit() else cores
