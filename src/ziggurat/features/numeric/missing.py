"""The step that tells whether a value is missing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from ziggurat.core.config import Config
from ziggurat.features.numeric.sample import NumericSample, Values


class MissingFlagConfig(Config):
    """1 where the value is missing, 0 elsewhere. It must be the first step."""

    name: Literal["missing_flag"] = "missing_flag"


@dataclass(frozen=True)
class MissingFlag:
    """Missing -> 1, any value -> 0."""

    @classmethod
    def fit(cls, config: MissingFlagConfig, sample: NumericSample) -> Self:
        return cls()

    def apply(self, values: Values) -> Values:
        return np.isnan(values).astype(np.float64)
