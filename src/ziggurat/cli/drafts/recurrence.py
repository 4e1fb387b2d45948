"""Whether the same two ids meet again and again in a log, or each pair of them once, and what a pair tells.

A user opens the same app every day, but rates a film once. Where pairs recur, a model that can learn them one by one is
ahead; where they do not, it learns the noise of each row by heart. Where one row of a pair tells the label of its other
rows, and neither id alone does, a pair deserves a vector of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import polars as pl

from ziggurat.data.inference.label_order import Floats, label_numbers
from ziggurat.data.inference.roles import Inference

_MOST_IDS, _LEAST_ROWS = 4, 10
"""Columns that are looked at, those with most values; and rows that a value has on average, to be learned at all."""


@dataclass(frozen=True, slots=True)
class PairOfIds:
    """Two columns of ids.

    Attributes:
        columns: their names.
        recurring: share of rows whose pair an earlier row has, from 0 to 1.
        tells: share of the label's variance that is between pairs, less what is between the values of either column
            alone; of several labels the largest. About 0 if nothing is.
    """

    columns: tuple[str, str]
    recurring: float
    tells: float


def pair_of_ids(found: Inference) -> PairOfIds | None:
    """Returns the two columns of ids with the most different pairs, among those with most values.

    Returns:
        The pair; None if not every row was examined, or fewer than two columns are ids.
    """
    frame, rows = found.sample.frame, found.sample.frame.height
    if not found.sample.complete or not rows:
        return None
    ids = [feature.profile for feature in found.features if feature.kind == "categorical"]
    learned = [each for each in ids if each.distinct * _LEAST_ROWS <= rows]
    largest = sorted(learned, key=lambda each: each.distinct, reverse=True)[:_MOST_IDS]
    pairs = [
        (int(frame.select(pl.struct(first.name, second.name).n_unique()).item()), first.name, second.name)
        for first, second in combinations(largest, 2)
    ]
    if not pairs:
        return None
    different, first, second = max(pairs, key=lambda pair: pair[0])
    numbers = [label_numbers(label, frame) for label in found.labels]
    tells = [
        _told(frame, (first, second), each) - max(_told(frame, (name,), each) for name in (first, second))
        for each in numbers
        if each is not None
    ]
    return PairOfIds((first, second), 1 - different / rows, max(tells, default=0.0))


def _told(frame: pl.DataFrame, columns: Sequence[str], label_B: Floats) -> float:
    """Returns the share of the label's variance that is between values, among the rows whose value recurs.

    With n rows and the mean m of a value, the variance within values is sum (y - m)² / sum (n - 1), which has no bias.
    """
    value, label = list(columns), pl.col("@label")
    rows = frame.select(value).with_columns(pl.Series("@label", label_B)).filter(label.is_finite())
    sums = [pl.len().alias("@rows"), label.sum().alias("@sum"), label.pow(2).sum().alias("@squares")]
    recurring = rows.group_by(value).agg(sums).filter(pl.col("@rows") > 1)
    count, total, squares = (float(recurring[name].sum()) for name in ("@rows", "@sum", "@squares"))
    if not count:
        return 0.0
    variance = squares / count - (total / count) ** 2
    within = squares - float((recurring["@sum"] ** 2 / recurring["@rows"]).sum())
    return 1 - within / (count - recurring.height) / variance if variance > 0 else 0.0
