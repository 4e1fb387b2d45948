"""How learning rates change over a run: one multiplier for the dense optimizer and the tables alike.

A schedule is a pure function of the step, and for the plateau of the values it was shown; it knows no optimizer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from ziggurat.core.config import Config
from ziggurat.core.errors import RunFolderError

Share = Annotated[float, Field(ge=0, le=1)]


class Schedule(ABC):
    """A multiplier of every learning rate."""

    @abstractmethod
    def multiplier(self, step: int) -> float:
        """What the configured learning rates are multiplied by in step ``step``, counted from 0."""

    def observe(self, value: float) -> None:
        """Be shown the monitored validation metric, turned so that lower is better."""
        del value

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must keep, as JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what :meth:`state_dict` gave.

        Raises:
            RunFolderError: the state is another schedule's.
        """
        if state.keys() != self.state_dict().keys():
            raise RunFolderError(
                f"the checkpoint's schedule state has keys {sorted(state)}, {type(self).__name__} keeps "
                f"{sorted(self.state_dict())}",
                "resume with the schedule that the run was started with",
            )


class Constant(Schedule):
    """1, always."""

    class Config(Config):
        """Learning rates stay as configured."""

        name: Literal["constant"] = "constant"

    def multiplier(self, step: int) -> float:
        del step
        return 1.0


class WarmupConfig(Config):
    """The rise at the start and the value at the end, of schedules that know how long the run is."""

    warmup_steps: Annotated[int, Field(ge=0)] | None = None
    """Steps over which the multiplier rises to 1; give this or warmup_share."""

    warmup_share: Share | None = None
    """The same as a share of all steps; 0 when neither is given."""

    final_share: Share = 0.0
    """The multiplier that the last step approaches."""

    @model_validator(mode="after")
    def _one_warmup(self) -> Self:
        if self.warmup_steps is not None and self.warmup_share is not None:
            raise ValueError("give warmup_steps or warmup_share, not both")
        return self


class Warmup(Schedule):
    """A straight rise, then a decay from 1 to ``final_share`` along a shape.

    Step s < w of the w warm-up steps: (s + 1) / w, so that no step is wasted at 0. Afterwards, with progress
    p = (s − w) / (total − w) in [0, 1): final + (1 − final)·shape(p). Steps from ``total_steps`` on stay at final.
    A warm-up longer than the run is the rise alone.
    """

    def __init__(self, config: WarmupConfig, total_steps: int) -> None:
        assert total_steps >= 1, total_steps
        self.total_steps = total_steps
        share = config.warmup_share or 0.0
        self.warmup_steps = config.warmup_steps if config.warmup_steps is not None else round(share * total_steps)
        self.final_share = config.final_share

    def multiplier(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if step >= self.total_steps:
            return self.final_share
        progress = (step - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        return self.final_share + (1 - self.final_share) * self.shape(progress)

    @abstractmethod
    def shape(self, progress: float) -> float:
        """1 at progress 0, 0 at progress 1."""


class WarmupCosine(Warmup):
    """Decay along half a cosine: (1 + cos πp) / 2 (Loshchilov and Hutter 2017, without restarts)."""

    class Config(WarmupConfig):
        """Rise, then half a cosine."""

        name: Literal["warmup_cosine"] = "warmup_cosine"

    def shape(self, progress: float) -> float:
        return (1 + math.cos(math.pi * progress)) / 2


class WarmupLinear(Warmup):
    """Decay along a straight line: 1 − p."""

    class Config(WarmupConfig):
        """Rise, then a straight line down."""

        name: Literal["warmup_linear"] = "warmup_linear"

    def shape(self, progress: float) -> float:
        return 1 - progress


class Plateau(Schedule):
    """Multiply by ``factor`` whenever ``patience`` evaluations in a row brought no improvement.

    An evaluation improves when its value is below the best so far by more than ``min_delta``; NaN never does. After a
    cut the count starts anew.
    """

    class Config(Config):
        """Cut the learning rates when the metric named by training.monitor stalls."""

        name: Literal["plateau"] = "plateau"

        factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
        """What a cut multiplies the learning rates by."""

        patience: Annotated[int, Field(ge=1)] = 1
        """Evaluations without improvement that bring a cut."""

        min_delta: Annotated[float, Field(ge=0)] = 0.0
        """An improvement must be larger than this to count."""

        minimum: Share = 0.001
        """The multiplier never falls below this."""

    def __init__(self, config: Plateau.Config) -> None:
        self.config = config
        self.best: float | None = None
        self.stale = 0
        self.cuts = 0

    def multiplier(self, step: int) -> float:
        del step
        return max(self.config.minimum, self.config.factor**self.cuts)

    def observe(self, value: float) -> None:
        if not math.isnan(value) and (self.best is None or value < self.best - self.config.min_delta):
            self.best, self.stale = value, 0
            return
        self.stale += 1
        if self.stale >= self.config.patience:
            self.cuts, self.stale = self.cuts + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "stale": self.stale, "cuts": self.cuts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.best, self.stale, self.cuts = state["best"], state["stale"], state["cuts"]


ScheduleConfig = Annotated[
    Constant.Config | WarmupCosine.Config | WarmupLinear.Config | Plateau.Config, Field(discriminator="name")
]
"""The config of any schedule, told apart by ``name``."""


def build_schedule(config: ScheduleConfig, total_steps: int) -> Schedule:
    """The schedule that ``config`` describes, for a run of ``total_steps`` steps."""
    match config:
        case Constant.Config():
            return Constant()
        case WarmupCosine.Config():
            return WarmupCosine(config, total_steps)
        case WarmupLinear.Config():
            return WarmupLinear(config, total_steps)
        case Plateau.Config():
            return Plateau(config)
