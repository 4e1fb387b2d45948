"""The blocks of numbers: the steps of the config that is written, intervals one-hot and splines side by side.

They are fitted on the training values of a fold, and what they give is not rounded to float32.
"""

from __future__ import annotations

import numpy as np

from ziggurat.features.numeric.sample import NumericSample
from ziggurat.features.numeric.spline import SplineConfig
from ziggurat.features.numeric.steps import Bucketise, StepConfig, fit_step
from ziggurat.search.pipelines.blocks.one_hot import one_hot
from ziggurat.search.pipelines.blocks.steps import step_configs
from ziggurat.search.pipelines.pipeline import NumericPipeline
from ziggurat.search.pipelines.table import Floats


def numeric_block(pipeline: NumericPipeline, train: Floats, other: Floats) -> tuple[Floats, Floats]:
    """Returns (n, w) of the training values (n,) and (m, w) of the others, fitted on the training values alone."""
    values = [train, other]
    blocks = [each[:, None] for each in values]
    for config in step_configs(pipeline):
        blocks = _applied(config, NumericSample(values[0]), values)
        values = [each[:, 0] for each in blocks]
    if pipeline.missing_flag:
        flags = [np.isnan(each).astype(np.float64)[:, None] for each in (train, other)]
        blocks = [np.concatenate(each, axis=1) for each in zip(blocks, flags, strict=True)]
    return blocks[0], blocks[1]


def _applied(config: StepConfig, sample: NumericSample, values: list[Floats]) -> list[Floats]:
    """Returns the numbers that a step makes of values, (n, w)."""
    if isinstance(config, SplineConfig):
        basis = [fit_step(config, sample, index) for index in range(config.numbers)]
        return [np.stack([step.apply(each) for step in basis], axis=1) for each in values]
    step = fit_step(config, sample)
    if isinstance(step, Bucketise):
        return [one_hot(step.apply(each).astype(np.int64) - 1, step.rows - 1) for each in values]
    return [step.apply(each)[:, None] for each in values]
