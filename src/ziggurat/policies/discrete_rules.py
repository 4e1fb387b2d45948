"""Turns the probabilities of several policies into one discrete action.

Shape legend: M policies, N states, A actions.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ziggurat.policies.actions import Floats, Ints

DiscreteRule = Literal["vote", "add", "multiply"]
"""vote: what most policies find likeliest; add: the largest sum of probabilities; multiply: the largest product."""


def discrete_action(rule: DiscreteRule, log_MNA: Floats) -> Ints:
    """Returns the action of each state, (N,), by one of the rules (SEERL, arXiv 2001.05209).

    Args:
        rule: the rule.
        log_MNA: logarithms of the probabilities that each policy gives to each action.
    """
    match rule:
        case "vote":
            return majority_vote(log_MNA)
        case "add":
            return boltzmann_addition(log_MNA)
        case "multiply":
            return boltzmann_multiplication(log_MNA)


def majority_vote(log_MNA: Floats) -> Ints:
    """Returns the action that most policies find likeliest; of equal votes, that with most summed probability."""
    votes_NA = (log_MNA.argmax(-1)[..., None] == np.arange(log_MNA.shape[-1])).sum(0)
    sums_NA = np.exp(log_MNA).sum(0)
    return np.where(votes_NA == votes_NA.max(-1, keepdims=True), sums_NA, -1.0).argmax(-1)


def boltzmann_addition(log_MNA: Floats) -> Ints:
    """Returns argmax_a Σ_k π_k(a | s), the first of equal ones."""
    return np.exp(log_MNA).sum(0).argmax(-1)


def boltzmann_multiplication(log_MNA: Floats) -> Ints:
    """Returns argmax_a Π_k π_k(a | s), the first of equal ones: a single policy can rule an action out."""
    return log_MNA.sum(0).argmax(-1)
