"""The baselines a run is compared with, trained on the same encoded columns and tuned on the same validation rows."""

from __future__ import annotations

import os

from ziggurat.core.progress import Progress
from ziggurat.report.baseline_data import BaselineData, BaselineResult, BaselineSplit, Jagged, subsample_rows
from ziggurat.report.baseline_lightgbm import fit_lightgbm
from ziggurat.report.baseline_logistic import fit_logistic_regression

__all__ = [
    "BaselineData",
    "BaselineResult",
    "BaselineSplit",
    "Jagged",
    "fit_baselines",
    "fit_lightgbm",
    "fit_logistic_regression",
    "machine_threads",
    "subsample_rows",
]


def fit_baselines(data: BaselineData, seed: int = 0, progress: Progress | None = None) -> list[BaselineResult]:
    """LightGBM and logistic regression with all of this process's cores.

    Raises:
        DataError: see :meth:`BaselineData.check`.
    """
    threads = machine_threads()
    return [
        fit_lightgbm(data, seed, threads, progress=progress),
        fit_logistic_regression(data, seed, threads, progress=progress),
    ]


def machine_threads() -> int:
    """Cores this process may use; ``OMP_NUM_THREADS`` lowers it."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(wanted))) if wanted.isdigit() else cores
