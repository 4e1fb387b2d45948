"""What a partition of features needs to know of an experiment: which features must stay together, and their loads."""

from __future__ import annotations

from collections.abc import Sequence

from ziggurat.core.statistics import DatasetStatistics
from ziggurat.embeddings.layout import Layout
from ziggurat.planning.usage import Usage


def feature_units(layout: Layout) -> tuple[tuple[str, ...], ...]:
    """Returns the features that have tables, in schema order; those that share a table or a group are one unit."""
    unit_of = {feature: {feature} for feature in layout.schema.sparse}
    ties: list[Sequence[str]] = [spec.features for spec in layout.tables]
    ties += [source.features for source in layout.sources if source.group is not None]
    for tied in ties:
        union = set[str]().union(*(unit_of[feature] for feature in tied))
        for feature in union:
            unit_of[feature] = union
    order = {feature: number for number, feature in enumerate(layout.schema.sparse)}
    units = dict.fromkeys(tuple(sorted(unit, key=order.__getitem__)) for unit in unit_of.values())
    return tuple(sorted(units, key=lambda unit: order[unit[0]]))


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
