"""Learning-rate schedules: one multiplier for the dense optimizer and the tables' optimizers.

A schedule is a pure function of the step (the plateau schedule also of the observed metric); it knows no optimizer.
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
        """Returns the factor for the configured learning rates in step ``step``, counted from 0."""

    def ends_cycle(self, step: int) -> bool:
        """Returns whether a cycle of the schedule ends once ``step`` steps are done; without cycles, never."""
        del step
        return False

    def is_low(self, step: int) -> bool:
        """Returns whether the rates are low once ``step`` steps are done, so that a model that is no better then says
        something; without cycles, always."""
        del step
        return True

    def observe(self, value: float) -> None:
        """Takes note of the monitored validation metric, with its sign chosen so that lower is better."""
        del value

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that a checkpoint must keep, as JSON."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state returned by :meth:`state_dict`.

        Raises:
            RunFolderError: the state is of another kind of schedule.
        """
        if state.keys() != self.state_dict().keys():
            raise RunFolderError(
                f"the checkpoint's schedule state has keys {sorted(state)}, {type(self).__name__} keeps "
                f"{sorted(self.state_dict())}",
                "resume with the schedule that the run was started with",
            )


class Constant(Schedule):
    """The multiplier is always 1."""

    class Config(Config):
        """Learning rates stay as configured."""

        name: Literal["constant"] = "constant"

    def multiplier(self, step: int) -> float:
        del step
        return 1.0


class WarmupConfig(Config):
    """Warm-up and final value of the schedules that know the length of the run."""

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
    """A linear rise, then a decay from 1 to ``final_share`` along a shape.

    In step s < w of the w warm-up steps the multiplier is (s + 1) / w, so that no step is wasted at 0. Afterwards it is
    final + (1 − final)·shape(p), with progress p = (s − w) / (total − w) in [0, 1). From step ``total_steps`` on it is
    final. If the warm-up is longer than the run, the run only has the rise.
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
        """Returns the shape of the decay: 1 at progress 0, 0 at progress 1."""


class WarmupCosine(Warmup):
    """Decays along half a cosine: (1 + cos πp) / 2 (Loshchilov and Hutter 2017, without restarts)."""

    class Config(WarmupConfig):
        """Linear warm-up, then decay along half a cosine."""

        name: Literal["warmup_cosine"] = "warmup_cosine"

    def shape(self, progress: float) -> float:
        return (1 + math.cos(math.pi * progress)) / 2


class WarmupLinear(Warmup):
    """Decays along a straight line: 1 − p."""

    class Config(WarmupConfig):
        """Linear warm-up, then linear decay."""

        name: Literal["warmup_linear"] = "warmup_linear"

    def shape(self, progress: float) -> float:
        return 1 - progress


class Plateau(Schedule):
    """Multiplies by ``factor`` whenever ``patience`` evaluations in a row brought no improvement.

    An evaluation is an improvement if its value is below the best so far by more than ``min_delta``; NaN never is.
    After a cut the count starts again.
    """

    class Config(Config):
        """Cut the learning rates when the metric named by training.monitor stalls."""

        name: Literal["plateau"] = "plateau"

        factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
        """Factor by which a cut multiplies the learning rates."""

        patience: Annotated[int, Field(ge=1)] = 1
        """Number of consecutive evaluations without improvement that causes a cut."""

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


class CyclicCosine(Schedule):
    """Falls from 1 to ``final_share`` along half a cosine, and again from 1, ``cycles`` times in the run.

    Cycle k of M spans the steps from ⌊kT / M⌋ to ⌊(k + 1)T / M⌋ of T, so that lengths differ by a step at most. With
    progress p in a cycle the multiplier is final + (1 − final)·(1 + cos πp) / 2. At the end of a cycle the model has
    settled in a minimum, which the high rate of the next one leaves for another.

    Source: Huang et al. 2017, "Snapshot Ensembles: Train 1, Get M for Free", ICLR, equation 2. Deviation: there, cycles
    have ⌈T / M⌉ steps, and the last may be shorter.
    """

    class Config(Config):
        """Decay along half a cosine, several times; a checkpoint, the snapshot, is kept at the end of each cycle."""

        name: Literal["cyclic_cosine"] = "cyclic_cosine"

        cycles: Annotated[int, Field(ge=2, le=1000)] = 5
        """Number of cycles in the run, and of snapshots; a run of fewer steps has a cycle a step."""

        final_share: Share = 0.0
        """The multiplier that the last step of a cycle approaches."""

    def __init__(self, config: CyclicCosine.Config, total_steps: int) -> None:
        assert total_steps >= 1, total_steps
        self.config, self.total_steps = config, total_steps
        self.cycles = min(config.cycles, total_steps)

    def multiplier(self, step: int) -> float:
        if step >= self.total_steps:
            return self.config.final_share
        cycle = ((step + 1) * self.cycles - 1) // self.total_steps  # the last one that begins at this step or before
        start, end = self._start(cycle), self._start(cycle + 1)
        progress = (step - start) / (end - start)
        return self.config.final_share + (1 - self.config.final_share) * (1 + math.cos(math.pi * progress)) / 2

    def ends_cycle(self, step: int) -> bool:
        return 0 < step <= self.total_steps and self._start(-(-step * self.cycles // self.total_steps)) == step

    def is_low(self, step: int) -> bool:
        return self.ends_cycle(step)

    def _start(self, cycle: int) -> int:
        return cycle * self.total_steps // self.cycles


ScheduleConfig = Annotated[
    Constant.Config | WarmupCosine.Config | WarmupLinear.Config | Plateau.Config | CyclicCosine.Config,
    Field(discriminator="name"),
]
"""The config of any schedule, discriminated by ``name``."""


def build_schedule(config: ScheduleConfig, total_steps: int) -> Schedule:
    """Builds the schedule that ``config`` describes, for a run of ``total_steps`` steps."""
    match config:
        case Constant.Config():
            return Constant()
        case WarmupCosine.Config():
            return WarmupCosine(config, total_steps)
        case WarmupLinear.Config():
            return WarmupLinear(config, total_steps)
        case Plateau.Config():
            return Plateau(config)
        case CyclicCosine.Config():
            return CyclicCosine(config, total_steps)
