"""Logits of architectures (θ), and masks that are drawn from them by Gumbel-softmax.

Source: Krishna et al., "Differentiable NAS Framework and Application to Ads CTR Prediction", arXiv 2110.14812; the
relaxation is that of Jang et al., "Categorical Reparameterization with Gumbel-Softmax", arXiv 1611.01144. One mask a
step serves all rows of the batch, on all ranks. Noise is a function of (seed, stream, step), so that a resumed search
draws what it would have drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from ziggurat.search.architecture.space.decision import Architecture, Decision, Mask

_SMALLEST = 1e-12
WEIGHTS, ARCHITECTURE, DRAWS = 1, 2, 3
"""Streams of noise: of steps of weights, of steps of the architecture, and of the architectures drawn at the end."""


class Logits:
    """θ: the logits of every decision that has several choices, float32, which begin at 0.

    Args:
        decisions: all decisions.
        seed: the seed of the noise.
        preference: the logit at which the preferred choice of a decision begins instead.
    """

    def __init__(self, decisions: Sequence[Decision], seed: int, preference: float = 0.0) -> None:
        self.decisions = tuple(decisions)
        self._seed = seed
        self.parameters: dict[str, torch.nn.Parameter] = {
            each.name: torch.nn.Parameter(_first(each, preference)) for each in decisions if each.is_open
        }

    def probabilities(self, values: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Returns softmax(θ) of every decision, float64, differentiable in θ.

        Args:
            values: other logits of the open decisions in place of θ.
        """
        logits = self.parameters if values is None else values
        return {
            each.name: torch.softmax(logits[each.name].double(), 0)
            if each.is_open
            else torch.ones(1, dtype=torch.float64)
            for each in self.decisions
        }

    def masks(self, temperature: float, stream: int, step: int, *, straight: bool = False) -> dict[str, Mask]:
        """Returns masks softmax((θ + g) / τ) with standard Gumbel noise g, differentiable in θ.

        Args:
            temperature: τ.
            stream: the stream of the noise.
            step: the step.
            straight: whether the shares are 1 and 0, of argmax(θ + g), with the gradient of the softmax.
        """
        noise = self._noise(stream, step)
        found: dict[str, Mask] = {}
        for each in self.decisions:
            if not each.is_open:
                found[each.name] = Mask.of_choice(0, 1)
                continue
            shares = torch.softmax((self.parameters[each.name] + noise[each.name]) / temperature, 0)
            if straight:
                one = nn.functional.one_hot(shares.argmax(), len(shares)).to(shares.dtype)
                shares = one + (shares - shares.detach())
            found[each.name] = Mask(shares)
        return found

    def drawn(self, number: int, stream: int = DRAWS) -> dict[str, int]:
        """Returns an architecture: argmax(θ + g), which draws each choice with the probability softmax(θ)."""
        noise = self._noise(stream, number)
        return {
            each.name: int((self.parameters[each.name].detach() + noise[each.name]).argmax()) if each.is_open else 0
            for each in self.decisions
        }

    def log_probability(self, architecture: Architecture) -> float:
        """Returns the log of the probability with which an architecture is drawn."""
        probabilities = self.probabilities()
        return sum(
            math.log(max(_SMALLEST, float(probabilities[name][choice]))) for name, choice in architecture.items()
        )

    def load(self, saved: Mapping[str, Tensor]) -> None:
        """Takes saved values, which are of the same decisions."""
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                parameter.copy_(saved[name])

    def _noise(self, stream: int, step: int) -> dict[str, Tensor]:
        generator = np.random.default_rng([self._seed, stream, step])
        return {name: _gumbel(generator, len(parameter)) for name, parameter in self.parameters.items()}


def detached(masks: Mapping[str, Mask]) -> dict[str, Mask]:
    """Returns the masks as constants: no gradient reaches θ."""
    return {name: Mask(mask.shares.detach(), mask.hard) for name, mask in masks.items()}


def temperature(first: float, last: float, done: float) -> float:
    """Returns τ = τ₀ · e^(−r · done) with the rate r = log(τ₀ / τ₁), which is τ₁ at the end of any number of steps.

    The exponential schedule is that of arXiv 2110.14812. Its rate by epochs would make τ, and with it the gradient of
    θ, vanish in a long training.

    Args:
        first: τ₀.
        last: τ₁.
        done: the share of the training after the warm-up that is done, 0 to 1.
    """
    return first * (last / first) ** done


def _first(decision: Decision, preference: float) -> Tensor:
    values = torch.zeros(len(decision.choices))
    if decision.preferred is not None:
        values[decision.preferred] = preference
    return values


def _gumbel(generator: np.random.Generator, count: int) -> Tensor:
    uniform = np.clip(generator.random(count), _SMALLEST, 1 - _SMALLEST)
    return torch.from_numpy(-np.log(-np.log(uniform))).float()
