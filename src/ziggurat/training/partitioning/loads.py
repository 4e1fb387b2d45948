"""The loads of features: what their tables move for an example."""

from __future__ import annotations

from ziggurat.core.statistics import DatasetStatistics
from ziggurat.embeddings.layout import Layout
from ziggurat.planning.usage import Usage


def feature_loads(layout: Layout, trained: Layout, statistics: DatasetStatistics | None) -> dict[str, float]:
    """Returns the load of each feature: the floats that are looked up for an example.

    The load of a table is its look-ups an example times its width. Features that share a table share its load equally.
    Without statistics, each key of a table is looked up once.

    Args:
        layout: the tables whose loads are returned; its features are those of ``trained``.
        trained: the tables of the run, whose look-ups were counted. Features may share other tables there.
        statistics: what preparation has counted for the run.
    """
    looked_up = _look_ups(trained if statistics is not None else layout, statistics)
    loads: dict[str, float] = {}
    for spec in layout.tables:
        load = sum(looked_up[feature] for feature in spec.features) * spec.dim
        loads.update({feature: load / len(spec.features) for feature in spec.features})
    return {feature: loads[feature] for feature in layout.schema.sparse}


def _look_ups(layout: Layout, statistics: DatasetStatistics | None) -> dict[str, float]:
    """Returns the look-ups of each feature for an example: its part of those of its table, as planners count them."""
    found: dict[str, float] = {}
    for spec in layout.tables:
        counted = [_pooled(feature, statistics) for feature in spec.features]
        whole = Usage.of(spec, statistics).ids_per_row
        for feature, own in zip(spec.features, counted, strict=True):
            found[feature] = whole * (own / sum(counted) if sum(counted) else 1 / len(counted))
    return found


def _pooled(feature: str, statistics: DatasetStatistics | None) -> float:
    """Returns the ids of a feature in an example that has been prepared, on average; 0 if they were not counted."""
    counted = None if statistics is None else statistics.features.get(feature)
    return 0.0 if counted is None else counted.coverage * counted.mean_pooling
