"""Turns the probabilities of several policies into one discrete action, the most favoured one or a drawn one.

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


def drawn_action(rule: DiscreteRule, log_MNA: Floats, draws_MN: Floats) -> Ints:
    """Returns an action of each state, (N,), drawn instead of the most favoured one.

    With ``vote`` each policy draws an action, and that which most have drawn is taken; of equal votes, that with most
    summed probability. With ``add`` the action is drawn from the mean of the probabilities, with ``multiply`` from
    their geometric mean, normalised: these two draw from the policies' own distribution where all policies are equal.
    Of a single policy all rules draw the same. SEERL states the rules for the most favoured action alone.

    Args:
        rule: the rule.
        log_MNA: logarithms of the probabilities that each policy gives to each action.
        draws_MN: numbers drawn evenly from [0, 1).
    """
    match rule:
        case "vote":
            votes = [_drawn(np.exp(log_NA), draws_N) for log_NA, draws_N in zip(log_MNA, draws_MN, strict=True)]
            return most_voted(np.stack(votes), log_MNA)
        case "add":
            return _drawn(np.exp(log_MNA).sum(0), draws_MN[0])
        case "multiply":
            mean_NA = log_MNA.mean(0)
            return _drawn(np.exp(mean_NA - mean_NA.max(-1, keepdims=True)), draws_MN[0])


def _drawn(weights_NA: Floats, draws_N: Floats) -> Ints:
    """Returns the action whose share of the summed weights the number of each state falls into."""
    ends_NA = weights_NA.cumsum(-1)
    return (ends_NA[:, :-1] <= draws_N[:, None] * ends_NA[:, -1:]).sum(-1)


def majority_vote(log_MNA: Floats) -> Ints:
    """Returns the action that most policies find likeliest; of equal votes, that with most summed probability."""
    return most_voted(log_MNA.argmax(-1), log_MNA)


def most_voted(votes_MN: Ints, log_MNA: Floats) -> Ints:
    """Returns the action that most policies voted for; of equal votes, that with most summed probability."""
    votes_NA = (votes_MN[..., None] == np.arange(log_MNA.shape[-1])).sum(0)
    sums_NA = np.exp(log_MNA).sum(0)
    return np.where(votes_NA == votes_NA.max(-1, keepdims=True), sums_NA, -1.0).argmax(-1)


def boltzmann_addition(log_MNA: Floats) -> Ints:
    """Returns argmax_a Σ_k π_k(a | s), the first of equal ones."""
    return np.exp(log_MNA).sum(0).argmax(-1)


def boltzmann_multiplication(log_MNA: Floats) -> Ints:
    """Returns argmax_a Π_k π_k(a | s), the first of equal ones: a single policy can rule an action out."""
    return log_MNA.sum(0).argmax(-1)
