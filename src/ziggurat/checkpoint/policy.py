"""Which rows the next checkpoint writes.

Source: Eisenman et al. 2022, "Check-N-Run", NSDI, section 4. Deviations: a delta that would be nearly as large as a
full checkpoint is none, whatever the policy; chains of consecutive deltas have an end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ziggurat.checkpoint.config import CheckpointsConfig, Policy
from ziggurat.checkpoint.format.manifest import Kind, Reference

Since = Literal["all", "base", "last"]


@dataclass(frozen=True, slots=True)
class Choice:
    """What a checkpoint is to be.

    Attributes:
        kind: full or a delta.
        rows: which it writes: all, or those changed since the full or the last one.
        needs: the checkpoints that it builds on.
    """

    kind: Kind
    rows: Since
    needs: tuple[Reference, ...]


FULL = Choice("full", "all", ())
NEARLY_ALL = 0.9
"""Share of all rows' bytes from which on a delta is written as a full checkpoint, which a restore reads alone."""


class Chain:
    """The full checkpoint and its deltas so far; a new one begins with a full checkpoint.

    Args:
        config: the policy.
    """

    def __init__(self, config: CheckpointsConfig) -> None:
        self._policy: Policy = config.policy
        self._most = config.consecutive_deltas
        self._members: list[Reference] = []
        self._sizes: list[float] = []

    def next(self, step: int, since_base: float, since_last: float) -> Choice:
        """The next checkpoint's kind.

        Args:
            step: its; a step that is saved once more is saved in full, as its first checkpoint is replaced.
            since_base: bytes of rows that changed since the full checkpoint, over those of all rows.
            since_last: the same since the last checkpoint.
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
                full = len(self._sizes) >= self._most
                return FULL if full else Choice("delta", "last", tuple(self._members))
            case _:
                return FULL if self._full_is_cheaper() else Choice("delta", "base", (self._members[0],))

    def written(self, choice: Choice, made: Reference, size: float) -> None:
        """That a checkpoint is there; ``size``: of its rows over all rows."""
        if choice.kind == "full":
            self._members, self._sizes = [made], []
        else:
            self._members.append(made)
            self._sizes.append(size)

    def broken(self) -> None:
        """That a checkpoint could not be written: the next one is full."""
        self._members, self._sizes = [], []

    def _full_is_cheaper(self) -> bool:
        """F_c ≤ I_c: writing anew what i intervals have cost is no dearer than i + 1 deltas of the last one's size."""
        if not self._sizes:
            return False
        full = 1 + sum(self._sizes)
        delta = (len(self._sizes) + 1) * self._sizes[-1]
        return full <= delta
