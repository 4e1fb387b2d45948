"""The linear baseline of labels that are numbers, on the one-hot ids and standardised columns of logistic regression.

squared, huber, ordinal   ridge regression
log1p                     ridge regression of log(1 + label)
poisson, tweedie          a generalised linear model with a log link and an L2 penalty
quantile                  ridge regression, plus the quantiles of its training residuals

Tuning: the penalty over ``ALPHA_GRID``, ascending, until the validation loss has risen twice. Everything is
deterministic.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import PoissonRegressor, Ridge, TweedieRegressor
from threadpoolctl import threadpool_limits

from ziggurat.core.progress import Progress, Silent
from ziggurat.objectives.losses import Log1p, Poisson, Quantile, Tweedie
from ziggurat.objectives.task import Task
from ziggurat.report.baselines.data import BaselineData, BaselineResult, fitted_task, settings_text, task_loss
from ziggurat.report.baselines.logistic_regression import OneHotColumns

ALPHA_GRID = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Penalties of ridge regression; those of generalised linear models are per row, so they are divided by the rows."""
ITERATIONS = 500

Float64Array = npt.NDArray[np.float64]


def fit_linear_regression(
    data: BaselineData,
    seed: int = 0,
    threads: int = 1,
    row_cap: int = 500_000,
    progress: Progress | None = None,
) -> BaselineResult:
    """Tunes a linear model on validation and predicts test.

    Args:
        data: one task's encoded columns; its label is a number.
        seed: the seed of the subsample.
        threads: the number of threads of the linear algebra libraries.
        row_cap: the most training rows; :meth:`BaselineData.capped` drops others.
        progress: receives the result of each fit.

    Raises:
        DataError: see :meth:`BaselineData.check`.
    """
    started = time.perf_counter()
    data.check()
    task, used = fitted_task(data.task), data.capped(row_cap, seed)
    progress = progress or Silent()
    progress.start("linear regression", len(ALPHA_GRID), "settings")
    fits: list[tuple[dict[str, Any], float, _Linear]] = []
    rises = 0
    with threadpool_limits(limits=threads):
        encoder = OneHotColumns(used.train)
        train, validation = encoder.matrix(used.train), encoder.matrix(used.validation)
        for alpha in ALPHA_GRID:
            model = _Linear(task, alpha)
            model.fit(train, used.train.labels_B.astype(np.float64), used.train.weights_B)
            loss = task_loss(task, model.predict(validation), used.validation)
            rises = rises + 1 if fits and loss > min(one[1] for one in fits) else 0
            fits.append(({"alpha": alpha}, loss, model))
            progress.advance(len(fits), loss=loss)
            if rises == 2:
                break
        settings, loss, model = min(fits, key=lambda fit: fit[1])
        predictions_B = model.predict(encoder.matrix(data.test)) if len(data.test) else np.empty(0)
    progress.finish(f"best: {settings_text(settings)}, validation loss {loss:.4f}")
    description = (
        f"{model.what}, {settings_text(settings)}; chosen by validation loss ({loss:.4f}) among {len(fits)} penalties "
        f"from {ALPHA_GRID[0]} to {ALPHA_GRID[-1]} until it rises twice. {encoder.count:,} one-hot and dense columns, "
        f"{len(used.train):,} of {len(data.train):,} training rows."
    )
    tried = [(tried_settings, tried_loss) for tried_settings, tried_loss, _ in fits]
    seconds = time.perf_counter() - started
    return BaselineResult("Linear regression", predictions_B, seconds, settings, loss, tried, description)


class _Linear:
    """A linear model of a task with one penalty."""

    def __init__(self, task: Task, alpha: float) -> None:
        self._task, self._alpha = task, alpha
        self._model: Any = None
        self._residuals = np.zeros(1)

    @property
    def what(self) -> str:
        """What kind of linear model it is."""
        match self._task.loss:
            case Poisson():
                return "Poisson regression"
            case Tweedie():
                return "Tweedie regression"
            case Log1p():
                return "Ridge regression of log(1 + label)"
            case Quantile():
                return "Ridge regression with the quantiles of its residuals"
            case _:
                return "Ridge regression"

    def fit(self, matrix: sparse.csr_matrix, label_B: Float64Array, weight_B: npt.NDArray[np.float32] | None) -> None:
        rows, loss = len(label_B), self._task.loss
        match loss:
            case Poisson():
                self._model = PoissonRegressor(alpha=self._alpha / rows, max_iter=ITERATIONS)
            case Tweedie(power=power):
                self._model = TweedieRegressor(
                    power=power, alpha=self._alpha / rows, link="log", solver="lbfgs", max_iter=ITERATIONS
                )
            case _:
                self._model = Ridge(alpha=self._alpha, solver="sparse_cg", max_iter=ITERATIONS, tol=1e-6)
        target_B = np.log1p(label_B) if isinstance(loss, Log1p) else label_B
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._model.fit(matrix, target_B, sample_weight=weight_B)
        if isinstance(loss, Quantile):
            residual_B = label_B - self._model.predict(matrix)
            order = np.argsort(residual_B)
            below_B = np.cumsum(np.ones(rows) if weight_B is None else weight_B[order].astype(np.float64))
            at = np.searchsorted(below_B, np.asarray(loss.levels) * below_B[-1]).clip(max=rows - 1)
            self._residuals = residual_B[order][at]

    def predict(self, matrix: sparse.csr_matrix) -> Float64Array:
        """Returns the predictions (B,) in the label's units; (B, levels) of a quantile label."""
        found_B = np.asarray(self._model.predict(matrix), np.float64)
        match self._task.loss:
            case Log1p():
                return np.maximum(np.expm1(found_B), 0.0)
            case Quantile():
                return found_B[:, None] + self._residuals
            case _:
                return found_B
