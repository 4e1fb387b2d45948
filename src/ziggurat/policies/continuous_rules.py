"""Turns the continuous actions of several policies into one.

Distances are measured in shares of half the range of each dimension, so that no dimension counts more because of its
units. Shape legend: M policies, N states, D dimensions.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from ziggurat.policies.actions import Floats

ContinuousRule = Literal["mean", "bins", "density", "elimination"]
"""mean; bins: of each dimension the mean in the fullest bin; density: the action with most others around; elimination:
the mean of the two that remain after the farthest were dropped one by one."""

BINS = 10
BANDWIDTH = 0.3
"""σ of the density, in shares of half the range. [design: SEERL states none]"""


def continuous_action(rule: ContinuousRule, action_MND: Floats, low_D: Floats, high_D: Floats) -> Floats:
    """Returns the action of each state, (N, D), by one of the rules (SEERL, arXiv 2001.05209).

    Args:
        rule: the rule.
        action_MND: the action of each policy in each state, within the bounds.
        low_D, high_D: finite bounds of the actions.
    """
    match rule:
        case "mean":
            return action_MND.mean(0)
        case "bins":
            return binned(action_MND, low_D, high_D)
        case "density":
            return densest(action_MND, low_D, high_D)
        case "elimination":
            return eliminated(action_MND, low_D, high_D)


def binned(action_MND: Floats, low_D: Floats, high_D: Floats, bins: int = BINS) -> Floats:
    """Returns, for each dimension on its own, the mean of the actions in the fullest of equal bins of the range.

    Of equally full bins it is the one whose mean is nearest to the mean of all actions, then the lower one.
    """
    places = np.clip(((action_MND - low_D) / (high_D - low_D) * bins).astype(np.int64), 0, bins - 1)
    in_MNDB = places[..., None] == np.arange(bins)
    counts_NDB = in_MNDB.sum(0)
    sums_NDB = np.where(in_MNDB, action_MND[..., None], 0.0).sum(0)
    means_NDB = sums_NDB / np.maximum(counts_NDB, 1)
    off_NDB = np.abs(means_NDB - action_MND.mean(0)[..., None])
    fullest_NDB = counts_NDB == counts_NDB.max(-1, keepdims=True)
    chosen = np.where(fullest_NDB, off_NDB, np.inf).argmin(-1)[..., None]
    return np.take_along_axis(means_NDB, chosen, -1)[..., 0]


def densest(action_MND: Floats, low_D: Floats, high_D: Floats, bandwidth: float = BANDWIDTH) -> Floats:
    """Returns the action argmax_i Σ_j exp(−‖a_i − a_j‖² / 2σ²), the first of equal ones: always one of the members'."""
    scaled = action_MND / ((high_D - low_D) / 2)
    squared_MMN = ((scaled[:, None] - scaled[None]) ** 2).sum(-1)
    chosen_N = np.exp(-squared_MMN / (2 * bandwidth**2)).sum(1).argmax(0)
    return action_MND[chosen_N, np.arange(action_MND.shape[1])]


def eliminated(action_MND: Floats, low_D: Floats, high_D: Floats) -> Floats:
    """Drops the action farthest from the mean of those that remain until two remain, and returns their mean."""
    scaled = action_MND / ((high_D - low_D) / 2)
    policies, states, _ = action_MND.shape
    kept_MN = np.ones((policies, states), bool)
    for _ in range(policies - 2):
        counts_N = kept_MN.sum(0)
        mean_ND = np.where(kept_MN[..., None], scaled, 0.0).sum(0) / counts_N[:, None]
        far_MN = np.where(kept_MN, ((scaled - mean_ND) ** 2).sum(-1), -1.0)
        kept_MN[far_MN.argmax(0), np.arange(states)] = False
    return np.where(kept_MN[..., None], action_MND, 0.0).sum(0) / kept_MN.sum(0)[:, None]
