"""The contract of planners: a problem in, a plan out. Attributes of a planner's config say what it can do."""

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
        uses_slow_memory: whether it also places rows in a device's slow memory.
    """

    uses_slow_memory: ClassVar[bool] = False

    @abstractmethod
    def plan(self, problem: Problem) -> Plan:
        """Returns a placement for every table that keeps to ``problem.constraints``.

        Raises:
            NoFeasiblePlan: naming the table that does not fit, and how many bytes are missing. Users see the least
                memory for which a plan is found instead, if there is one.
        """

    @property
    def first_answer(self) -> Planner:
        """A planner that says sooner whether the devices can hold the tables; the planner itself if it is quick."""
        return self


class PlannerSettings(PartConfig):
    """The base config of planners.

    Attributes:
        uses_slow_memory: the same as for :class:`Planner`.
        can_be_trained: whether ``ziggurat plan --train`` trains it.
    """

    uses_slow_memory: ClassVar[bool] = False
    can_be_trained: ClassVar[bool] = False

    @abstractmethod
    def build(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> Planner:
        """Returns the planner.

        Args:
            time_parts: measures shards, for a planner that measures its plans; None if devices cannot be measured here.
            progress: shows the progress of such a planner.

        Raises:
            ConfigError: the learned costs or policy are not where the config says.
        """

    @property
    def label(self) -> str:
        """The planner's name in a comparison of planners."""
        return self.title

    @property
    def needs_learned_costs(self) -> bool:
        """Whether it plans by the cost network, and so only for the kind of device that the network is of."""
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
        """Whether the planner measures plans on this machine while it makes them."""
        return False

    def without_measuring(self) -> Self:
        """Returns the config of the same planner without measurements."""
        return self

    @classmethod
    def variants(cls) -> tuple[PlannerSettings, ...]:
        """Returns the configs that a comparison of all planners includes, with their defaults."""
        return (cls(),)
