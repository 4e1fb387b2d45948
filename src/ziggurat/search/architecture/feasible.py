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
_ATTEMPTS, _CHANGES = 100, 2_000
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

    What lowers one cost may raise another, so no architecture is come back to.

    Raises:
        ConfigError: no change lowers it and a limit is still exceeded.
    """
    found = dict(architecture)
    seen = set[tuple[int, ...]]()
    while True:
        seen.add(tuple(found.values()))
        costs = space.costs(found)
        worst = max(limits, key=lambda name: costs[name] / limits[name])
        if costs[worst] <= limits[worst] * (1 + _ROUNDING):
            return found
        changes = _changes(space, found, worst, costs[worst] - limits[worst], liking)
        new = ({**found, decision: choice} for decision, choice in changes)
        changed = next((each for each in new if tuple(each.values()) not in seen), None)
        if changed is None or len(seen) > _CHANGES:
            together = ", ".join(f"{name} {limit:,.6g}" for name, limit in limits.items())
            beside = f" where the others are kept ({together})" if len(limits) > 1 else ""
            raise ConfigError(
                f"limits.{worst}: received {limits[worst]:,.6g}, and the cheapest architectures that were found cost "
                f"{costs[worst]:,.6g}{beside}",
                "raise the limit, or add cheaper choices to the space (fewer layers, narrower widths and vectors)",
            )
        found = changed


def uniform_draw(space: WholeSpace, seed: int, stream: int) -> Callable[[int], dict[str, int]]:
    """Returns number -> architecture, each choice equally likely."""

    def draw(number: int) -> dict[str, int]:
        generator = np.random.default_rng([seed, stream, number])
        return {each.name: int(generator.integers(len(each.choices))) for each in space.decisions}

    return draw


def equal_liking(space: WholeSpace) -> dict[str, torch.Tensor]:
    """Returns the same liking for every choice."""
    return {each.name: torch.zeros(len(each.choices)) for each in space.decisions}


def _changes(
    space: WholeSpace, architecture: Architecture, name: CostName, wanted: float, liking: Mapping[str, torch.Tensor]
) -> list[tuple[str, int]]:
    """Returns the single changes that lower a cost, those first that lower it most for their liking."""
    probabilities = {key: value.requires_grad_() for key, value in certain(space.decisions, architecture).items()}
    total = space.expected_costs(probabilities)[name]
    slopes = list[torch.Tensor | None](torch.autograd.grad(total, list(probabilities.values()), allow_unused=True))
    found: list[tuple[float, str, int]] = []
    for decision, slope in zip(probabilities, slopes, strict=True):
        if slope is None:
            continue
        own = architecture[decision]
        for choice in range(len(slope)):
            saved = min(float(slope[own] - slope[choice]), wanted)
            if saved <= 0:
                continue
            given_up = max(0.0, float(liking[decision][own] - liking[decision][choice]))
            found.append((saved / (given_up + 0.05), decision, choice))
    found.sort(key=lambda each: -each[0])  # stable: of equal ones the first
    return [(decision, choice) for _, decision, choice in found]
