"""What every listed metric keeps: finite on ordinary rows, the same bits in any order, an explanation of itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.names import METRICS

ROWS = 200


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Logits, labels, weights and groups of both classes."""
    draw = np.random.default_rng(5)
    logits = draw.normal(size=ROWS).astype(np.float32)
    labels = (draw.random(ROWS) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return logits, labels, draw.integers(1, 4, ROWS).astype(np.float32), draw.integers(0, 12, ROWS)


def figures(*orders: np.ndarray) -> dict[str, float]:
    """The figures of rows that are counted in parts, each part by metrics of its own."""
    merged = BinaryMetrics(grouped=True)
    for order in orders:
        part = BinaryMetrics(grouped=True)
        part.update(*(column[order] for column in rows()))
        merged.merge(part)
    return merged.compute()


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.compute is not None])
def test_a_metric_does_not_depend_on_order_or_parts(name: str) -> None:
    whole = figures(np.arange(ROWS))[name]
    shuffled = np.random.default_rng(1).permutation(ROWS)
    assert math.isfinite(whole)
    assert figures(shuffled[:70], shuffled[70:])[name] == whole


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_says_what_it_means(name: str) -> None:
    metric = METRICS[name]
    assert metric.name == name
    assert metric.title
    assert metric.meaning.endswith(".")


def test_figures_of_groups_need_groups() -> None:
    alone = BinaryMetrics()
    logits, labels, weights, _ = rows()
    alone.update(logits, labels, weights)
    computed = {name for name, metric in METRICS.items() if metric.compute is not None and not metric.grouped}
    assert alone.compute().keys() == computed
