"""The training values that the steps of a numeric feature are fitted on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.features.numeric.moments import Moments

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class NumericSample:
    """The training values that a step is fitted on.

    Attributes:
        values: a sample of the training values as the previous steps have transformed them, NaN for missing.
        exact: moments of *all* training values; None once a previous step has changed the values.
        limits: the least and the greatest of *all* training values, which previous steps have moved; None if unknown.
    """

    values: Values
    exact: Moments | None = None
    limits: tuple[float, float] | None = None

    @property
    def present(self) -> Values:
        return self.values[~np.isnan(self.values)]

    @property
    def finite(self) -> Values:
        """The values that are neither missing nor infinite, as those of a step that overflowed are."""
        return self.values[np.isfinite(self.values)]

    @property
    def ends(self) -> tuple[float, float] | None:
        """The least and the greatest training value: of all of them if they are known, otherwise of the finite ones of
        the sample; None without any."""
        if self.exact is not None and np.isfinite(self.exact.min) and np.isfinite(self.exact.max):
            return self.exact.min, self.exact.max
        if self.limits is not None:
            return self.limits
        finite = self.finite
        return (float(finite.min()), float(finite.max())) if len(finite) else None
