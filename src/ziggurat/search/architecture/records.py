"""What is known of each architecture that was trained from scratch, in ``trials.json``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ziggurat.core.errors import RunFolderError
from ziggurat.core.sealed import declared, read_sealed_json, write_sealed_json
from ziggurat.core.untrusted import Damage
from ziggurat.search.architecture.clock import Spent

TRIALS_FILE = "trials.json"
_DAMAGE = Damage(RunFolderError, "restore it from a copy, or search in another folder with --run")


@dataclass(frozen=True, slots=True)
class ArchitectureTrial:
    """An architecture, and what its training from scratch gave.

    Attributes:
        number: its number; its run is in ``trials/NUMBER``.
        choices: name of a decision -> index of its choice; empty for the config as it is, which is number 0.
        costs: FLOPs, bytes and, if measured, milliseconds.
        state: ``running`` also if it was stopped and is to be resumed.
        value: the monitored metric on validation, of its best checkpoint.
        figures: the figures on validation; None is undefined.
        steps: optimizer steps done.
        seconds: wall-clock of its training.
        reason: why it failed.
        cpu_seconds: processor seconds of its training, with the preparation of its data; 0 in files of versions that
            did not measure them.
    """

    number: int
    choices: dict[str, int]
    costs: dict[str, float]
    state: Literal["running", "complete", "failed"]
    value: float | None
    figures: dict[str, float | None]
    steps: int
    seconds: float
    reason: str = ""
    cpu_seconds: float = 0.0

    @property
    def spent(self) -> Spent:
        """What its training took."""
        return Spent(self.seconds, self.cpu_seconds)


@dataclass(frozen=True, slots=True)
class _Stored:
    trials: list[ArchitectureTrial]


def write_trials(folder: Path, trials: Sequence[ArchitectureTrial]) -> None:
    """Writes all trials, atomically."""
    write_sealed_json(folder / TRIALS_FILE, {"trials": [asdict(each) for each in trials]})


def read_trials(folder: Path) -> list[ArchitectureTrial]:
    """Returns the trials of a search; none if it has not begun any.

    Raises:
        RunFolderError: the file is damaged.
    """
    path = folder / TRIALS_FILE
    values: dict[str, Any] | None = read_sealed_json(path, _DAMAGE) if path.exists() else None
    return [] if values is None else declared(_Stored, values, path, _DAMAGE).trials


def best_of(trials: Sequence[ArchitectureTrial], *, higher_is_better: bool) -> ArchitectureTrial | None:
    """Returns the complete trial with the best value on validation, without the config as it is."""
    complete = [each for each in trials if each.value is not None and each.number]
    sign = -1 if higher_is_better else 1
    return min(complete, key=lambda each: (sign * (each.value or 0.0), each.number), default=None)
