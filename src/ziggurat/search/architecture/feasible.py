"""Keeps architectures within limits of costs: checks one, and changes as few choices as it takes.

Costs are multilinear in the probabilities of decisions, so the derivative at an architecture is the exact change by any
single other choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

from ziggurat.core.errors import ConfigError
from ziggurat.search.architecture.space.decision import Architecture, certain
from ziggurat.search.architecture.space.whole_space import CostName, WholeSpace

Limits = Mapping[CostName, float]
_ATTEMPTS = 100
_SMALLEST = 1e-9
_ROUNDING = 1e-9


def excess(costs: Mapping[CostName, float], limits: Limits) -> float:
    """Returns log(cost / limit) of the limit that is exceeded most; at most 0 if all are kept."""
    return max(math.log(max(costs[name], _SMALLEST) / limit) for name, limit in limits.items())


def keeps(space: WholeSpace, architecture: Architecture, limits: Limits) -> bool:
    """Returns whether an architecture keeps all limits."""
    return excess(space.costs(architecture), limits) <= _ROUNDING


def drawn_within(
    space: WholeSpace,
    limits: Limits,
    draw: Callable[[int], Architecture],
    liking: Mapping[str, torch.Tensor],
    first: int = 0,
) -> dict[str, int]:
    """Returns the first drawn architecture that keeps the limits; after some that do not, the last one is changed.

    Args:
        space: the space.
        limits: the limits.
        draw: number of a draw -> architecture.
        liking: log-probability of each choice; a change gives up as little of it as possible.
        first: number of the first draw.

    Raises:
        ConfigError: even the cheapest choices exceed a limit.
    """
    architecture: Architecture = {}
    for number in range(first, first + _ATTEMPTS):
        architecture = draw(number)
        if keeps(space, architecture, limits):
            return dict(architecture)
    return repaired(space, limits, architecture, liking)


def repaired(
    space: WholeSpace, limits: Limits, architecture: Architecture, liking: Mapping[str, torch.Tensor]
) -> dict[str, int]:
    """Returns an architecture within the limits, by single changes that lower the worst excess most for their liking.

    Raises:
        ConfigError: no change lowers it and a limit is still exceeded.
    """
    found = dict(architecture)
    while True:
        costs = space.costs(found)
        worst = max(limits, key=lambda name: costs[name] / limits[name])
        if costs[worst] <= limits[worst] * (1 + _ROUNDING):
            return found
        change = _best_change(space, found, worst, costs[worst] - limits[worst], liking)
        if change is None:
            raise ConfigError(
                f"limits.{worst}: received {limits[worst]:,.6g}, and the cheapest architectures cost "
                f"{costs[worst]:,.6g}",
                "raise the limit, or add cheaper choices to the space (fewer layers, narrower widths and vectors)",
            )
        found[change[0]] = change[1]


def uniform_draw(space: WholeSpace, seed: int, stream: int) -> Callable[[int], dict[str, int]]:
    """Returns number -> architecture, each choice equally likely."""

    def draw(number: int) -> dict[str, int]:
        generator = np.random.default_rng([seed, stream, number])
        return {each.name: int(generator.integers(len(each.choices))) for each in space.decisions}

    return draw


def equal_liking(space: WholeSpace) -> dict[str, torch.Tensor]:
    """Returns the same liking for every choice."""
    return {each.name: torch.zeros(len(each.choices)) for each in space.decisions}


def _best_change(
    space: WholeSpace, architecture: Architecture, name: CostName, wanted: float, liking: Mapping[str, torch.Tensor]
) -> tuple[str, int] | None:
    probabilities = {key: value.requires_grad_() for key, value in certain(space.decisions, architecture).items()}
    total = space.expected_costs(probabilities)[name]
    slopes = list[torch.Tensor | None](torch.autograd.grad(total, list(probabilities.values()), allow_unused=True))
    best: tuple[float, str, int] | None = None
    for decision, slope in zip(probabilities, slopes, strict=True):
        if slope is None:
            continue
        own = architecture[decision]
        for choice in range(len(slope)):
            saved = min(float(slope[own] - slope[choice]), wanted)
            if saved <= 0:
                continue
            given_up = max(0.0, float(liking[decision][own] - liking[decision][choice]))
            gain = saved / (given_up + 0.05)
            if best is None or gain > best[0]:
                best = gain, decision, choice
    return None if best is None else (best[1], best[2])
