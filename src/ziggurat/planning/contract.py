"""The contract of planners: a problem in, a plan out; what a planner can do is said by attributes of its config."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

from ziggurat.core.parts import PartConfig
from ziggurat.core.plan import Plan, Shard
from ziggurat.core.progress import Progress
from ziggurat.core.tables import TableSpec
from ziggurat.planning.problem import Problem

Parts = tuple[tuple[TableSpec, Shard], ...]
"""The shards of one device, each with its table."""
TimeParts = Callable[[Problem, Parts], float]
"""Measures the seconds that a device's kernels take for a step, forward and backward."""


class Planner(ABC):
    """Places tables on devices.

    A planner is a pure function: the same problem gives the same plan, on every rank and machine. The exceptions are
    planners that measure, and those that a time limit may stop. Costs and capacity may be taken from the problem
    (:meth:`Problem.cost`, :attr:`Problem.capacity`) or from a model of the planner's own. The plan is checked, and its
    memory judged, by :func:`~ziggurat.planning.planner.plan_tables`.

    Attributes:
        uses_slow_memory: whether it places rows in a device's slow memory, too.
    """

    uses_slow_memory: ClassVar[bool] = False

    @abstractmethod
    def plan(self, problem: Problem) -> Plan:
        """Returns a placement for every table that keeps to ``problem.constraints``.

        Raises:
            NoFeasiblePlan: naming the table that found no room, and how many bytes are missing. Users are told of the
                least memory that a plan is found for instead, where there is one.
        """

    @property
    def first_answer(self) -> Planner:
        """A planner that tells sooner whether the devices have room for the tables; itself where it is quick."""
        return self


class PlannerSettings(PartConfig):
    """The base config of planners.

    Attributes:
        uses_slow_memory: as of :class:`Planner`.
        can_be_trained: whether ``ziggurat plan --train`` trains it.
    """

    uses_slow_memory: ClassVar[bool] = False
    can_be_trained: ClassVar[bool] = False

    @abstractmethod
    def build(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> Planner:
        """Returns the planner.

        Args:
            time_parts: for a planner that measures its plans; None where the devices cannot be measured here.
            progress: where such a planner shows it.

        Raises:
            ConfigError: what it has learned is not where the config says.
        """

    @property
    def label(self) -> str:
        """What a comparison of planners calls it."""
        return self.title

    @property
    def needs_learned_costs(self) -> bool:
        """Whether it plans by the cost network, and so only for devices of the kind that this was measured on."""
        return False

    @property
    def learned_folder(self) -> Path | None:
        """The folder of learned costs that the config names, if any."""
        return None

    def with_learned(self, folder: Path | None) -> Self:
        """Returns the config with another folder of learned costs; itself for planners that have none."""
        del folder
        return self

    @property
    def measures_plans(self) -> bool:
        """Whether plans are run on this machine while they are made."""
        return False

    def without_measuring(self) -> Self:
        """Returns the config of the same planner that measures no plans."""
        return self

    @classmethod
    def variants(cls) -> tuple[PlannerSettings, ...]:
        """Returns the configs that a comparison of all planners includes, with their defaults."""
        return (cls(),)
