"""Estimates how noisy the mean loss of each model size is, from the seeds that each size was trained with.

Shape legend: N model sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PRIOR_SEEDS = 4
"""Weight, in seeds, of the pooled variance of all model sizes in the estimated variance of each."""


@dataclass(frozen=True)
class SizeNoise:
    """The losses of several seeds of each model size.

    Attributes:
        losses: for each model size, an array of one loss per seed; at least one.
        deviation: standard deviation of a single run; pooled over all model sizes unless given.
        degrees_of_freedom: those of the estimate of ``deviation``; 0 if it is unknown.
    """

    losses: Sequence[Floats]
    deviation: float = math.nan
    degrees_of_freedom: int = 0

    def __post_init__(self) -> None:
        assert all(len(each) for each in self.losses), "a model size without a loss"
        degrees_of_freedom = int((self.counts - 1).sum())
        if not self.degrees_of_freedom and degrees_of_freedom:
            squares = sum(float(((each - each.mean()) ** 2).sum()) for each in self.losses)
            object.__setattr__(self, "deviation", math.sqrt(squares / degrees_of_freedom))
            object.__setattr__(self, "degrees_of_freedom", degrees_of_freedom)

    @property
    def means(self) -> Floats:
        return np.array([each.mean() for each in self.losses])

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of seeds of each model size."""
        return np.array([len(each) for each in self.losses], np.int64)

    @property
    def one_seed_each(self) -> bool:
        """Whether every model size was trained once."""
        return bool((self.counts == 1).all())

    def with_deviation(self, deviation: float, degrees_of_freedom: int) -> SizeNoise:
        """Returns the same losses with this standard deviation of a single run instead of the pooled one."""
        return replace(self, deviation=deviation, degrees_of_freedom=degrees_of_freedom)

    def standard_errors(self) -> Floats:
        """Returns the standard error of each mean.

        The variance of a model size is shrunk towards the pooled variance. If no variance is known, all runs count as
        equally noisy.
        """
        if not self.degrees_of_freedom or self.deviation == 0:
            return 1 / np.sqrt(self.counts)
        own_N = np.array([float(((each - each.mean()) ** 2).sum()) for each in self.losses])
        variance_N = (own_N + PRIOR_SEEDS * self.deviation**2) / (self.counts - 1 + PRIOR_SEEDS)
        return np.sqrt(variance_N / self.counts)

    def draw(self, random: np.random.Generator) -> Floats:
        """Draws, for each model size, the deviation that a repetition with other seeds would add to its mean.

        The deviations follow Student's t distribution with the pooled standard deviation: normal draws, all of them
        divided by one draw of how far the estimated deviation is off. With two to four seeds a size, draws from the
        sizes' own deviations are too small: they know nothing of the tails, nor that the deviation is an estimate.
        """
        estimate = math.sqrt(random.chisquare(self.degrees_of_freedom) / self.degrees_of_freedom)
        return random.normal(size=len(self.losses)) * self.deviation / np.sqrt(self.counts) / estimate
