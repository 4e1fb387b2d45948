"""What training needs to know of a label before the first step: figures of its training rows.

Preparation computes them, and the fitted transform keeps them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

QUANTILES = 99
"""Quantiles that are kept: those of 1 %, 2 %, … 99 %."""


@dataclass(frozen=True, slots=True)
class LabelFigures:
    """Figures of a label over the training rows, each counted by its weight.

    Attributes:
        mean: the mean; of a binary label the base rate.
        std: the population standard deviation.
        log_mean: the mean of log(1 + label); 0 for a label with negative values.
        log_std: its standard deviation; 1 for a label with negative values.
        quantiles: the quantiles of 1 % to 99 %, of a sample of rows; empty for a label of 0 and 1.
        levels: for an ordinal label, its values, ascending.
        shares: for an ordinal label, the share of rows of each level.
        trials: for a label of events out of trials, the mean number of trials of the rows that have any; else 1.
    """

    mean: float
    std: float
    log_mean: float = 0.0
    log_std: float = 1.0
    quantiles: tuple[float, ...] = ()
    levels: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    trials: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Returns the figures as JSON values."""
        return asdict(self)

    def quantile(self, level: float) -> float:
        """Returns the quantile of a level, between those that are kept."""
        levels = np.arange(1, QUANTILES + 1) / (QUANTILES + 1)
        return float(np.interp(level, levels, self.quantiles)) if self.quantiles else self.mean


def label_quantiles(values_B: npt.NDArray[np.float32], weights_B: npt.NDArray[np.float64]) -> tuple[float, ...]:
    """Returns the weighted quantiles of 1 % to 99 %; empty without weight."""
    order = np.argsort(values_B, kind="stable")
    below_B = np.cumsum(weights_B[order])
    if not len(below_B) or below_B[-1] <= 0:
        return ()
    levels = np.arange(1, QUANTILES + 1) / (QUANTILES + 1)
    positions = np.searchsorted(below_B, levels * below_B[-1]).clip(max=len(below_B) - 1)
    return tuple(values_B[order][positions].astype(float).tolist())
