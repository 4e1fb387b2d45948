"""The cost network's features of a shard: its shape, its look-ups, and how often the same rows are looked up.

AutoShard (arXiv 2208.06399) describes a table by dim, rows, mean pooling, bytes and 17 shares of rows by their reuse in
a batch. Those features are specific to one batch size. Ours are per step, so that any batch size and any part of a
table can be described: ids and bags of a step instead of the pooling factor, all on a log scale, and the optimizer's
floats a row. Bytes are left out: they are rows times columns, a sum of logarithms that are already there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ziggurat.core.plan import Shard, Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.planning.cost import FLOAT, state_bytes
from ziggurat.planning.usage import Usage

Floats = npt.NDArray[np.float64]

REUSE_BINS = 17
"""Bins by how often a row is looked up: once, twice, up to 4, up to 8, …, up to 32,768 times, and above."""
NAMES = ("columns", "rows", "ids", "bags", "touched", "state", *(f"reuse_{k}" for k in range(REUSE_BINS)))
FEATURES = len(NAMES)


def shard_features(
    table: TableSpec, shard: Shard, sharding: Sharding, usage: Usage, batch_size: int, world_size: int
) -> Floats:
    """Returns the features of one shard, (FEATURES,).

    Args:
        table, shard, sharding: the table, its shard and its sharding.
        usage: usage of the table.
        batch_size: examples per rank and step.
        world_size: ranks, all of whose examples reach a shard that is not replicated.
    """
    examples = batch_size * (1 if sharding == "data_parallel" else world_size)
    looked_up = examples * usage.ids_per_row
    counts, times = usage.counts(shard.rows)
    return features(
        columns=shard.columns.size,
        rows=shard.rows.size,
        bags=examples * len(table.keys),
        means=looked_up * counts,
        times=times,
        state=state_bytes(table.optimizer, shard.rows.size, shard.columns.size) / FLOAT / max(shard.rows.size, 1),
    )


def features(*, columns: int, rows: int, bags: float, means: Floats, times: Floats, state: float) -> Floats:
    """Returns the features of a table or a part of one, (FEATURES,).

    Args:
        columns, rows: columns and rows of the part.
        bags: bags looked up in a step.
        means: expected look-ups of a row in a step, the means of Poisson distributions, (n,).
        times: number of rows with each of these means, (n,).
        state: floats of optimizer state a row.
    """
    from scipy.stats import poisson  # takes most of a second to import and is seldom needed

    reached = -np.expm1(-means)  # at least once
    touched = float(times @ reached)
    edges = 2.0 ** np.arange(REUSE_BINS - 1)
    below = poisson.cdf(edges, means[:, None])
    shares = np.diff(np.column_stack([np.exp(-means), below, np.ones(len(means))]), axis=1)
    reuse = times @ shares / touched if touched else np.zeros(REUSE_BINS)
    sizes = np.log2(1 + np.array([columns, rows, times @ means, bags, touched, state], np.float64))
    return np.concatenate([sizes, reuse])
