"""How a method and the search talk: proposals of pipelines one way, scores the other.

A method is a generator. It is a function of its seed and of the scores that it is sent, so that a search that was
killed goes on by running the method from its beginning on the scores that were recorded.
"""

from __future__ import annotations

from collections.abc import Generator
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


def missing_kinds(table: Table) -> dict[Kind, bool]:
    """Returns the kinds of the table's columns, each with whether a column of it has missing values."""
    kinds: dict[Kind, bool] = {}
    for each in table.columns:
        kinds[each.kind] = kinds.get(each.kind, False) or each.has_missing
    return kinds
