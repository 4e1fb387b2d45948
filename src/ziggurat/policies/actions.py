"""What policies would do in a batch of states, and how far two of them are apart.

Shape legend: N states, A discrete actions, D dimensions of a continuous action, M policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LEAST_LOG = -50.0
"""The least logarithm of a probability that divergences count with; a smaller probability is rounded up to it."""


@dataclass(frozen=True, slots=True)
class Categorical:
    """Probabilities of discrete actions.

    Attributes:
        log_NA: logarithms of the probabilities, (N, A).
    """

    log_NA: Floats

    @classmethod
    def of_logits(cls, logits_NA: npt.NDArray[np.floating]) -> Categorical:
        """Normalises logits; for values of actions divided by a temperature this is Boltzmann's distribution."""
        shifted = np.asarray(logits_NA, np.float64)
        shifted = shifted - shifted.max(-1, keepdims=True)
        return cls(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))

    @property
    def likeliest_N(self) -> Ints:  # noqa: N802 - a shape suffix
        """The likeliest action of each state, the first of equal ones."""
        return self.log_NA.argmax(-1)

    def kl(self, other: Categorical) -> float:
        """Returns the mean over states of KL(self ‖ other), in nats."""
        mine, theirs = np.maximum(self.log_NA, _LEAST_LOG), np.maximum(other.log_NA, _LEAST_LOG)
        return max(float((np.exp(self.log_NA) * (mine - theirs)).sum(-1).mean()), 0.0)


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Independent normal distributions of the dimensions of continuous actions, and the actions taken.

    Attributes:
        mean_ND, std_ND: their means and standard deviations, (N, D). Policies that squash their actions state those of
            the distribution before squashing: the divergence is the same.
        action_ND: the action without exploration, in the units of the environment, (N, D).
    """

    mean_ND: Floats
    std_ND: Floats
    action_ND: Floats

    def kl(self, other: Gaussian) -> float:
        """Returns the mean over states of KL(self ‖ other), in nats."""
        ratio = (self.std_ND / other.std_ND) ** 2
        apart = ((self.mean_ND - other.mean_ND) / other.std_ND) ** 2
        return max(float((0.5 * (ratio + apart - 1 - np.log(ratio))).sum(-1).mean()), 0.0)


Actions = Categorical | Gaussian


def divergence_matrix(policies: Sequence[Actions]) -> Floats:
    """Returns the symmetric divergence of each pair, (KL(i ‖ j) + KL(j ‖ i)) / 2, (M, M) with a zero diagonal.

    Args:
        policies: what each policy would do in the same states; all discrete, or all continuous.
    """
    found = np.zeros((len(policies), len(policies)))
    for i, one in enumerate(policies):
        for j, other in enumerate(policies[:i]):
            found[i, j] = found[j, i] = (_kl(one, other) + _kl(other, one)) / 2
    return found


def _kl(one: Actions, other: Actions) -> float:
    if isinstance(one, Categorical):
        assert isinstance(other, Categorical)
        return one.kl(other)
    assert isinstance(other, Gaussian)
    return one.kl(other)
