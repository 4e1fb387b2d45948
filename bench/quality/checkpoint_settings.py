"""Ways to write checkpoints, each beside full ones in fp32: what ``checkpoint_bytes`` compares."""

from __future__ import annotations

import statistics as st
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.quality.checkpoint_runs import Kept, Spans

RESTORES = {2: 1, 3: 2, 4: 3, 8: 3, 16: 3, 32: 3}
"""Bits -> failures of a training."""
WRITTEN, KEPT, OFF = 17.0, 8.0, 0.01
"""Times less, times less, and percent of log-loss: what is asked for together, of one setting."""
MOST_CHANGED = 0.26
"""Share of rows that change in an interval at which that is asked."""
REFERENCE = ("full", 32)
HEAD = (
    "data", "steps", "rows changed", "policy", "bits", "written", "tables alone", "kept", "at rest", "full",
    "log-loss", "restores",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to write checkpoints at one interval, and what it comes to.

    Attributes:
        data: name of the data.
        spans: the intervals.
        policy, bits: as in the config.
        changed: mean share of rows that change in an interval.
        written, tables, kept, resting: times less than full fp32 checkpoints; tables: of their rows alone.
        full: of how many checkpoints so many were full.
        off: relative change of the log-loss in percent, a seed each.
    """

    data: str
    spans: Spans
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
        """How far it clears what is asked for, in its worst respect; a log-loss that is off clears nothing."""
        fits = self.changed <= MOST_CHANGED and abs(st.fmean(self.off)) <= OFF
        return min(self.written / WRITTEN, self.kept / KEPT) if fits else 0.0

    def cells(self) -> tuple[str, ...]:
        return (
            self.data, str(self.spans.steps), f"{100 * self.changed:.1f} %", self.policy, str(self.bits),
            *(f"{each:.1f}×" for each in (self.written, self.tables, self.kept, self.resting)),
            f"{self.full} of {self.spans.counted}", f"{st.fmean(self.off):+.4f} %", str(RESTORES[self.bits]),
        )  # fmt: skip


def compared(
    data: str, spans: Spans, found: Mapping[tuple[str, int], Kept], off: Mapping[int, Sequence[float]]
) -> list[Setting]:
    """Settings of one interval beside full fp32 checkpoints.

    Args:
        data, spans: of which.
        found: (policy, bits) -> bytes; :data:`REFERENCE` and the consecutive policy's are among them.
        off: bits -> relative change of the log-loss in percent, a seed each.
    """
    full = found[REFERENCE]
    changed = next(kept for (policy, _), kept in found.items() if policy == "consecutive")
    share = st.fmean(changed.rows[1:]) / changed.all_rows
    return [
        Setting(
            data,
            spans,
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
