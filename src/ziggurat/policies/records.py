"""What selection and evaluation of a run found, as it is stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ziggurat.policies.actions import Floats
from ziggurat.policies.continuous_rules import ContinuousRule
from ziggurat.policies.discrete_rules import DiscreteRule

Rule = DiscreteRule | ContinuousRule


@dataclass(frozen=True, slots=True)
class Candidate:
    """An ensemble that selection considered.

    Attributes:
        diversity_weight: λ, the first one that chose these members.
        members: the cycles of the members.
        rule: how they act.
        divergence: mean divergence of its pairs.
        returns: its returns in the selection's episodes.
    """

    diversity_weight: float
    members: tuple[int, ...]
    rule: Rule
    divergence: float
    returns: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))


@dataclass(frozen=True, slots=True)
class SelectionRecord:
    """What selection found.

    Attributes:
        cycles: the cycles of the snapshots.
        returns: for each snapshot its returns in the selection's episodes.
        divergence: of each pair of snapshots.
        candidates: the ensembles that were played.
        chosen: the position of the one that was taken.
        tolerance: δ, in the units of the returns.
        steps: steps of the environment that selection took.
        episodes: the seed of its first episode, and that after its last one.
        temperature: of the ensembles, see :class:`~ziggurat.policies.config.EnsembleConfig`.
        size: m, how many members were asked for; fewer are chosen where fewer are good enough. 0 in a file of an
            earlier version, which did not store it.
        drawn: whether discrete actions were drawn, see the same; a file of an earlier version has none drawn.
    """

    cycles: tuple[int, ...]
    returns: tuple[tuple[float, ...], ...]
    divergence: tuple[tuple[float, ...], ...]
    candidates: tuple[Candidate, ...]
    chosen: int
    tolerance: float
    steps: int
    episodes: tuple[int, int]
    temperature: float
    size: int = 0
    drawn: bool = False

    @property
    def ensemble(self) -> Candidate:
        return self.candidates[self.chosen]

    @property
    def wanted(self) -> int:
        """How many members were asked for, or as many as were chosen where that is not stored."""
        return self.size or len(self.ensemble.members)

    @property
    def means(self) -> list[float]:
        """The mean return of each snapshot."""
        return [float(np.mean(each)) for each in self.returns]

    @property
    def best(self) -> int:
        """The cycle of the snapshot with the greatest mean return, the first of equal ones."""
        return self.cycles[int(np.argmax(self.means))]

    @property
    def divergence_MM(self) -> Floats:  # noqa: N802 - a shape suffix
        return np.array(self.divergence, np.float64).reshape(len(self.cycles), len(self.cycles))


@dataclass(frozen=True, slots=True)
class Judged:
    """Returns of one policy or ensemble in the evaluation's episodes.

    Attributes:
        members: cycles of the members; a single one for a snapshot.
        rule: how they act.
        divergence: mean divergence of its pairs; 0 for a snapshot.
        returns: its returns.
    """

    members: tuple[int, ...]
    rule: Rule
    divergence: float
    returns: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """What evaluation found.

    Attributes:
        ensemble: the chosen ensemble.
        snapshots: each snapshot on its own.
        best: the cycle of the snapshot that was best in the selection's episodes.
        random: returns of random actions.
        weights: values of λ, rising.
        sweep: for each of them, the ensemble that it chooses, with the chosen rule.
        rules: the chosen members with each rule.
        steps: steps of the environment that evaluation took.
    """

    ensemble: Judged
    snapshots: tuple[Judged, ...]
    best: int
    random: tuple[float, ...]
    weights: tuple[float, ...]
    sweep: tuple[Judged, ...]
    rules: tuple[Judged, ...]
    steps: int

    @property
    def last(self) -> Judged:
        return self.snapshots[-1]

    @property
    def best_snapshot(self) -> Judged:
        return next(each for each in self.snapshots if each.members == (self.best,))
