"""What a search of pipelines has found, as values."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ziggurat.search.pipelines.evaluation import AnyPipeline, mean_score

Method = str
"""One of ``METHODS`` of :mod:`ziggurat.search.pipelines.search`."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One episode of the policy that assigns features to clusters.

    Attributes:
        number: from 0.
        reward: the best cross-validated score of its pipelines.
        baseline: the moving mean of earlier rewards.
        losses: name -> value before the step: policy, kl, reconstruction, entropy.
        assignment: the cluster of each column that was drawn.
        entropy: mean entropy of the columns' assignments, in nats.
    """

    number: int
    reward: float
    baseline: float
    losses: dict[str, float]
    assignment: tuple[int, ...]
    entropy: float


@dataclass(frozen=True, slots=True)
class Trial:
    """One evaluation.

    Attributes:
        number: in the order in which the method asked for it.
        origin: which part of the method proposed it.
        pipelines: column -> pipeline.
        repeat: 0 for the folds of the search, others for fresh folds.
        scores: of each fold, more is better; empty if it failed.
        seconds: wall-clock.
        reason: why it failed.
    """

    number: int
    origin: str
    pipelines: dict[str, AnyPipeline]
    repeat: int
    scores: tuple[float, ...]
    seconds: float
    reason: str = ""

    @property
    def score(self) -> float:
        return mean_score(self.scores)


@dataclass(frozen=True, slots=True)
class FoundPipelines:
    """The pipeline of every column, and how it was found.

    Attributes:
        method: how it was searched.
        pipelines: column -> pipeline.
        clusters: column -> number of its cluster; columns of equal pipelines where the method has no clusters.
        score: cross-validated score of the pipelines, more is better: on fresh folds where there are any.
        search_score: that on the folds of the search, which chose it and is therefore too good.
        standard: cross-validated score of standard scaling on the same folds as ``score``.
        evaluations: evaluations that counted against the budget.
        seconds: wall-clock of all evaluations and of the method itself.
        trials: all evaluations.
        episodes: of the policy; empty for other methods.
        descriptors: (D, K) of the columns, as the network got them.
        descriptor_names: K names.
        coordinates: (D, 2) of the columns, the plane that shows most of what the clusters are made of.
        signal: the signal that stopped the search, if any.
        finished: whether the budget is used up.
    """

    method: Method
    pipelines: dict[str, AnyPipeline]
    clusters: dict[str, int]
    score: float
    search_score: float
    standard: float
    evaluations: int
    seconds: float
    trials: tuple[Trial, ...]
    episodes: tuple[Episode, ...] = ()
    descriptors: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 0)))
    descriptor_names: tuple[str, ...] = ()
    coordinates: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, 2)))
    signal: signal.Signals | None = None
    finished: bool = True
