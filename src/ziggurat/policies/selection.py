"""Chooses a subset of snapshots that is good and diverse.

A subset of m snapshots with 0/1 weights w is worth

    Σ w_k · z(R_k) + λ · wᵀDw / Σ D

where z(R_k) is the return of snapshot k in standard deviations from the mean over all snapshots and D the matrix of
pairwise divergences. Only snapshots with R_k ≥ max R − δ take part. λ = 0 takes the m best; a large λ takes those that
are farthest apart. SEERL (arXiv 2001.05209) solves a relaxed quadratic problem over weights; we state the
problem over subsets, as that is what is played, and solve it exactly up to ten snapshots.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ziggurat.core.errors import ConfigError
from ziggurat.policies.actions import Floats

MOST_EXACT = 10
"""The most snapshots whose subsets are all compared; of more, members are added greedily, then exchanged."""


@dataclass(frozen=True, slots=True)
class Selection:
    """A chosen subset.

    Attributes:
        members: positions of the chosen snapshots, rising.
        value: what the subset is worth.
        diversity: mean divergence of the pairs in the subset; 0 for a single member.
        exact: whether all subsets were compared.
    """

    members: tuple[int, ...]
    value: float
    diversity: float
    exact: bool


def select(
    returns_M: Sequence[float], divergence_MM: Floats, size: int, diversity: float, tolerance: float
) -> Selection:
    """Returns the best subset of ``size`` snapshots, or of all that are good enough if these are fewer.

    Of equally good subsets, the first in lexicographic order is taken.

    Args:
        returns_M: the return R_k of each snapshot; all finite.
        divergence_MM: symmetric, with a zero diagonal.
        size: m, 1 or more.
        diversity: λ, 0 or more.
        tolerance: δ, 0 or more, in the units of the returns; infinite to admit all.

    Raises:
        ConfigError: ``size``, ``diversity`` or ``tolerance`` is not allowed, or a return or divergence is not finite.
    """
    returns = np.asarray(returns_M, np.float64)
    if size < 1 or not 0 <= diversity < np.inf or not tolerance >= 0:
        raise ConfigError(
            f"a selection of {size} members with λ = {diversity} and δ = {tolerance}",
            "use 1 member or more, and numbers that are not negative; λ is finite",
        )
    if not len(returns) or not np.isfinite(returns).all():
        raise ConfigError(f"returns of the snapshots: {returns.tolist()}", "give finite returns of 1 snapshot or more")
    if divergence_MM.shape != (len(returns), len(returns)) or not np.isfinite(divergence_MM).all():
        raise ConfigError(
            f"divergences of {len(returns)} snapshots: {divergence_MM.tolist()}",
            "give a finite number for each pair; a policy whose weights are no finite numbers has none",
        )
    # A tolerance of the whole range is this difference of the worst one, rounded alike.
    admitted = np.flatnonzero(returns.max() - returns <= tolerance).tolist()
    worth = _Worth(returns, divergence_MM, diversity)
    size = min(size, len(admitted))
    exact = len(returns) <= MOST_EXACT
    members = _best(worth, itertools.combinations(admitted, size)) if exact else _greedy(worth, admitted, size)
    return Selection(members, worth.of(members), mean_divergence(divergence_MM, members), exact)


def mean_divergence(divergence_MM: Floats, members: Sequence[int]) -> float:
    """Returns the mean divergence of the pairs of ``members``; 0 for a single member."""
    pairs = [divergence_MM[i, j] for i, j in itertools.combinations(members, 2)]
    return float(np.mean(pairs)) if pairs else 0.0


class _Worth:
    def __init__(self, returns_M: Floats, divergence_MM: Floats, diversity: float) -> None:
        spread, total = float(returns_M.std()), float(divergence_MM.sum())
        self._z_M = (returns_M - returns_M.mean()) / (spread or 1.0)
        self._share_MM = diversity * divergence_MM / (total or 1.0)

    def of(self, members: Sequence[int]) -> float:
        index = list(members)
        return float(self._z_M[index].sum() + self._share_MM[np.ix_(index, index)].sum())


def _best(worth: _Worth, subsets: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    best, found = -np.inf, tuple[int, ...]()
    for subset in subsets:
        if (value := worth.of(subset)) > best + 1e-12:
            best, found = value, subset
    return found


def _greedy(worth: _Worth, admitted: Sequence[int], size: int) -> tuple[int, ...]:
    """Adds the member that gains most until there are ``size``, then exchanges members while that gains."""
    chosen: tuple[int, ...] = ()
    while len(chosen) < size:
        chosen = _best(worth, (tuple(sorted((*chosen, each))) for each in admitted if each not in chosen))
    while True:
        exchanges = (
            tuple(sorted((*(kept for kept in chosen if kept != out), new)))
            for out in chosen
            for new in admitted
            if new not in chosen
        )
        better = _best(worth, itertools.chain([chosen], exchanges))
        if better == chosen:
            return chosen
        chosen = better
