"""Chooses the members of an ensemble and their weights by their outputs on validation rows.

Members are added one at a time, with replacement, each time the one with which the mean of all outputs has the least
loss; the first is the best one alone. A member's weight is how often it was added. Of all these sets the one with the
least loss is taken, so that the ensemble is never worse on these rows than the best member.

Source: Caruana et al. 2004, "Ensemble Selection from Libraries of Models", ICML, sections 2 and 2.1. There, predictions
are averaged and any metric is followed; here, outputs before the inverse link, and the loss.

Shape legend: B rows, C columns of a label, M candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDS = 100
"""How many times a member is added; weights are multiples of 1 / ROUNDS, or of a larger share."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The weights for one label.

    Attributes:
        weights_M: the weight of each candidate; they sum to 1.
        losses_M: the loss of each candidate alone.
        loss: the loss of the weighted mean.
    """

    weights_M: tuple[float, ...]
    losses_M: tuple[float, ...]
    loss: float


def choose(columns_MBC: Sequence[Tensor], loss: Callable[[Tensor], float], rounds: int = ROUNDS) -> Chosen:
    """Returns the weights with which the mean of the columns has a small loss.

    Args:
        columns_MBC: the columns of each candidate, (B, C), float32.
        loss: returns the loss of columns (B, C); nan counts as infinite.
        rounds: how many times a member is added.
    """
    losses = [_finite(loss(columns_BC)) for columns_BC in columns_MBC]
    counts = [0] * len(columns_MBC)
    first = min(range(len(losses)), key=losses.__getitem__)
    counts[first] = 1
    sum_BC = columns_MBC[first].double()
    best, best_counts = losses[first], list(counts)
    for size in range(2, rounds + 1):
        means = (((sum_BC + columns_BC) / size).float() for columns_BC in columns_MBC)
        tried = [_finite(loss(mean_BC)) for mean_BC in means]
        added = min(range(len(tried)), key=tried.__getitem__)
        counts[added] += 1
        sum_BC = sum_BC + columns_MBC[added]
        if tried[added] < best:
            best, best_counts = tried[added], list(counts)
    total = sum(best_counts)
    return Chosen(tuple(count / total for count in best_counts), tuple(losses), best)


def equal(columns_MBC: Sequence[Tensor], loss: Callable[[Tensor], float]) -> Chosen:
    """Returns equal weights, with the losses of :func:`choose`."""
    size = len(columns_MBC)
    mean_BC = torch.stack([columns_BC.double() for columns_BC in columns_MBC]).mean(0).float()
    return Chosen((1 / size,) * size, tuple(map(loss, columns_MBC)), loss(mean_BC))


def _finite(loss: float) -> float:
    return loss if loss == loss else float("inf")
