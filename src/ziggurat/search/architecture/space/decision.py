"""A decision of an architecture search, the mask that mixes its choices, and an architecture: a choice for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ziggurat.core.errors import ConfigError

Architecture = Mapping[str, int]
"""Name of a decision -> index of the choice that was made."""
Probabilities = Mapping[str, Tensor]
"""Name of a decision -> the probability of each of its choices, (n,), float64."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice among several values.

    Attributes:
        name: unique in a space, dotted by what it belongs to, such as ``top.1.width``.
        choices: the values, at least one, each of a JSON type and different from the others.
        preferred: index of the choice that a search begins by preferring, such as the largest size; None for none.
    """

    name: str
    choices: tuple[Any, ...]
    preferred: int | None = None

    def __post_init__(self) -> None:
        if not self.choices or len({repr(each) for each in self.choices}) < len(self.choices):
            raise ConfigError(
                f"decision {self.name!r}: received the choices {list(self.choices)}",
                "list each choice once, at least one",
            )

    @property
    def is_open(self) -> bool:
        """Whether there is more than one choice."""
        return len(self.choices) > 1


@dataclass(frozen=True, slots=True)
class Mask:
    """The share of each choice of a decision in what a super-module computes.

    Attributes:
        shares: (n,), at least 0, with the sum 1.
        hard: the choice that has the whole share; None if several may have one.
    """

    shares: Tensor
    hard: int | None = None

    @classmethod
    def of_choice(cls, choice: int, count: int) -> Mask:
        """Returns the mask that gives one of ``count`` choices the whole share."""
        shares = torch.zeros(count)
        shares[choice] = 1.0
        return cls(shares, choice)

    def mix(self, operations: Sequence[Callable[[], Tensor]]) -> Tensor:
        """Returns Σ share · operation; of a hard mask only the chosen operation is called, and returned as it is.

        Args:
            operations: one for each choice; their results have one shape.
        """
        assert len(operations) == len(self.shares), (len(operations), self.shares)
        if self.hard is not None:
            return operations[self.hard]()
        mixed = self.shares[0] * operations[0]()
        for share, operation in zip(self.shares[1:], operations[1:], strict=True):
            mixed = mixed + share * operation()
        return mixed


Masks = Mapping[str, Mask]
"""Name of a decision -> its mask."""


def hard_masks(decisions: Sequence[Decision], architecture: Architecture) -> dict[str, Mask]:
    """Returns the masks with which a super-module computes one architecture.

    Raises:
        ConfigError: a decision has no choice, or one that there is not.
    """
    masks: dict[str, Mask] = {}
    for each in decisions:
        choice = architecture.get(each.name, -1)
        if not 0 <= choice < len(each.choices):
            raise ConfigError(
                f"architecture: decision {each.name!r} has the choice {architecture.get(each.name)}",
                f"choose 0 to {len(each.choices) - 1}: {list(each.choices)}",
            )
        masks[each.name] = Mask.of_choice(choice, len(each.choices))
    return masks


def certain(decisions: Sequence[Decision], architecture: Architecture) -> dict[str, Tensor]:
    """Returns the probabilities of an architecture that is known: 1 for each choice that was made."""
    return {name: mask.shares.double() for name, mask in hard_masks(decisions, architecture).items()}


def chosen(decisions: Sequence[Decision], architecture: Architecture) -> dict[str, Any]:
    """Returns name of a decision -> the value that was chosen."""
    return {each.name: each.choices[architecture[each.name]] for each in decisions}
