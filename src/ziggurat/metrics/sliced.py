"""The same figures for parts of the data: one slice per id of an encoded feature, a bounded number of them.

Ids 0 … n - 1 get a slice each and all others share one, ``other``. In a vocabulary that is the right choice (row 0 is
missing, then out-of-vocabulary, then values by falling training count); under a hash encoder it keeps an arbitrary n.

Shape legend: B rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import DataError
from ziggurat.metrics.binary import BinaryMetrics
from ziggurat.metrics.config import MetricsConfig
from ziggurat.metrics.rows import MetricRows


@dataclass(frozen=True, slots=True)
class SliceFigures:
    """One row of a table of slices.

    Attributes:
        task: the label's name.
        feature: the sliced feature.
        id: the encoded id, or None for ``other``.
        figures: as :meth:`BinaryMetrics.compute` gives them, without GAUC.
    """

    task: str
    feature: str
    id: int | None
    figures: dict[str, float]

    @property
    def label(self) -> str:
        return f"{self.feature}={'other' if self.id is None else self.id}"


class SlicedMetrics:
    """Figures of one task per id of one feature; slices that never occur take no memory."""

    def __init__(self, config: MetricsConfig) -> None:
        self.config = config
        self._slice_config = config.model_copy(update={"score_keys": config.slice_score_keys})
        self._slices: dict[int, BinaryMetrics] = {}

    def add(self, rows: MetricRows, finite_B: npt.NDArray[np.bool_], ids_B: npt.NDArray[Any]) -> None:
        """Count rows under their ids (integers ≥ 0); ``finite_B`` marks the rows whose logit is finite."""
        if ids_B.shape != (len(rows),) or not np.issubdtype(ids_B.dtype, np.integer):
            raise DataError(
                f"metrics: slice ids are {ids_B.dtype} of shape {ids_B.shape}; need integers ({len(rows)},)"
            )
        slice_B = np.clip(ids_B, 0, self.config.slice_ids).astype(np.uint16)
        if len(rows) == 0:
            return
        order_B = np.argsort(slice_B, kind="stable")
        sorted_B = slice_B[order_B]
        starts = np.flatnonzero(np.diff(sorted_B, prepend=np.uint16(0xFFFF)))
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            chosen = order_B[start:end]
            kept = chosen[finite_B[chosen]]
            self._slice(int(sorted_B[start])).add(rows.take(kept).ungrouped(), len(chosen) - len(kept))

    def merge(self, other: SlicedMetrics) -> None:
        for slice_id, metrics in other._slices.items():
            self._slice(slice_id).merge(metrics)

    def compute(self, task: str, feature: str) -> list[SliceFigures]:
        """Figures of the slices that occurred, ids ascending, ``other`` last."""
        other = self.config.slice_ids
        return [
            SliceFigures(task, feature, None if slice_id == other else slice_id, self._slices[slice_id].compute())
            for slice_id in sorted(self._slices)
        ]

    def state(self) -> dict[int, Any]:
        return {slice_id: self._slices[slice_id].state() for slice_id in sorted(self._slices)}

    @classmethod
    def from_state(cls, config: MetricsConfig, state: dict[int, Any]) -> SlicedMetrics:
        made = cls(config)
        made._slices = {key: BinaryMetrics.from_state(made._slice_config, value) for key, value in state.items()}
        return made

    def _slice(self, slice_id: int) -> BinaryMetrics:
        if slice_id not in self._slices:
            self._slices[slice_id] = BinaryMetrics(self._slice_config)
        return self._slices[slice_id]
