"""Compares methods over data sets: ranks, Friedman's test, Nemenyi's critical difference, a Bayesian signed-rank test.

The first three are those that Demšar recommends ("Statistical Comparisons of Classifiers over Multiple Data Sets", JMLR
7, 2006, section 3.2), the last is Benavoli et al.'s ("Time for a Change", JMLR 18, 2017, section 4.2).

Shape legend: N data sets, M methods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_PRIOR = 0.5
"""Weight of the prior's only observation, a difference of 0; a data set has 1."""
_DRAWS, _ROWS = 20_000, 256


@dataclass(frozen=True, slots=True)
class FriedmanTest:
    """Whether any method differs from the others.

    Attributes:
        chi_square: Friedman's statistic, corrected for ties, with M − 1 degrees of freedom.
        f: Iman and Davenport's statistic of it, which is less conservative; infinite if all sets rank alike.
        p: the probability of so large an ``f`` if the methods are equal.
    """

    chi_square: float
    f: float
    p: float


@dataclass(frozen=True, slots=True)
class SignedRank:
    """Probabilities that the median difference of two methods on another data set is below, within or above a region.

    They add up to 1: each draw of the posterior goes to the outcome that is the likeliest in it.
    """

    below: float
    equal: float
    above: float


def ranks(scores_NM: Floats) -> Floats:
    """Returns the rank of each method on each data set, (N, M): 1 is the highest score, ties share their mean rank.

    Raises:
        ValueError: a score is not finite.
    """
    if not np.isfinite(scores_NM).all():
        raise ValueError("a score is not finite")
    higher = (scores_NM[:, None, :] > scores_NM[:, :, None]).sum(-1)
    equal = (scores_NM[:, None, :] == scores_NM[:, :, None]).sum(-1)
    return higher + (equal + 1) / 2


def friedman(ranks_NM: Floats) -> FriedmanTest:
    """Returns Friedman's test of ranks; at least two data sets and three methods."""
    from scipy.stats import f as f_distribution  # takes most of a second to import and is seldom needed

    sets, methods = ranks_NM.shape
    assert sets > 1, sets
    assert methods > 2, methods
    between = sets * float(((ranks_NM.mean(0) - (methods + 1) / 2) ** 2).sum())
    within = float(((ranks_NM - (methods + 1) / 2) ** 2).sum()) / (sets * (methods - 1))
    if within == 0:  # all methods tie everywhere
        return FriedmanTest(0.0, 0.0, 1.0)
    chi_square = between / within
    rest = sets * (methods - 1) - chi_square
    f = math.inf if rest <= 1e-9 else (sets - 1) * chi_square / rest
    p = 0.0 if math.isinf(f) else float(f_distribution.sf(f, methods - 1, (methods - 1) * (sets - 1)))
    return FriedmanTest(chi_square, f, p)


def critical_difference(methods: int, sets: int, alpha: float = 0.05) -> float:
    """Returns Nemenyi's critical difference: mean ranks that are farther apart differ at level ``alpha``.

    It is q √(M(M + 1) / 6N) with the quantile q of the Studentised range of M values, divided by √2.
    """
    from scipy.stats import studentized_range  # takes most of a second to import and is seldom needed

    q = float(studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * sets))


def alike(mean_ranks: Sequence[float], difference: float) -> list[tuple[int, ...]]:
    """Returns the largest groups of at least two methods whose mean ranks lie within ``difference``.

    A group lists the places of its methods by ascending rank; groups are in the order of their first method's rank.
    """
    order = sorted(range(len(mean_ranks)), key=lambda place: (mean_ranks[place], place))
    groups: list[tuple[int, ...]] = []
    reached = 0
    for first, place in enumerate(order):
        last = max(at for at, other in enumerate(order) if mean_ranks[other] - mean_ranks[place] <= difference)
        if last > first and last + 1 > reached:
            groups.append(tuple(order[first : last + 1]))
            reached = last + 1
    return groups


def signed_rank(differences_N: Floats, region: float, seed: int = 0) -> SignedRank:
    """Returns the Bayesian signed-rank test of the differences of two methods on data sets.

    The prior is a Dirichlet process whose only observation is a difference of 0.

    Args:
        differences_N: a difference for each data set; at least one.
        region: differences of at most this size count as none.
        seed: seeds the draws of the posterior.
    """
    values = np.concatenate([[0.0], np.asarray(differences_N, np.float64)])
    sums = values[:, None] + values[None, :]
    below, above = (sums < -2 * region).astype(np.float64), (sums > 2 * region).astype(np.float64)
    draw = np.random.default_rng(seed)
    strength = np.concatenate([[_PRIOR], np.ones(len(values) - 1)])
    counts = np.zeros(3)
    for start in range(0, _DRAWS, _ROWS):
        weights = draw.dirichlet(strength, min(_ROWS, _DRAWS - start))
        lower, upper = (((weights @ each) * weights).sum(1) for each in (below, above))
        outcomes = np.stack([lower, 1 - lower - upper, upper], 1)
        counts += np.bincount(outcomes.argmax(1), minlength=3)
    low, equal, high = (counts / _DRAWS).tolist()
    return SignedRank(low, equal, high)
