"""Detects a model that predicts a constant, and names the settings that may have caused it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.metric_set import MetricSet
from ziggurat.metrics.task_metrics import TaskMetrics
from ziggurat.metrics.value_metrics import ValueMetrics
from ziggurat.training.experiment import Experiment

SPREAD = 1e-3
"""Logits within this range count as one prediction: their odds differ by at most a thousandth."""

NO_ORDER = 0.01
"""How far the AUC of a constant prediction may be from 0.5: equal rows still get predictions that differ in the last
bits, depending on their place in a batch."""


def collapsed_tasks(metrics: MetricSet, experiment: Experiment) -> list[str]:
    """Returns a sentence for every task that gets the same prediction in all rows.

    Args:
        metrics: metrics of a trained model; a task whose rows have one class only has no AUC and is skipped.
        experiment: the experiment; its settings that shrink weights are named.
    """
    sentences: list[str] = []
    for task in metrics.tasks:
        if _is_constant(metrics[task]):
            which = f" for {task}" if len(metrics.tasks) > 1 else ""
            figures = metrics[task].compute()
            order = "auc" if "auc" in figures else "xauc"
            sentences.append(
                f"The model predicts the same{which} for every row ({figures['mean_prediction']:.4f}, {order.upper()} "
                f"{figures[order]:.3f}): it has learnt nothing from the features. {_advice(experiment)}"
            )
    return sentences


def _is_constant(metrics: TaskMetrics) -> bool:
    if isinstance(metrics, ValueMetrics):
        if not abs(metrics.compute()["xauc"] - 0.5) <= NO_ORDER:
            return False
        predictions = metrics.pairs.predictions
        return bool(np.ptp(predictions) < SPREAD * max(float(np.ptp(metrics.pairs.labels)), 1e-30))
    if not abs(metrics.compute()["auc"] - 0.5) <= NO_ORDER:  # also true if the AUC is nan
        return False
    assert isinstance(metrics, BinaryMetrics)
    logits_K = metrics.histogram.logits
    return bool(logits_K[-1] - logits_K[0] < SPREAD)


def _advice(experiment: Experiment) -> str:
    on = [f"{key}={value:g}" for key, value in _shrinking(experiment)]
    if not on:
        return "Train longer, or try other learning rates (optimizer.lr, embeddings.optimizer.lr) or a larger init_std."
    return f"{' and '.join(on)} may have shrunk its weights to nothing: try less, or 0."


def _shrinking(experiment: Experiment) -> Iterator[tuple[str, float]]:
    """Yields the settings, by key, that pull weights towards 0 and are not 0."""
    embeddings = experiment.embeddings
    sections = {"optimizer": experiment.optimizer, "embeddings.optimizer": embeddings.optimizer}
    own = {f"embeddings.tables.{name}.optimizer": table.optimizer for name, table in embeddings.tables.items()}
    if embeddings.l2:
        yield "embeddings.l2", embeddings.l2
    for place, section in (sections | own).items():
        for key in ("weight_decay", "l2"):
            value = getattr(section, key, 0.0)
            if value:
                yield f"{place}.{key}", value
