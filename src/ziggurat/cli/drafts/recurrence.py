"""Whether the same two ids meet again and again in a log, or each pair of them once.

A user opens the same app every day, but rates a film once. Where pairs recur, a model that can learn them one by one is
ahead; where they do not, it learns the noise of each row by heart.
"""

from __future__ import annotations

from itertools import combinations

import polars as pl

from ziggurat.data.inference.roles import Inference

_MOST_IDS, _LEAST_ROWS = 4, 10
"""Columns that are looked at, those with most values; and rows that a value has on average, to be learned at all."""


def recurring_pairs(found: Inference) -> float | None:
    """Returns the share of rows whose pair of ids an earlier row has.

    It is that of the two columns of ids with the most different pairs, among those with most values.

    Returns:
        The share, from 0 to 1; None if not every row was examined, or fewer than two columns are ids.
    """
    rows = found.sample.frame.height
    if not found.sample.complete or not rows:
        return None
    ids = [feature.profile for feature in found.features if feature.kind == "categorical"]
    learned = [each for each in ids if each.distinct * _LEAST_ROWS <= rows]
    largest = sorted(learned, key=lambda each: each.distinct, reverse=True)[:_MOST_IDS]
    different = [
        found.sample.frame.select(pl.struct(first.name, second.name).n_unique()).item()
        for first, second in combinations(largest, 2)
    ]
    return 1 - max(different) / rows if different else None
