"""How much of its training a trial has done, and after which share trials are first compared."""

from __future__ import annotations

import math
from typing import Any

from ziggurat.search.study import WHOLE
from ziggurat.training.experiment import Experiment

_FIRST_RUNG = 1 / 9
"""The least share of a training after which a trial is ended."""


def share_of(record: dict[str, Any], experiment: Experiment) -> int:
    """Returns how much of its training a trial had done at an evaluation, in thousandths."""
    config = experiment.training
    shares = [record["epoch"] / config.epochs, record["step"] / config.max_steps if config.max_steps else 0.0]
    return max(1, round(WHOLE * min(1.0, max(shares))))


def first_share(experiment: Experiment, rows: int) -> int:
    """Returns after which share of a training trials are first compared: an evaluation, a ninth of it or later."""
    config = experiment.training
    steps_per_epoch = math.ceil(rows / config.batch_size)
    total = min(config.epochs * steps_per_epoch, config.max_steps or 2**62)
    first = (config.evaluate_every or steps_per_epoch) / max(1, total)
    return max(1, round(WHOLE * min(1.0, max(first, _FIRST_RUNG))))
