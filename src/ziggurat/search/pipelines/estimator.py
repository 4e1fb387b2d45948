"""``PipelineSearch``: the search as a classifier and a transformer of scikit-learn, for tables without logs."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import numpy.typing as npt
import polars as pl
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from ziggurat.core.errors import shorten
from ziggurat.search.pipelines.blocks.fitted import fitted_block, input_of
from ziggurat.search.pipelines.clustering.config import PolicyConfig
from ziggurat.search.pipelines.downstream import (
    LogisticRegressionTask,
    MLPTask,
    TableMetric,
    fitted_model,
    probabilities,
)
from ziggurat.search.pipelines.pipeline import Kind
from ziggurat.search.pipelines.search import MethodName, search_pipelines
from ziggurat.search.pipelines.table import MISSING_CODE, Column, Floats, Table, codes_of, column_of, kind_of


class PipelineSearch(ClassifierMixin, TransformerMixin, BaseEstimator):
    """Searches a preprocessing pipeline for every column, then fits them and a classifier on all rows.

    ``transform`` gives the transformed columns side by side, ``predict`` the classifier's classes. X is an array of
    numbers, or a pandas or polars DataFrame, whose columns of text are categories and whose dates are times.

    Args:
        method: how pipelines are searched, see :func:`~ziggurat.search.pipelines.search.search_pipelines`.
        budget: cross-validated evaluations in all.
        downstream: ``logistic_regression`` or ``mlp``.
        metric: ``auc``, ``accuracy`` or ``log_loss``, which decides.
        folds: of the cross-validation; fewer where the largest class has fewer rows.
        clusters: of ``cluster`` and ``kmeans``.
        kinds: kinds of columns by name, ``numeric``, ``categorical`` or ``time``; default: by their types.
        hours: time limit of the search.
        jobs: evaluations at a time.
        folder: where evaluations are recorded, so that a fit that was stopped goes on.
        random_state: seeds everything; a number, a ``RandomState`` that draws one, or None for NumPy's own.

    Attributes:
        found_: what the search found.
        classes_: the classes.
        n_features_in_: number of columns.
    """

    def __init__(
        self,
        method: MethodName = "cluster",
        budget: int = 60,
        downstream: str = "logistic_regression",
        metric: TableMetric = "auc",
        folds: int = 5,
        clusters: int = 3,
        kinds: Mapping[str, Kind] | None = None,
        hours: float | None = None,
        jobs: int = 1,
        folder: str | Path | None = None,
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.method: MethodName = method
        self.budget = budget
        self.downstream = downstream
        self.metric: TableMetric = metric
        self.folds = folds
        self.clusters = clusters
        self.kinds: Mapping[str, Kind] | None = kinds
        self.hours = hours
        self.jobs = jobs
        self.folder = folder
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: Any, y: Any) -> Self:
        """Searches, then fits the pipelines found and the classifier on all rows.

        Args:
            X: (n, d).
            y: (n,) classes, two or more.
        """
        columns = self._columns(X, y, fitting=True)
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"PipelineSearch: y has one class, {self.classes_[0]!r}; two or more are needed")
        classes = tuple(str(each) for each in self.classes_)
        self._table = Table(columns, codes.astype(np.int64), classes, "X")
        folds = max(2, min(self.folds, int(np.bincount(codes).max())))
        kinds = {"logistic_regression": LogisticRegressionTask, "mlp": MLPTask}
        if self.downstream not in kinds:
            raise ValueError(f"downstream: received {self.downstream!r}; give one of {', '.join(kinds)}")
        task = kinds[self.downstream](metric=self.metric, folds=folds)
        folder = None if self.folder is None else Path(self.folder)
        given = self.random_state
        seed = given if isinstance(given, int | np.integer) else check_random_state(given).randint(2**31)
        self.found_ = search_pipelines(
            self._table, task, method=self.method, budget=self.budget, seed=seed, folder=folder,
            hours=self.hours, jobs=self.jobs, policy=PolicyConfig(clusters=self.clusters),
        )  # fmt: skip
        if self.found_.signal == signal.SIGINT:
            raise KeyboardInterrupt
        if self.found_.signal is not None:
            raise SystemExit(128 + self.found_.signal)
        blocks, _ = self._parts(columns)
        self._widths = [each.shape[1] for each in blocks]
        self._model = fitted_model(task, np.concatenate(blocks, axis=1), self._table.labels, len(classes), seed)
        return self

    def transform(self, X: Any) -> Floats:
        """Returns the transformed columns, (n, w), as fitted on all training rows."""
        check_is_fitted(self, "found_")
        return self._blocks(self._columns(X, None, fitting=False))[1]

    def fit_transform(self, X: Any, y: Any = None, **fit_params: Any) -> Floats:
        """Fits and transforms the same rows, of which target means are cross-fitted: what follows learns from them.

        As scikit-learn's ``TargetEncoder``, it therefore differs from ``fit(X, y).transform(X)``.
        """
        return self.fit(X, y)._blocks(self._table.columns)[0]

    def get_feature_names_out(self, input_features: Any = None) -> npt.NDArray[Any]:
        """Returns a name for each transformed column: that of the column, and a number where it gives several."""
        check_is_fitted(self, "_widths")
        widths = zip((own.name for own in self._table.columns), self._widths, strict=True)
        names = [[name] if width == 1 else [f"{name}_{place}" for place in range(width)] for name, width in widths]
        return np.asarray([name for each in names for name in each], dtype=object)

    def predict_proba(self, X: Any) -> Floats:
        """Returns (n, classes) probabilities."""
        rows = self.transform(X)
        return probabilities(self._model, rows, len(self.classes_))

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Returns the likeliest class of each row."""
        places = self.predict_proba(X).argmax(axis=1)
        return self.classes_[places]

    def _blocks(self, columns: tuple[Column, ...]) -> tuple[Floats, Floats]:
        """Returns the training rows and other rows, transformed."""
        train, rest = (np.concatenate(each, axis=1) for each in self._parts(columns))
        return train, rest

    def _parts(self, columns: tuple[Column, ...]) -> tuple[list[Floats], list[Floats]]:
        """Returns the blocks of each column, for the training rows and for other rows."""
        found = self.found_.pipelines
        blocks = [
            fitted_block(
                found[own.name], input_of(own, found[own.name]), self._table.labels, input_of(other, found[own.name])
            )
            for own, other in zip(self._table.columns, columns, strict=True)
        ]
        return [each for each, _ in blocks], [each for _, each in blocks]

    def _columns(self, X: Any, y: Any, *, fitting: bool) -> tuple[Column, ...]:
        """Returns the checked columns; those of new rows have the categories of the training rows first."""
        if isinstance(X, pl.DataFrame) or _has_other_types(X):
            frame = X if isinstance(X, pl.DataFrame) else pl.from_pandas(X)
            if fitting:
                self.feature_names_in_ = np.asarray(frame.columns, dtype=object)
                self.n_features_in_ = frame.width
                if y is None or len(y) != frame.height:
                    raise ValueError(f"X has {frame.height} rows; y must have as many")
            elif frame.columns != [each.name for each in self._table.columns]:
                names = [each.name for each in self._table.columns]
                raise ValueError(f"X has the columns {frame.columns}; it was fitted with {names}")
        else:
            options: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan", "reset": fitting}
            checked: Any = validate_data(self, X, y, **options) if fitting else validate_data(self, X, **options)
            values = checked[0] if fitting else checked
            given = getattr(self, "feature_names_in_", None)
            names = [f"x{place}" for place in range(values.shape[1])] if given is None else [str(n) for n in given]
            frame = pl.DataFrame({name: values[:, place] for place, name in enumerate(names)})
        if fitting:
            kinds: dict[str, Kind] = dict(self.kinds or {})
            for name, kind in kinds.items():
                if name not in frame.columns:
                    raise ValueError(f"kinds: there is no column {name!r}; there are {shorten(frame.columns)}")
                if kind not in get_args(Kind):
                    raise ValueError(f"kinds: {name!r} is {kind!r}; give one of {', '.join(get_args(Kind))}")
            return tuple(column_of(each, kinds.get(each.name) or kind_of(each), "X") for each in frame.get_columns())
        return tuple(_like(own, frame[own.name]) for own in self._table.columns)


def _has_other_types(X: Any) -> bool:
    """Whether X is a pandas frame with columns that are no numbers."""
    kinds = getattr(X, "dtypes", None)
    if kinds is None or not hasattr(X, "columns"):
        return False
    return any(getattr(kind, "kind", "O") not in "biufc" for kind in kinds)


def _like(own: Column, series: pl.Series) -> Column:
    """Returns a column of new rows; categories that the training rows lack follow those that they have."""
    if own.kind != "categorical":
        return column_of(series, own.kind, "X")
    codes, texts, _ = codes_of(series)
    known = {text: place for place, text in enumerate(own.categories)}
    new = [text for text in texts if text not in known]
    places = known | {text: len(known) + place for place, text in enumerate(new)}
    lookup = np.array([*(places[text] for text in texts), MISSING_CODE])
    return Column(own.name, own.kind, lookup[codes.astype(np.int64)], (*own.categories, *new), own.whole)
