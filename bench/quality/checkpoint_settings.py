"""The settings of checkpoints that ``checkpoint_bytes`` compares with full fp32 checkpoints."""

from __future__ import annotations

import statistics as st
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.quality.checkpoint_runs import Intervals, StorageBytes

RESTORES = {2: 1, 3: 2, 4: 3, 8: 3, 16: 3, 32: 3}
"""Bits -> the failures of a training."""
WRITTEN_TARGET, KEPT_TARGET, MAX_LOG_LOSS_CHANGE = 17.0, 8.0, 0.01
"""The targets that a setting has to meet together: two factors of reduction, and a percentage of the log-loss."""
MAX_CHANGED = 0.26
"""The largest share of rows that may change in an interval for the targets to apply."""
REFERENCE = ("full", 32)
COLUMNS = (
    "data", "steps", "rows changed", "policy", "bits", "written", "tables alone", "kept", "at rest", "full",
    "log-loss", "restores",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """The results of one setting of checkpoints at one interval.

    Attributes:
        data: the name of the data set.
        intervals: the intervals.
        policy, bits: the values of the same names in the config.
        changed: the mean share of rows that change in an interval.
        written, tables, kept, resting: the factors by which bytes are smaller than with full fp32 checkpoints;
            ``tables`` is ``written`` for rows of tables alone.
        full: the number of full checkpoints.
        off: the relative changes of the log-loss in percent, one per seed.
    """

    data: str
    intervals: Intervals
    policy: str
    bits: int
    changed: float
    written: float
    tables: float
    kept: float
    resting: float
    full: int
    off: tuple[float, ...]

    @property
    def margin(self) -> float:
        """The smaller factor by which a target is met; 0 if the log-loss or the share of changed rows is too large."""
        fits = self.changed <= MAX_CHANGED and abs(st.fmean(self.off)) <= MAX_LOG_LOSS_CHANGE
        return min(self.written / WRITTEN_TARGET, self.kept / KEPT_TARGET) if fits else 0.0

    def cells(self) -> tuple[str, ...]:
        return (
            self.data, str(self.intervals.steps), f"{100 * self.changed:.1f} %", self.policy, str(self.bits),
            *(f"{each:.1f}×" for each in (self.written, self.tables, self.kept, self.resting)),
            f"{self.full} of {self.intervals.counted}", f"{st.fmean(self.off):+.4f} %", str(RESTORES[self.bits]),
        )  # fmt: skip


def compared(
    data: str, intervals: Intervals, found: Mapping[tuple[str, int], StorageBytes], off: Mapping[int, Sequence[float]]
) -> list[Setting]:
    """Compares the settings of one interval with full fp32 checkpoints.

    Args:
        data, intervals: the data set and the intervals.
        found: (policy, bits) -> bytes, including :data:`REFERENCE` and the consecutive policy.
        off: bits -> relative changes of the log-loss in percent, one per seed.
    """
    full = found[REFERENCE]
    changed = next(kept for (policy, _), kept in found.items() if policy == "consecutive")
    share = st.fmean(changed.rows[1:]) / changed.all_rows
    return [
        Setting(
            data,
            intervals,
            policy,
            bits,
            share,
            sum(full.written) / sum(kept.written),
            full.table_bytes / kept.table_bytes,
            full.peak / kept.peak,
            full.resting / kept.resting,
            kept.full,
            tuple(off[bits]),
        )
        for (policy, bits), kept in found.items()
        if (policy, bits) != REFERENCE
    ]
