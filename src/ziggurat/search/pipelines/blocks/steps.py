"""The steps of a config that a pipeline of a number is: what the search judges, and what it writes."""

from __future__ import annotations

from typing import Any

import pydantic

from ziggurat.features.numeric.steps import StepConfig
from ziggurat.search.pipelines.pipeline import NumericPipeline

_SCALERS: dict[str, list[dict[str, Any]]] = {
    "none": [],
    "standard": [{"name": "standardise"}],
    "min_max": [{"name": "min_max"}],
    "max_abs": [{"name": "max_abs"}],
    "robust": [{"name": "robust"}],
    "power": [{"name": "power"}],
    "quantile_uniform": [{"name": "quantile", "bins": 99}],
    "quantile_normal": [{"name": "quantile", "bins": 99, "output": "normal"}],
    "log": [{"name": "log"}],
}
_STRATEGIES = {"uniform_bins": "uniform", "quantile_bins": "quantile", "kmeans_bins": "kmeans"}
_ENTRIES: pydantic.TypeAdapter[list[StepConfig]] = pydantic.TypeAdapter(list[StepConfig])


def steps_of(pipeline: NumericPipeline) -> list[dict[str, Any]]:
    """Returns the entries of ``transforms`` that a pipeline is, without its missing flag."""
    steps: list[dict[str, Any]] = [{"name": "fill", "value": pipeline.imputer}, *_SCALERS[pipeline.scaler]]
    if pipeline.discretiser == "spline":
        steps.append({"name": "spline", "knots": pipeline.bins})
    elif pipeline.discretiser != "none":
        steps.append({"name": "bucketise", "bins": pipeline.bins, "strategy": _STRATEGIES[pipeline.discretiser]})
    return steps


def step_configs(pipeline: NumericPipeline) -> list[StepConfig]:
    """Returns :func:`steps_of` as configs."""
    return _ENTRIES.validate_python(steps_of(pipeline))
