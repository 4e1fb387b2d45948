"""The config of a label: the columns that it is made from, its kind, and how it counts in training."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

import pydantic

from ziggurat.core.config import Config
from ziggurat.objectives.losses import NOT_NEGATIVE, Log1p, LossConfig, Squared
from ziggurat.objectives.task import LabelKind, Task

MAX_LEVELS = 100
"""The most levels of an ordinal label."""

_Level = Annotated[int, pydantic.Field(gt=-(2**24), lt=2**24)]


class LabelConfig(Config):
    """A target that is made from a column."""

    NEWER: ClassVar[frozenset[str]] = frozenset(
        {"observed", "kind", "positives", "trials", "levels", "loss", "loss_weight", "negative_rate"}
    )

    name: str
    """The task's name."""
    column: str | None = None
    """Raw column that the label is made from; the label's name by default."""
    at_least: pydantic.FiniteFloat | None = None
    """A binary label is 1 if the column's number is at least this."""
    equals: pydantic.StrictStr | pydantic.StrictInt | pydantic.StrictFloat | None = None
    """A binary label is 1 if the cell equals this text or number. Without this and ``at_least``, cells must be 0 or
    1."""
    observed: bool = False
    """Every row of the log is a 1, as in a log of positives alone; ``data.negatives`` samples the zeros."""
    kind: LabelKind = "binary"
    """``binary``: 0 or 1. ``soft``: a rate or probability, from 0 to 1. ``regression``: a number. ``ordinal``: a whole
    number of a few ordered levels, such as a rating."""
    positives: str | None = None
    """Of a soft label: the column that counts events, such as clicks. The label is their share of ``trials``."""
    trials: str | None = None
    """Of a soft label: the column that counts the trials that the events are of, such as impressions. Their number is
    the row's weight for this label; a row without trials has weight 0."""
    levels: tuple[_Level, ...] | None = pydantic.Field(default=None, min_length=2, max_length=MAX_LEVELS)
    """Of an ordinal label: its values, ascending; by default those that preparation finds."""
    loss: LossConfig | None = None
    """Of a regression label: ``squared`` (the default), ``huber``, ``log1p``, ``poisson``, ``tweedie`` or
    ``quantile``."""
    loss_weight: float = pydantic.Field(default=1.0, gt=0, allow_inf_nan=False)
    """How much this label's loss counts beside those of the other labels."""
    negative_rate: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Of a binary label: the share of negatives that were kept when the log was written, if some were dropped.
    Evaluation and prediction correct for it."""

    @pydantic.model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.observed and (self.column is not None or self.at_least is not None or self.equals is not None):
            raise ValueError("an observed label has no column: give observed, or column, at_least and equals")
        if self.observed and self.kind != "binary":
            raise ValueError(f"observed belongs to labels of kind binary, received kind: {self.kind}")
        if self.at_least is not None and self.equals is not None:
            raise ValueError("give at_least or equals, not both")
        allowed = {
            "binary": ("at_least", "equals", "negative_rate"),
            "soft": ("positives", "trials"),
            "regression": ("loss",),
            "ordinal": ("levels",),
        }
        for kind, keys in allowed.items():
            for key in keys:
                if kind != self.kind and getattr(self, key) is not None:
                    raise ValueError(f"{key} belongs to labels of kind {kind}, received kind: {self.kind}")
        if (self.positives is None) != (self.trials is None):
            raise ValueError("give both positives and trials, such as clicks and impressions, or neither")
        if self.trials is not None and self.column is not None:
            raise ValueError("give column, or positives and trials, not both")
        if self.levels is not None and list(self.levels) != sorted(set(self.levels)):
            raise ValueError(f"levels must ascend, received {list(self.levels)}")
        return self

    @property
    def source_column(self) -> str:
        """The raw column of the label; of events out of trials, that of the events."""
        return self.positives or self.column or self.name

    @property
    def source_columns(self) -> tuple[str, ...]:
        """All raw columns of the label; none of an observed one."""
        if self.observed:
            return ()
        return (self.source_column,) if self.trials is None else (self.source_column, self.trials)

    @property
    def not_negative(self) -> bool:
        """Whether the loss needs labels of 0 or more."""
        return isinstance(self.loss, NOT_NEGATIVE)

    @property
    def as_prepared(self) -> LabelConfig:
        """The config without what does not affect the prepared data; losses that need labels ≥ 0 count as one."""
        loss = Log1p() if self.not_negative else None
        return self.model_copy(update={"loss": loss, "loss_weight": 1.0, "negative_rate": None})

    def task(self, levels: tuple[float, ...] = (), kept: float = 1.0) -> Task:
        """Returns the label as a task of the model.

        Args:
            levels: the levels of an ordinal label, as preparation found them.
            kept: the share of negatives that are kept in training.
        """
        known = self.negative_rate or 1.0
        return Task(
            name=self.name,
            kind=self.kind,
            loss=(self.loss or Squared()) if self.kind == "regression" else None,
            levels=levels or tuple(map(float, self.levels or ())),
            weight=self.loss_weight,
            negative_rate=known * kept,
            known_rate=known,
        )
