"""Chooses the best option for each table by mixed-integer linear programming.

With z_o = 1 where option o is taken, and T the time of the slowest device:

    min T
    Σ_{o of j} z_o = 1                              for each table j
    Σ_o z_o · fast bytes of o on m ≤ FAST           for each device m
    Σ_o z_o · slow bytes of o on m ≤ SLOW           for each device m
    Σ_o z_o · all bytes of o on m  ≤ FAST + SLOW    for each device m
    Σ_o z_o · seconds of o on m    ≤ T              for each device m

An option fixes both the devices of a table and the number of its fast rows, so the model contains no products of two
choices (Sethi et al., RecShard, arXiv 2201.10095, section 4, has such products, linearised). The remaining rows of a
whole table may be in either memory: fast memory only improves the plan, and :mod:`.filling` later decides which of them
fit. They therefore count in the third constraint only.

The model is solved with HiGHS. A millionth of each memory is left free for its tolerance. HiGHS's presolve is disabled:
in version 1.14 it reports choices as optimal that are not (HiGHS issues 3043, 3073 and 3094: integers combined with one
continuous variable), and it did not help with models of 13,056 options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np

from ziggurat.planning.recshard.native_output import native_output_to_stderr

TOLERANCE = 1e-6
"""Share of each memory that is left free: HiGHS may exceed a constraint of 1 by this much."""

INFEASIBLE = 2
"""The status of :func:`scipy.optimize.milp` for an infeasible model."""

_NEEDS = ("fast", "slow", "total")


@dataclass(frozen=True, slots=True)
class Option:
    """A possible placement of a table and its cost on each device; all tuples have the same length.

    Attributes:
        devices: the devices that hold part of the table.
        fast, slow: bytes that it needs of each device's fast memory, and of its slow memory.
        total: bytes that it needs of each device's two memories together.
        seconds: seconds that it adds to a step of each device.
    """

    devices: tuple[int, ...]
    fast: tuple[float, ...]
    slow: tuple[float, ...]
    total: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LinearModel:
    """The options of each table, and the memories of each device in bytes."""

    tables: Sequence[Sequence[Option]]
    devices: int
    fast: float
    slow: float

    @property
    def size(self) -> int:
        """Number of options of all tables."""
        return sum(map(len, self.tables))

    def seconds(self, choice: Sequence[int], spare: float = TOLERANCE) -> float | None:
        """Returns the seconds of the slowest device for a choice of options.

        Args:
            choice: the number of the option of each table.
            spare: share of each memory that must stay free; if less does, the result is None.
        """
        loads = np.zeros((len(_NEEDS) + 1, self.devices))
        for options, number in zip(self.tables, choice, strict=True):
            option = options[number]
            for row, name in enumerate((*_NEEDS, "seconds")):
                np.add.at(loads[row], list(option.devices), getattr(option, name))
        capacities = np.array([self.capacity(name, spare) for name in _NEEDS])
        return float(loads[-1].max()) if (loads[:-1] <= capacities[:, None]).all() else None

    def capacity(self, need: str, spare: float = TOLERANCE) -> float:
        """Returns the bytes of the given kind ("fast", "slow" or "total") that options may take on each device."""
        capacities = {"fast": self.fast, "slow": self.slow, "total": self.fast + self.slow}
        return capacities[need] * (1 - spare)


@dataclass(frozen=True, slots=True)
class Solution:
    """The solver's choice and its quality.

    Attributes:
        choice: the number of each table's option.
        seconds: seconds of the slowest device.
        bound: lower bound on the seconds of any choice.
        proved: whether the choice is proved to be the best, up to the requested gap.
    """

    choice: tuple[int, ...]
    seconds: float
    bound: float
    proved: bool

    @property
    def gap(self) -> float:
        """The relative gap between the seconds and their lower bound."""
        return max(1 - self.bound / self.seconds, 0.0) if self.seconds else 0.0


def solve(model: LinearModel, time_limit_s: float, gap: float = 1e-4) -> Solution | str:
    """Returns the best choice found within the time limit, or the reason why there is none.

    Args:
        model: the linear model, with at least one table, and at least one option for each.
        time_limit_s: seconds that the search may take.
        gap: the relative gap at which a choice counts as the best.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # slow to import and seldom needed
    from scipy.sparse import coo_array

    table_O = np.repeat(np.arange(len(model.tables)), [len(options) for options in model.tables])
    options = [option for each in model.tables for option in each]
    option_E = np.repeat(np.arange(len(options)), [len(option.devices) for option in options])
    device_E = np.array([device for option in options for device in option.devices])
    shape = (model.devices, len(options) + 1)  # the last column is T

    def rows(name: str, unit: float) -> Any:
        values = np.array([value for option in options for value in getattr(option, name)])
        return coo_array((values / unit, (device_E, option_E)), shape=shape)

    unit = max((value for option in options for value in option.seconds), default=0.0) or 1.0
    longest = coo_array(
        (np.ones(model.devices), (np.arange(model.devices), np.full(model.devices, len(options)))), shape=shape
    )
    one_each = coo_array(
        (np.ones(len(options)), (table_O, np.arange(len(options)))), shape=(len(model.tables), shape[1])
    )
    constraints = [
        LinearConstraint(one_each, 1, 1),
        LinearConstraint(rows("seconds", unit) - longest, ub=0),
        *(
            LinearConstraint(rows(name, model.capacity(name) or 1.0), ub=float(model.capacity(name) > 0))
            for name in _NEEDS
        ),
    ]
    objective = np.zeros(shape[1])
    objective[-1] = 1
    with native_output_to_stderr():  # HiGHS prints a line now and then
        found = cast(
            "Any",
            milp(
                objective,
                integrality=1 - objective,
                bounds=cast("Any", Bounds)(0, np.where(objective, np.inf, 1)),
                constraints=constraints,
                options={"time_limit": time_limit_s, "mip_rel_gap": gap, "presolve": False},
            ),
        )
    if found.x is None:
        return "has no solution" if found.status == INFEASIBLE else f"found no solution within {time_limit_s:g} s"
    firsts = np.concatenate([[0], np.cumsum([len(each) for each in model.tables])])
    taken = [int(found.x[first:last].argmax()) for first, last in pairwise(firsts.tolist())]
    seconds = model.seconds(taken, spare=0)
    if seconds is None:
        return "found a solution that exceeds a memory"
    return Solution(tuple(taken), seconds, float(found.mip_dual_bound) * unit, found.status == 0)
