"""A numeric feature's chain of steps: fitted once, applied to any values, saved as JSON, where floats stay exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import shorten
from ziggurat.core.sealed import declared
from ziggurat.features.numeric.missing import MissingFlag
from ziggurat.features.numeric.power import Power
from ziggurat.features.numeric.sample import NumericSample, Values
from ziggurat.features.numeric.scaling import MaxAbs, MinMax, Robust
from ziggurat.features.numeric.spline import Spline
from ziggurat.features.numeric.steps import (
    Bucketise,
    Clip,
    Fill,
    FillConfig,
    Log,
    NormalQuantile,
    Quantile,
    Standardise,
    Step,
    StepConfig,
    fit_step,
)
from ziggurat.features.versions import DAMAGED, check_version

CHAIN_VERSION = 1

_STEPS: dict[str, type[Step]] = {
    "fill": Fill,
    "clip": Clip,
    "log": Log,
    "standardise": Standardise,
    "min_max": MinMax,
    "max_abs": MaxAbs,
    "robust": Robust,
    "power": Power,
    "quantile": Quantile,
    "quantile_normal": NormalQuantile,
    "bucketise": Bucketise,
    "spline": Spline,
    "missing_flag": MissingFlag,
}
_FILLING = ("fill", "missing_flag")
"""The steps after which no value is missing."""
_NAMES = {kind: name for name, kind in _STEPS.items()}
_LEAST_KNOTS = 2
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True)
class NumericChain:
    """Fitted steps, in the order in which they are applied.

    Attributes:
        steps: the steps. A chain that neither fills, nor begins with ``missing_flag``, nor ends in ``bucketise`` begins
            with an implicit fill by the training median, so that no NaN reaches a model.
        implicit_fill: whether the chain begins with that implicit fill.
    """

    steps: tuple[Step, ...]
    implicit_fill: bool

    @classmethod
    def fit(cls, configs: Sequence[StepConfig], sample: NumericSample, index: int = 0) -> Self:
        """Fits each step on the sample as the previous steps have transformed it.

        Args:
            configs: the steps.
            sample: the training values.
            index: which number of a spline it ends in, counted from 0.
        """
        bucketised = bool(configs) and configs[-1].name == "bucketise"
        implicit = not bucketised and not any(config.name in _FILLING for config in configs)
        steps: list[Step] = []
        for config in [FillConfig(value="median"), *configs] if implicit else configs:
            step = fit_step(config, sample, index)
            steps.append(step)
            transformed = step.apply(sample.values)
            unchanged = sample.exact is not None and isinstance(step, Fill) and sample.exact.missing == 0
            sample = NumericSample(transformed, sample.exact if unchanged else None, _moved(sample, step))
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
            DataError: the chain was saved in an unknown version, or a value is missing or mistyped.
        """
        check_version("numeric feature", values.get("version"), CHAIN_VERSION)
        stored = declared(_Stored, values, "numeric feature", DAMAGED)
        return cls(tuple(map(_step, stored.steps)), stored.implicit_fill)


def _moved(sample: NumericSample, step: Step) -> tuple[float, float] | None:
    """Returns the least and the greatest training value after a step; all steps keep the order of values."""
    if (sample.exact is None and sample.limits is None) or sample.ends is None or isinstance(step, MissingFlag):
        return None
    missing = [np.nan] if np.isnan(sample.values).any() else []
    ends = step.apply(np.array([*sample.ends, *missing]))
    present = ends[~np.isnan(ends)]
    return (float(present.min()), float(present.max())) if np.isfinite(present).all() else None


@dataclass(frozen=True, slots=True)
class _Stored:
    """A saved chain."""

    implicit_fill: bool
    steps: tuple[dict[str, Any], ...]


def _step(values: dict[str, Any]) -> Step:
    """Returns a saved step.

    Raises:
        DataError: it is none of the known ones, or its numbers are missing, mistyped or contradictory.
    """
    name = values.get("name")
    kind = _STEPS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise DAMAGED.of("numeric feature", f"unknown step {shorten(name)}; allowed: {', '.join(_STEPS)}")
    step: Step = declared(cast("type[Any]", kind), values, f"step {name}", DAMAGED)
    if isinstance(step, Quantile) and not 0 < len(step.knots) == len(step.levels):
        raise DAMAGED.of(f"step {name}", f"has {len(step.knots)} knots and {len(step.levels)} levels")
    if isinstance(step, Quantile | Bucketise) and not _ascend(step):
        raise DAMAGED.of(f"step {name}", "its numbers do not ascend")
    if isinstance(step, Spline) and not (len(step.knots) > _LEAST_KNOTS and np.all(np.diff(step.knots) > 0)):
        raise DAMAGED.of(f"step {name}", "its knots are too few, or do not ascend")
    if isinstance(step, MinMax | MaxAbs | Robust | Power) and not _scale(step) > 0:
        raise DAMAGED.of(f"step {name}", "it divides by a number that is not above 0")
    return step


def _scale(step: MinMax | MaxAbs | Robust | Power) -> float:
    if isinstance(step, Power):
        return step.std
    return step.size if isinstance(step, MaxAbs) else step.range


def _ascend(step: Quantile | Bucketise) -> bool:
    values = np.asarray(step.knots if isinstance(step, Quantile) else step.boundaries, np.float64)
    return bool(np.all(values[1:] > values[:-1]))
