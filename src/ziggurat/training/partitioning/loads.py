"""The loads of features: what their tables move for an example."""

from __future__ import annotations

from ziggurat.core.statistics import DatasetStatistics
from ziggurat.embeddings.layout import Layout
from ziggurat.planning.usage import Usage


def feature_loads(layout: Layout, statistics: DatasetStatistics | None) -> dict[str, float]:
    """Returns the load of each feature: the floats that are looked up for an example.

    The load of a table is its look-ups an example, as planners count them, times its width. Features that share a table
    share its load equally. Without statistics, each key of a table is looked up once.
    """
    loads: dict[str, float] = {}
    for spec in layout.tables:
        load = Usage.of(spec, statistics).ids_per_row * spec.dim
        loads.update({feature: load / len(spec.features) for feature in spec.features})
    return {feature: loads[feature] for feature in layout.schema.sparse}
