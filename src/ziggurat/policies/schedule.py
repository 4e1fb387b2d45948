"""A learning rate in cycles: it falls along a cosine and jumps back, which moves the parameters on to another optimum.

    α(t) = α₀/2 · (cos(π · mod(t − 1, ⌈T/M⌉) / ⌈T/M⌉) + 1)        for t = 1 … T

with T steps and M cycles (SEERL, arXiv 2001.05209; the schedule is that of snapshot ensembles, 1704.00109).
A snapshot is taken at the end of each cycle, where the rate is nearly zero. What a step is, is up to the caller: here
these are steps of the environment, or updates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ziggurat.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CyclicalRate:
    """The rate of each step.

    Attributes:
        initial: α₀, the rate at the start of each cycle; above zero.
        steps: T, the steps of the whole training.
        cycles: M, the number of cycles; at most ``steps``.
    """

    initial: float
    steps: int
    cycles: int

    def __post_init__(self) -> None:
        if not self.initial > 0 or not math.isfinite(self.initial):
            raise ConfigError(f"the initial rate is {self.initial}", "give a number above 0")
        if not 1 <= self.cycles <= self.steps:
            raise ConfigError(
                f"{self.steps} steps cannot be divided into {self.cycles} cycles", "use 1 cycle or more, of a step each"
            )

    @property
    def length(self) -> int:
        """Steps of a cycle, ⌈T/M⌉; the last cycle may have fewer."""
        return -(-self.steps // self.cycles)

    def rate(self, step: int) -> float:
        """Returns α(t) for step t, counted from 1."""
        return self.initial / 2 * (math.cos(math.pi * ((step - 1) % self.length) / self.length) + 1)

    @property
    def ends(self) -> tuple[int, ...]:
        """The last step of each cycle. Where ⌈T/M⌉ does not fit M times into T, there are fewer cycles than M."""
        return cycle_ends(self.steps, self.cycles)


def cycle_ends(steps: int, cycles: int) -> tuple[int, ...]:
    """Returns the last step of each cycle of ⌈``steps``/``cycles``⌉ steps; the last one is ``steps``."""
    length = -(-steps // cycles)
    return (*range(length, steps, length), steps)
