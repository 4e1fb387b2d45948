"""The state of a training: steps, cursor, and whether the monitored metric still improves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ziggurat.core.errors import shorten
from ziggurat.core.sealed import declared
from ziggurat.core.untrusted import Damage
from ziggurat.data.encoded.loader import Cursor
from ziggurat.metrics.names import higher_is_better
from ziggurat.objectives.task import Task
from ziggurat.training.config import EarlyStopping


@dataclass(slots=True)
class TrainState:
    """The training state, saved with every checkpoint.

    Attributes:
        step: number of optimizer steps done.
        cursor: where the loader continues.
        best: best value of the monitored metric so far.
        best_step: step of the best value.
        stale: number of evaluations that count since the best value.
        stopped_early: whether early stopping has ended the run.
    """

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    best: float | None = None
    best_step: int | None = None
    stale: int = 0
    stopped_early: bool = False

    def observe(self, value: float, metric: str, stopping: EarlyStopping | None, *, counts: bool = True) -> bool:
        """Records a value of the monitored ``metric`` and returns whether it is the best so far; nan never is.

        Args:
            value: the value.
            metric: the metric, which says whether higher is better.
            stopping: when to stop; None: never.
            counts: whether a value that is no improvement counts towards stopping.
        """
        margin = stopping.min_delta if stopping else 0.0
        gain = math.inf if self.best is None else value - self.best
        if self.best is not None and not higher_is_better(metric):
            gain = -gain
        if math.isnan(value) or gain <= margin:
            if not counts:
                return False
            self.stale += 1
            self.stopped_early = stopping is not None and self.stale >= stopping.patience
            return False
        self.best, self.best_step, self.stale = value, self.step, 0
        return True

    def to_json(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in ("step", "best", "best_step", "stale", "stopped_early")}
        return {**values, "cursor": [self.cursor.epoch, self.cursor.rows]}

    @classmethod
    def from_json(cls, values: Any, where: str, damage: Damage) -> TrainState:
        """Returns the state that :meth:`to_json` made.

        Args:
            values: the JSON.
            where: where it was read, for messages.
            damage: the errors to raise.

        Raises:
            ZigguratError: of class ``damage.error``: a value is missing, or of another type.
        """
        saved = declared(_Saved, values, where, damage)
        numbers = {"step": saved.step, "best_step": saved.best_step or 0, "stale": saved.stale}
        numbers |= dict(zip(("cursor.0", "cursor.1"), saved.cursor, strict=True))
        for name, number in numbers.items():
            if not 0 <= number < _MOST:
                raise damage.of(where, f"{name}: received {shorten(number)}, expected 0 to {_MOST:,}")
        return cls(saved.step, Cursor(*saved.cursor), saved.best, saved.best_step, saved.stale, saved.stopped_early)


_MOST = 2**48


@dataclass(frozen=True, slots=True)
class _Saved:
    """What :meth:`TrainState.to_json` returns."""

    step: int
    cursor: tuple[int, int]
    best: float | None
    best_step: int | None
    stale: int
    stopped_early: bool


def monitored(figures: dict[str, float], metric: str, tasks: Sequence[Task]) -> float:
    """The value of ``metric`` on validation; of several tasks, the mean by their weights, unless the metric names one.

    The relative loss of a label that is a rate is its NE.

    Raises:
        ConfigError: no such metric, or none with a better direction.
    """
    higher_is_better(metric)
    if metric in figures:
        return figures[metric]
    parts = parts_of(metric, tasks)
    return sum(figures[name] * weight for _, name, weight in parts) / sum(weight for *_, weight in parts)


def parts_of(metric: str, tasks: Sequence[Task]) -> list[tuple[int, str, float]]:
    """Returns the figures whose weighted mean the monitored ``metric`` is.

    Each is the number of a task in ``tasks``, the full name of its figure, and its weight relative to the first one's.
    """
    label, separator, name = metric.rpartition("/")
    chosen = [number for number, task in enumerate(tasks) if not separator or task.name == label]
    first = tasks[chosen[0]].weight
    return [
        (number, _measured(tasks[number], name, several=len(tasks) > 1), tasks[number].weight / first)
        for number in chosen
    ]


def _measured(task: Task, metric: str, *, several: bool) -> str:
    """Returns the full name of the figure that a metric is of a task."""
    name = "ne" if metric == "relative_loss" and task.is_probability else metric
    return f"{task.name}/{name}" if several else name
