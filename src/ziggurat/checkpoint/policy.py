"""Decides which rows the next checkpoint writes.

Source: Eisenman et al. 2022, "Check-N-Run", NSDI, section 4. Deviations: whatever the policy, a full checkpoint is
written instead of a delta of nearly its size; chains of consecutive deltas are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ziggurat.checkpoint.config import CheckpointsConfig, Policy
from ziggurat.checkpoint.format.manifest import Kind, Reference

RowSelection = Literal["all", "base", "last"]
"""All rows, those that changed since the last full checkpoint, or those that changed since the last checkpoint."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The policy's decision about one checkpoint.

    Attributes:
        kind: full or a delta.
        rows: the rows to write.
        needs: the checkpoints on which it builds, the full one first.
    """

    kind: Kind
    rows: RowSelection
    needs: tuple[Reference, ...]


FULL = Choice("full", "all", ())
NEARLY_ALL = 0.9
"""From this share of all rows' bytes on, a full checkpoint is written instead: a restore reads it alone."""


class Chain:
    """The current full checkpoint and its deltas so far. A new chain begins with a full checkpoint.

    Args:
        config: the policy.
    """

    def __init__(self, config: CheckpointsConfig) -> None:
        self._policy: Policy = config.policy
        self._max_deltas = config.consecutive_deltas
        self._members: list[Reference] = []
        self._sizes: list[float] = []

    def next(self, step: int, since_base: float, since_last: float) -> Choice:
        """Returns what the next checkpoint writes.

        Args:
            step: step of the checkpoint. If a step is saved again it is saved in full, as its first checkpoint is
                replaced.
            since_base: share of the rows, by bytes, that changed since the full checkpoint.
            since_last: share of the rows, by bytes, that changed since the last checkpoint.
        """
        if not self._members or self._policy == "full" or step <= self._members[-1].step:
            return FULL
        size = since_last if self._policy == "consecutive" else since_base
        if size >= NEARLY_ALL:
            return FULL
        match self._policy:
            case "one_shot":
                return Choice("delta", "base", (self._members[0],))
            case "consecutive":
                full = len(self._sizes) >= self._max_deltas
                return FULL if full else Choice("delta", "last", tuple(self._members))
            case _:
                return FULL if self._full_is_cheaper() else Choice("delta", "base", (self._members[0],))

    def add(self, choice: Choice, checkpoint: Reference, size: float) -> None:
        """Records a checkpoint that was written.

        Args:
            choice: what :meth:`next` returned for it.
            checkpoint: its step and id.
            size: bytes of its rows over those of all rows.
        """
        if choice.kind == "full":
            self._members, self._sizes = [checkpoint], []
        else:
            self._members.append(checkpoint)
            self._sizes.append(size)

    def reset(self) -> None:
        """Starts a new chain after a checkpoint could not be written: the next one is full."""
        self._members, self._sizes = [], []

    def _full_is_cheaper(self) -> bool:
        """Returns whether F_c ≤ I_c.

        F_c: the bytes of this chain's full checkpoint and i deltas, which a new chain is predicted to cost. I_c: the
        bytes of i + 1 more deltas of the last one's size.
        """
        if not self._sizes:
            return False
        full = 1 + sum(self._sizes)
        delta = (len(self._sizes) + 1) * self._sizes[-1]
        return full <= delta
