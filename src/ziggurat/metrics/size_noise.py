"""How noisy the mean loss of each rung of a ladder is, from the seeds that each was trained with.

Shape legend: N rungs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PRIOR = 4
"""How many seeds' worth of trust the spread of all rungs together has in each rung's own."""


@dataclass(frozen=True)
class SizeNoise:
    """The seeds' losses of each rung.

    Attributes:
        rungs: one array a rung, of at least one loss.
        deviation: standard deviation of a single run, pooled over rungs unless given.
        freedom: degrees of freedom that it was estimated with; 0 where it is unknown.
    """

    rungs: Sequence[Floats]
    deviation: float = math.nan
    freedom: int = 0

    def __post_init__(self) -> None:
        assert all(len(rung) for rung in self.rungs), "a rung without a loss"
        freedom = int((self.counts - 1).sum())
        if not self.freedom and freedom:
            squares = sum(float(((rung - rung.mean()) ** 2).sum()) for rung in self.rungs)
            object.__setattr__(self, "deviation", math.sqrt(squares / freedom))
            object.__setattr__(self, "freedom", freedom)

    @property
    def means(self) -> Floats:
        return np.array([rung.mean() for rung in self.rungs])

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return np.array([len(rung) for rung in self.rungs], np.int64)

    @property
    def single(self) -> bool:
        """Whether every rung was trained once."""
        return bool((self.counts == 1).all())

    def with_deviation(self, deviation: float, freedom: int) -> SizeNoise:
        """The same runs with a single run's deviation from elsewhere."""
        return replace(self, deviation=deviation, freedom=freedom)

    def errors(self) -> Floats:
        """Standard error of each mean, its rung's spread drawn towards that of all; equal ones where none is known."""
        if not self.freedom or self.deviation == 0:
            return 1 / np.sqrt(self.counts)
        own_N = np.array([float(((rung - rung.mean()) ** 2).sum()) for rung in self.rungs])
        variance_N = (own_N + PRIOR * self.deviation**2) / (self.counts - 1 + PRIOR)
        return np.sqrt(variance_N / self.counts)

    def draw(self, random: np.random.Generator) -> Floats:
        """What a repetition with other seeds would add to each mean.

        The mean of as many deviations as the rung has seeds, drawn from its own with replacement and widened by
        √(n/(n−1)); a normal draw where the rung was trained once.
        """
        return np.array([self._drawn(rung, random) for rung in self.rungs])

    def _drawn(self, rung: Floats, random: np.random.Generator) -> float:
        count = len(rung)
        if count == 1:
            return float(random.normal(0, self.deviation))
        picked = random.choice(rung - rung.mean(), count)
        return float(picked.mean()) * math.sqrt(count / (count - 1))
