"""Detects a model that predicts a binary label nearly without error, which is almost always a leak."""

from __future__ import annotations

from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.metric_set import MetricSet

LEAST_AUC = 0.999
LEAST_ROWS = 50
"""Fewer rows of a class give an AUC near 1 by chance."""


def perfect_tasks(metrics: MetricSet) -> list[str]:
    """Returns a sentence for every task with labels of 0 and 1 whose AUC is above :data:`LEAST_AUC`.

    Args:
        metrics: metrics of a trained model on rows that it was not trained on.
    """
    sentences: list[str] = []
    for task in metrics.tasks:
        found = metrics[task]
        if not isinstance(found, BinaryMetrics) or found.task.kind != "binary":
            continue
        figures = found.compute()
        rarer = found.rows * min(figures["base_rate"], 1 - figures["base_rate"])
        if figures["auc"] > LEAST_AUC and rarer >= LEAST_ROWS:
            which = f" of {task}" if len(metrics.tasks) > 1 else ""
            sentences.append(
                f"The AUC{which} is {figures['auc']:.5f}, which is almost always a leak: a feature that is known only "
                "after the label, such as a revenue, a duration or a status. Train with one feature alone at a time: "
                "the one whose AUC stays that high is it."
            )
    return sentences
