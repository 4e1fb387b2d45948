"""How a method and the search talk: proposals of pipelines one way, scores the other.

A method is a generator. It is a function of its seed and of the scores that it is sent, so that a search that was
killed goes on by running the method from its beginning on the scores that were recorded.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ziggurat.search.pipelines.evaluation import AnyPipeline
from ziggurat.search.pipelines.found import Episode
from ziggurat.search.pipelines.pipeline import STANDARD, Kind, possible
from ziggurat.search.pipelines.table import Table


@dataclass(frozen=True, slots=True)
class Proposal:
    """One pipeline for every column, and which part of the method it comes from."""

    origin: str
    pipelines: dict[str, AnyPipeline]


Proposals = Generator[list[Proposal], list[float], None]
"""Yields batches whose evaluations do not depend on each other; is sent their scores, -inf for a failure."""


@dataclass
class Notes:
    """What a method tells beside its proposals.

    Attributes:
        clusters: of the last or best assignment: column -> cluster.
        episodes: of the policy.
        descriptors: (D, K) of the columns.
        descriptor_names: K names.
        coordinates: (D, 2) of the columns.
    """

    clusters: dict[str, int] = field(default_factory=dict[str, int])
    episodes: list[Episode] = field(default_factory=list[Episode])
    descriptors: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    descriptor_names: tuple[str, ...] = ()
    coordinates: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))


def standard(table: Table) -> Proposal:
    """Returns standard scaling of numbers and one-hot categories: the first evaluation of every method."""
    return Proposal("standard", {each.name: STANDARD[each.kind] for each in table.columns})


def drawn(kind: Kind, *, has_missing: bool, random: np.random.Generator) -> AnyPipeline:
    """Returns a pipeline, each possible one with the same probability."""
    options = possible(kind, has_missing=has_missing)
    return options[int(random.integers(len(options)))]


def random_in_groups(
    table: Table, groups: Mapping[str, Hashable], random: np.random.Generator, batch: int
) -> Proposals:
    """Proposes standard scaling, then random pipelines that the columns of a kind and a group share, without end.

    Args:
        table: the table.
        groups: column -> its group.
        random: draws a pipeline for each group, in the order of the groups' first columns.
        batch: proposals at a time.
    """
    yield [standard(table)]
    of_column: dict[str, tuple[Hashable, Kind]] = {each.name: (groups[each.name], each.kind) for each in table.columns}
    has_missing: dict[tuple[Hashable, Kind], bool] = {}
    for each in table.columns:
        group = of_column[each.name]
        has_missing[group] = has_missing.get(group, False) or each.has_missing
    while True:
        proposals: list[Proposal] = []
        for _ in range(batch):
            chosen = {
                group: drawn(group[1], has_missing=missing, random=random) for group, missing in has_missing.items()
            }
            proposals.append(Proposal("random", {name: chosen[group] for name, group in of_column.items()}))
        yield proposals
