"""The baselines without clusters: standard scaling, one shared pipeline of each kind, and every feature by itself."""

from __future__ import annotations

import numpy as np

from ziggurat.search.pipelines.methods.proposals import Proposals, random_in_groups, standard
from ziggurat.search.pipelines.table import Table


def only_standard(table: Table) -> Proposals:
    """Proposes standard scaling and nothing else."""
    yield [standard(table)]


def shared(table: Table, seed: int, batch: int) -> Proposals:
    """Proposes random pipelines that all columns of a kind share."""
    together = {each.name: 0 for each in table.columns}
    return random_in_groups(table, together, np.random.default_rng([seed, 1]), batch)


def per_feature(table: Table, seed: int, batch: int) -> Proposals:
    """Proposes a random pipeline for each column by itself."""
    apart = {each.name: each.name for each in table.columns}
    return random_in_groups(table, apart, np.random.default_rng([seed, 2]), batch)
