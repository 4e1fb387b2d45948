"""Leads of one contestant before another, a seed each, with how sure they are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bench.benchmark import Figure
from ziggurat.policies.scores import mean_interval


def lead(name: str, unit: str, samples: Sequence[float], note: str) -> Figure:
    """Returns the figure of a lead, judged by its mean; the note says by how many seeds and the mean's interval.

    Args:
        name, unit, note: of the figure.
        samples: the lead of each seed, above 0 where the contestant is ahead.
    """
    _, low, high = mean_interval(np.asarray(samples, np.float64))
    ahead, level = sum(each > 0 for each in samples), sum(each == 0 for each in samples)
    full = f"{note}; ahead in {ahead} of {len(samples)}, level in {level}; 95 % interval {low:.4g} to {high:.4g}"
    return Figure(name, unit, tuple(samples), full, "mean")
