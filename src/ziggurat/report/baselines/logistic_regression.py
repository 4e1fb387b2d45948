"""The logistic regression baseline on one-hot ids and standardised dense columns, which a deep model must beat.

Each id that occurs in training has a column; ids seen only later have none. The ids of a bag or sequence share a weight
of one, as in mean pooling. Dense columns are standardised by their training mean and deviation.

Tuning: C over ``C_GRID``, ascending, with each fit warm-started from the one before, until validation log-loss has
risen twice; then the other solver at the best C. Everything is deterministic.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from ziggurat.core.progress import Progress, Silent
from ziggurat.report.baselines.data import BaselineData, BaselineResult, BaselineSplit, log_loss, settings_text

C_GRID = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
MAX_ITERATIONS = 500
TOLERANCE = 1e-6

_Fit = tuple[dict[str, Any], float, Any]


def fit_logistic_regression(
    data: BaselineData,
    seed: int = 0,
    threads: int = 1,
    row_cap: int = 500_000,
    progress: Progress | None = None,
) -> BaselineResult:
    """Tunes logistic regression on validation and predicts test.

    Args:
        data: one task's encoded columns.
        seed: the seed of the subsample and of the liblinear solver.
        threads: the number of threads of the linear algebra libraries.
        row_cap: the most training rows; :meth:`BaselineData.capped` drops others.
        progress: receives the result of each fit.

    Raises:
        DataError: see :meth:`BaselineData.check`.
    """
    started = time.perf_counter()
    data.check()
    used = data.capped(row_cap, seed)
    progress = progress or Silent()
    progress.start("logistic regression", None, "settings")
    with threadpool_limits(limits=threads):
        encoder = OneHotColumns(used.train)
        train, validation = encoder.matrix(used.train), encoder.matrix(used.validation)
        fits = _tune(used, train, validation, seed, progress)
        settings, loss, model = min(fits, key=lambda fit: fit[1])
        predictions_B = model.predict_proba(encoder.matrix(data.test))[:, 1] if len(data.test) else np.empty(0)
    progress.finish(f"best: {settings_text(settings)}, validation log-loss {loss:.4f}")
    unfinished = "" if int(model.n_iter_.max()) < MAX_ITERATIONS else f" It stopped after {MAX_ITERATIONS} iterations."
    description = (
        f"{settings_text(settings)}; chosen by validation log-loss ({loss:.4f}) among {len(fits)} fits: C from "
        f"{C_GRID[0]} to {C_GRID[-1]} with lbfgs until it rises twice, then liblinear. "
        f"{encoder.count:,} one-hot and dense columns, {len(used.train):,} of {len(data.train):,} training rows."
        f"{unfinished}"
    )
    tried = [(tried_settings, tried_loss) for tried_settings, tried_loss, _ in fits]
    seconds = time.perf_counter() - started
    return BaselineResult("Logistic regression", predictions_B, seconds, settings, loss, tried, description)


def _tune(
    data: BaselineData, train: sparse.csr_matrix, validation: sparse.csr_matrix, seed: int, progress: Progress
) -> list[_Fit]:
    fits: list[_Fit] = []
    rises = 0
    start: Any = None
    for c in C_GRID:
        fit = _fit({"C": c, "solver": "lbfgs"}, data, train, validation, seed, start)
        rises = rises + 1 if fits and fit[1] > min(one[1] for one in fits) else 0
        fits.append(fit)
        start = fit[2]
        progress.advance(len(fits), C=c, log_loss=fit[1])
        if rises == 2:
            break
    best = min(fits, key=lambda one: one[1])[0]["C"]
    fits.append(_fit({"C": best, "solver": "liblinear"}, data, train, validation, seed, None))
    progress.advance(len(fits), C=best, log_loss=fits[-1][1])
    return fits


def _fit(
    settings: dict[str, Any],
    data: BaselineData,
    train: sparse.csr_matrix,
    validation: sparse.csr_matrix,
    seed: int,
    start: Any,
) -> _Fit:
    model = LogisticRegression(
        **settings, tol=TOLERANCE, max_iter=MAX_ITERATIONS, random_state=seed, warm_start=start is not None
    )
    if start is not None:
        model.coef_, model.intercept_, model.classes_ = start.coef_.copy(), start.intercept_.copy(), start.classes_
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the description reports it instead
        model.fit(*_rows(data, train))
    probabilities_B = model.predict_proba(validation)[:, 1]
    return settings, log_loss(probabilities_B, data.validation.labels_B, data.validation.weights_B), model


def _rows(data: BaselineData, train: sparse.csr_matrix) -> tuple[Any, npt.NDArray[np.bool_], Any]:
    """Returns matrix, labels and weights; a row whose label is between 0 and 1 is a positive and a negative row."""
    labels_B, weights_B = data.train.labels_B, data.train.weights_B
    if data.task.kind == "binary":
        return train, labels_B > 0.5, weights_B
    whole_B = np.ones(len(labels_B)) if weights_B is None else weights_B.astype(np.float64)
    weights = np.concatenate([whole_B * labels_B, whole_B * (1 - labels_B)])
    used = weights > 0
    positive = np.repeat([True, False], len(labels_B))
    both = sparse.csr_matrix(sparse.vstack([train, train]))
    return both[used], positive[used], weights[used]


class OneHotColumns:
    """The columns of the matrix, fitted on the training split: mean and deviation of dense columns, known ids."""

    def __init__(self, train: BaselineSplit) -> None:
        self._mean_F = train.dense_BF.mean(axis=0, dtype=np.float64)
        deviation_F = train.dense_BF.std(axis=0, dtype=np.float64)
        self._deviation_F = np.where(deviation_F > 0, deviation_F, 1.0)
        self._known = {name: np.unique(ids_B) for name, ids_B in train.categorical.items()}
        self._known |= {name: np.unique(bag.ids_N) for name, bag in train.bags.items()}
        self.count = len(self._mean_F) + sum(len(known) for known in self._known.values())

    def matrix(self, split: BaselineSplit) -> sparse.csr_matrix:
        """Returns the matrix (B, columns), float64."""
        parts: list[Any] = [sparse.csr_matrix((split.dense_BF - self._mean_F) / self._deviation_F)]
        rows = len(split)
        for name, ids_B in split.categorical.items():
            parts.append(self._hot(name, ids_B, np.arange(rows + 1), np.ones(rows)))
        for name, bag in split.bags.items():
            lengths_B = bag.lengths_B
            share_N = np.repeat(1.0 / np.maximum(lengths_B, 1), lengths_B)
            parts.append(self._hot(name, bag.ids_N, bag.offsets, share_N))
        return sparse.csr_matrix(sparse.hstack(parts, format="csr"))

    def _hot(
        self, name: str, ids: npt.NDArray[Any], offsets: npt.NDArray[np.int64], values: npt.NDArray[np.float64]
    ) -> sparse.csr_matrix:
        known = self._known[name]
        column = np.searchsorted(known, ids)
        found = known[np.minimum(column, len(known) - 1)] == ids if len(known) else np.zeros(len(ids), np.bool_)
        matrix = sparse.csr_matrix(
            (np.where(found, values, 0.0), np.where(found, column, 0), offsets), (len(offsets) - 1, max(len(known), 1))
        )
        matrix.eliminate_zeros()
        return matrix
