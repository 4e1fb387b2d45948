"""Keeps the expected costs of what θ draws within their limits, by moving θ as little as it takes.

A penalty in the loss would have to outweigh the gradient of the data where a limit is exceeded, and be in the moments
of the optimizer of θ for long after that. A projection is neither.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from ziggurat.search.architecture.space.whole_space import CostName, WholeSpace
from ziggurat.search.architecture.supernet.relaxation import Logits

_ITERATIONS = 200
_LONGEST = 0.5
"""The longest step, as a Euclidean norm in θ."""
_ROUNDING = 1e-6
"""An excess that is none: θ is float32."""
_STUCK = 1e-4
"""A norm of the gradient at which all probabilities that matter are next to 0 or 1: going on would only make them more
so, and no gradient of the data could change them again."""
_SMALLEST = 1e-9


class Projection:
    """Moves θ until the expected cost is at most the limit, for every limit.

    With f(θ) = Σ max(0, log(E[cost] / limit)) over the limits, each step is that of Polyak ("Minimization of unsmooth
    functionals", 1969) for a least value of 0: θ ← θ − f / ‖∇f‖² · ∇f, shortened to a norm of 0.5. It is computed in
    float64 on the CPU from θ alone, so that all ranks move in the same way.

    Args:
        logits: θ.
        space: the space, for its costs.
        limits: the limits.
    """

    def __init__(self, logits: Logits, space: WholeSpace, limits: Mapping[CostName, float]) -> None:
        self._logits, self._space, self._limits = logits, space, dict(limits)

    def __call__(self) -> float:
        """Moves θ, if a limit is exceeded; returns f(θ) after that, which is 0 up to rounding unless θ is stuck."""
        values = {name: each.detach().double() for name, each in self._logits.parameters.items()}
        with torch.no_grad():
            left = float(self._excess(values))
        if left <= _ROUNDING or not values:
            return left
        for _ in range(_ITERATIONS):
            for each in values.values():
                each.requires_grad_()
            excess = self._excess(values)
            left = float(excess.detach())
            if left <= _ROUNDING:
                break
            found = list[Tensor | None](torch.autograd.grad(excess, list(values.values()), allow_unused=True))
            square = sum(float(each.square().sum()) for each in found if each is not None)
            if square < _STUCK**2:
                break
            length = left / square * min(1.0, _LONGEST / (left / math.sqrt(square)))
            values = {
                name: value.detach() if gradient is None else value.detach() - length * gradient
                for (name, value), gradient in zip(values.items(), found, strict=True)
            }
        self._logits.load({name: each.detach() for name, each in values.items()})
        return left

    def _excess(self, values: Mapping[str, Tensor]) -> Tensor:
        costs = self._space.expected_costs(self._logits.probabilities(values))
        total = torch.zeros((), dtype=torch.float64)
        for name, limit in self._limits.items():
            total = total + (torch.log(costs[name].clamp_min(_SMALLEST)) - math.log(limit)).clamp_min(0)
        return total
