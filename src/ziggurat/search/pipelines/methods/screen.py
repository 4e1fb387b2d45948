"""A cheap look at every column by itself: how well each shape that a pipeline can give it explains the label.

A linear model of one column's block, fitted in closed form on a part of the training rows of one fold and judged on the
rest of them. It only says which pipelines to try first; the cross-validated score of the downstream model decides. It
is no part of ClusterP3S, and costs no evaluation but a fraction of the time of one.
"""

from __future__ import annotations

import numpy as np

from ziggurat.search.pipelines.blocks.fitted import fitted_block, input_of
from ziggurat.search.pipelines.evaluation import AnyPipeline
from ziggurat.search.pipelines.pipeline import NumericPipeline, possible
from ziggurat.search.pipelines.table import Column, Floats, Ints, Table

_MOST_ROWS = 2000
_PARTS = 2
_PENALTY = 1e-3
_LINEAR = ("none", "standard", "min_max", "max_abs", "robust")


def shape_of(pipeline: AnyPipeline) -> AnyPipeline:
    """Returns the pipeline that stands for all of which a linear model of one column makes the same."""
    if isinstance(pipeline, NumericPipeline):
        scaler = "standard" if pipeline.scaler in _LINEAR and pipeline.discretiser == "none" else pipeline.scaler
        return pipeline.model_copy(update={"scaler": scaler, "imputer": "median"})
    return pipeline


class Screen:
    """How well each shape explains the label: the share of its variance on rows that did not fit, of each column.

    Args:
        table: the table.
        rows: the training rows of one fold; no other is looked at.
        seed: seeds which of them fit.
    """

    def __init__(self, table: Table, rows: Ints, seed: int) -> None:
        random = np.random.default_rng([seed, 4])
        chosen = random.permutation(rows)[:_MOST_ROWS]
        self._gain: dict[str, dict[AnyPipeline, float]] = {}
        parts = [chosen[each::_PARTS] for each in range(_PARTS)]
        labels = table.labels
        targets = np.eye(len(table.classes))[labels]
        for column in table.columns:
            shapes = dict.fromkeys(shape_of(each) for each in possible(column.kind, has_missing=column.has_missing))
            self._gain[column.name] = {shape: _explained(column, shape, labels, targets, parts) for shape in shapes}

    def gain(self, column: str, pipeline: AnyPipeline) -> float:
        """Returns the share of variance; below 0 if it is worse than the mean."""
        return self._gain[column].get(shape_of(pipeline), -1.0)

    def ranked(self, columns: list[Column], options: tuple[AnyPipeline, ...]) -> tuple[Floats, list[AnyPipeline]]:
        """Returns probabilities and pipelines, best first: that of the pipeline of rank r is proportional to 1/r.

        The rank is by the mean over the columns; of equal ones the earlier comes first.
        """
        means = [sum(self.gain(each.name, option) for each in columns) / len(columns) for option in options]
        order = sorted(range(len(options)), key=lambda place: (-round(means[place], 9), place))
        weights = 1.0 / np.arange(1, len(options) + 1)
        return weights / weights.sum(), [options[place] for place in order]


def _explained(column: Column, pipeline: AnyPipeline, labels: Ints, targets: Floats, parts: list[Ints]) -> float:
    values = input_of(column, pipeline)
    shares: list[float] = []
    for place, other in enumerate(parts):
        train = np.concatenate([each for number, each in enumerate(parts) if number != place])
        try:
            fitted, rest = fitted_block(pipeline, values[train], labels[train], values[other])
        except (ValueError, ArithmeticError):
            return -1.0
        mean, middle = fitted.mean(axis=0), targets[train].mean(axis=0)
        spread = np.where((spread := fitted.std(axis=0)) > 1e-12, spread, 1.0)
        fitted, rest = (fitted - mean) / spread, (rest - mean) / spread
        matrix = fitted.T @ fitted + _PENALTY * len(train) * np.eye(fitted.shape[1])
        weights = np.linalg.solve(matrix, fitted.T @ (targets[train] - middle))
        left = ((targets[other] - middle - rest @ weights) ** 2).sum()
        shares.append(1.0 - left / max(((targets[other] - middle) ** 2).sum(), 1e-12))
    return float(np.mean(shares))
