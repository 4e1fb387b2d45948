"""A numeric feature's chain of steps: fitted once, applied to any values, saved as JSON, where floats stay exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from ziggurat.features.numeric.steps import (
    Bucketise,
    Clip,
    Fill,
    FillConfig,
    Log,
    NumericSample,
    Quantile,
    Standardise,
    Step,
    StepConfig,
    Values,
    fit_step,
)
from ziggurat.features.versions import check_version

CHAIN_VERSION = 1

_STEPS: dict[str, type[Step]] = {
    "fill": Fill,
    "clip": Clip,
    "log": Log,
    "standardise": Standardise,
    "quantile": Quantile,
    "bucketise": Bucketise,
}
_NAMES = {kind: name for name, kind in _STEPS.items()}
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class NumericChain:
    """Fitted steps, in the order in which they are applied.

    Attributes:
        steps: the steps. A chain that neither fills nor ends in ``bucketise`` begins with an implicit fill by the
            training median, so that no NaN reaches a model.
        implicit_fill: whether the chain begins with that implicit fill.
    """

    steps: tuple[Step, ...]
    implicit_fill: bool

    @classmethod
    def fit(cls, configs: Sequence[StepConfig], sample: NumericSample) -> Self:
        """Fits each step on the sample as the previous steps have transformed it."""
        bucketised = bool(configs) and configs[-1].name == "bucketise"
        implicit = not bucketised and not any(config.name == "fill" for config in configs)
        steps: list[Step] = []
        for config in [FillConfig(value="median"), *configs] if implicit else configs:
            step = fit_step(config, sample)
            steps.append(step)
            transformed = step.apply(sample.values)
            unchanged = sample.exact is not None and isinstance(step, Fill) and sample.exact.missing == 0
            sample = NumericSample(transformed, sample.exact if unchanged else None)
        return cls(tuple(steps), implicit)

    @property
    def table_rows(self) -> int | None:
        """Rows of the embedding table if the chain ends in ``bucketise``; None for a dense feature."""
        last = self.steps[-1] if self.steps else None
        return last.rows if isinstance(last, Bucketise) else None

    def apply(self, values: Values) -> npt.NDArray[np.float32] | npt.NDArray[np.int64]:
        """Applies all steps to float64 values, in which NaN is missing.

        Returns:
            float32 without NaN, or int64 rows of the table if the feature is bucketised. Results outside the range of
            float32 are clipped to it.
        """
        for step in self.steps:
            values = step.apply(values)
        if self.table_rows is not None:
            return values.astype(np.int64)
        return np.clip(values, -_FLOAT32_MAX, _FLOAT32_MAX).astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": CHAIN_VERSION,
            "implicit_fill": self.implicit_fill,
            "steps": [{"name": _NAMES[type(step)], **asdict(step)} for step in self.steps],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Restores a chain from a result of :meth:`to_json`.

        Raises:
            DataError: the chain was saved in an unknown version.
        """
        check_version("numeric feature", values["version"], CHAIN_VERSION)
        return cls(tuple(_step(dict(step)) for step in values["steps"]), bool(values["implicit_fill"]))


def _step(values: dict[str, Any]) -> Step:
    kind = _STEPS[values.pop("name")]
    fields: dict[str, Any] = {
        key: tuple(cast("list[float]", value)) if isinstance(value, list) else value for key, value in values.items()
    }
    return kind(**fields)
