"""The baselines without clusters: standard scaling, one shared pipeline of each kind, and every feature by itself."""

from __future__ import annotations

import numpy as np

from ziggurat.search.pipelines.methods.proposals import Proposal, Proposals, drawn, missing_kinds, standard
from ziggurat.search.pipelines.table import Table


def only_standard(table: Table) -> Proposals:
    """Proposes standard scaling and nothing else."""
    yield [standard(table)]


def shared(table: Table, seed: int, batch: int) -> Proposals:
    """Proposes random pipelines that all columns of a kind share."""
    random = np.random.default_rng([seed, 1])
    yield [standard(table)]
    kinds = missing_kinds(table)
    while True:
        proposals: list[Proposal] = []
        for _ in range(batch):
            of_kind = {kind: drawn(kind, has_missing=missing, random=random) for kind, missing in kinds.items()}
            proposals.append(Proposal("random", {each.name: of_kind[each.kind] for each in table.columns}))
        yield proposals


def per_feature(table: Table, seed: int, batch: int) -> Proposals:
    """Proposes a random pipeline for each column by itself."""
    random = np.random.default_rng([seed, 2])
    yield [standard(table)]
    while True:
        proposals: list[Proposal] = []
        for _ in range(batch):
            chosen = {
                each.name: drawn(each.kind, has_missing=each.has_missing, random=random) for each in table.columns
            }
            proposals.append(Proposal("random", chosen))
        yield proposals
