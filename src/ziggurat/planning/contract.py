"""The contract of planners: a problem in, a plan out. Attributes of a planner's config say what it can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

from ziggurat.core.errors import ConfigError, InvalidSection
from ziggurat.core.outside.failures import called
from ziggurat.core.parts import PartConfig
from ziggurat.core.plan import Plan, Shard
from ziggurat.core.progress import Progress
from ziggurat.core.tables import TableSpec
from ziggurat.planning.constraints import check_plan
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
    def feasibility_planner(self) -> Planner:
        """A planner that says sooner whether the devices can hold the tables; the planner itself if it is quick."""
        return self


class OutsidePlanner(Planner):
    """A planner from outside the package, whose plans are checked before they are used.

    Args:
        planner: the planner.
        title: its import reference.
    """

    def __init__(self, planner: Planner, title: str) -> None:
        self._planner, self._title = planner, title
        self.uses_slow_memory = planner.uses_slow_memory  # pyright: ignore[reportAttributeAccessIssue]

    def plan(self, problem: Problem) -> Plan:
        """Returns the planner's plan.

        Raises:
            NoFeasiblePlan: as the planner raises it.
            ConfigError: the planner fails, returns no plan, or one that is not possible or breaks a constraint.
        """
        planner: Any = self._planner  # its author may return anything
        plan = called(self._title, "plan", lambda: planner.plan(problem), defined=type(planner).plan)
        if not isinstance(plan, Plan):
            received = "None" if plan is None else f"a {type(plan).__qualname__}"
            raise ConfigError(f"{self._title}: plan returned {received}, expected a ziggurat.Plan", _RETURN_A_PLAN)
        try:
            check_plan(plan, problem.tables, problem.topology)
        except InvalidSection as error:
            fault = f"{error.key}: {error.fault}" if error.key else error.fault
            raise ConfigError(f"{self._title}: plan returned an impossible plan: {fault}", _RETURN_A_PLAN) from None
        for name, constraint in problem.constraints.items():
            placement = plan.placements[name]
            if placement.sharding != constraint.sharding or constraint.ranks not in (None, placement.ranks):
                raise ConfigError(
                    f"{self._title}: plan places table {name!r} as {placement}, but the config asks for {constraint}",
                    "keep to problem.constraints, which holds what planning.tables asks for",
                )
        return plan

    @property
    def feasibility_planner(self) -> Planner:
        quick = self._planner.feasibility_planner
        return self if quick is self._planner else OutsidePlanner(quick, self._title)


_RETURN_A_PLAN = (
    "return Plan(problem.topology.world_size, placements, problem.topology.devices) with a Placement for each table of "
    "problem.tables"
)


class PlannerSettings(PartConfig):
    """The base config of planners.

    Attributes:
        uses_slow_memory: the same as for :class:`Planner`.
        uses_row_tiers: whether it may place rows of a table in tiers, which the cost network does not know.
        can_be_trained: whether ``ziggurat plan --train`` trains it.
    """

    uses_slow_memory: ClassVar[bool] = False
    uses_row_tiers: ClassVar[bool] = False
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

    def build_checked(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> Planner:
        """Returns :meth:`build`'s planner; the plans of one from outside the package are checked.

        Raises:
            ConfigError: the learned costs or policy are not where the config says, or ``build`` fails or returns
                something else.
        """
        planner = self.checked_part(lambda: self.build(time_parts, progress), Planner)
        return planner if self.reference is None else OutsidePlanner(planner, self.title)

    @property
    def label(self) -> str:
        """The planner's name in a comparison of planners."""
        return self.title

    @property
    def named_tables(self) -> tuple[str, ...]:
        """The tables that the config names below the key ``tables``."""
        return ()

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
