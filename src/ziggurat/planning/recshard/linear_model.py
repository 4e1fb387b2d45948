"""The best choice of one option for each table, by mixed-integer linear programming.

With z_o = 1 where option o is taken, and T the time of the slowest device:

    min T
    Σ_{o of j} z_o = 1                              for each table j
    Σ_o z_o · fast bytes of o on m ≤ FAST           for each device m
    Σ_o z_o · slow bytes of o on m ≤ SLOW           for each device m
    Σ_o z_o · all bytes of o on m  ≤ FAST + SLOW    for each device m
    Σ_o z_o · seconds of o on m    ≤ T              for each device m

An option says both where a table lies and how many of its rows are fast, so that nothing is a product of two choices
(Sethi et al., RecShard, arXiv 2201.10095, section 4, has such products, linearised). Of a whole table, rows beyond
those that the option has fast may lie in either memory – in fast it only gains, and what has room there is worked out
later – so they count in the third constraint alone. Solved with HiGHS, to whose tolerance a millionth of each memory
is left. Its presolve is left out: in version 1.14 it calls choices optimal that are not (HiGHS issues 3043, 3073 and
3094: integers beside one continuous variable), and models of 13,056 options came no further with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np

TOLERANCE = 1e-6
"""Share of each memory that is left free: HiGHS may exceed a constraint of 1 by that."""

INFEASIBLE = 2
"""Status of :func:`scipy.optimize.milp`."""

_NEEDS = ("fast", "slow", "every")


@dataclass(frozen=True, slots=True)
class Option:
    """A way to place a table, and what it takes of devices; all tuples are of the same length.

    Attributes:
        devices: that hold some of it.
        fast, slow: bytes that each of them then needs of its fast, and of its slow memory.
        every: bytes that each of them needs of its memories together.
        seconds: of a step that each of them then needs.
    """

    devices: tuple[int, ...]
    fast: tuple[float, ...]
    slow: tuple[float, ...]
    every: tuple[float, ...]
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
        """Options in all."""
        return sum(map(len, self.tables))

    def seconds(self, choice: Sequence[int], spare: float = TOLERANCE) -> float | None:
        """Of the slowest device, where each table takes that option; None where that leaves less of a memory free."""
        loads = np.zeros((len(_NEEDS) + 1, self.devices))
        for options, number in zip(self.tables, choice, strict=True):
            option = options[number]
            for row, name in enumerate((*_NEEDS, "seconds")):
                np.add.at(loads[row], list(option.devices), getattr(option, name))
        room = np.array([self.room(name, spare) for name in _NEEDS])
        return float(loads[-1].max()) if (loads[:-1] <= room[:, None]).all() else None

    def room(self, need: str, spare: float = TOLERANCE) -> float:
        """Bytes of each device that options may take of that kind."""
        rooms = {"fast": self.fast, "slow": self.slow, "every": self.fast + self.slow}
        return rooms[need] * (1 - spare)


@dataclass(frozen=True, slots=True)
class Solution:
    """What was found, and how good it is.

    Attributes:
        choice: of each table, the number of its option.
        seconds: of the slowest device.
        bound: no choice is below these seconds.
        proved: whether the choice is the best, up to the gap that was asked for.
    """

    choice: tuple[int, ...]
    seconds: float
    bound: float
    proved: bool

    @property
    def gap(self) -> float:
        """The share of the seconds that is not yet known to be needed."""
        return max(1 - self.bound / self.seconds, 0.0) if self.seconds else 0.0


def solve(model: LinearModel, time_limit_s: float, gap: float = 1e-4) -> Solution | str:
    """The best choice found within the time, or why there is none.

    Args:
        model: at least one table, at least one option each.
        time_limit_s: for the search.
        gap: at which a choice counts as the best.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp  # as slow to import as much else, and seldom needed
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
        *(LinearConstraint(rows(name, model.room(name) or 1.0), ub=float(model.room(name) > 0)) for name in _NEEDS),
    ]
    objective = np.zeros(shape[1])
    objective[-1] = 1
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
        return "has none" if found.status == INFEASIBLE else f"found none within {time_limit_s:g} s"
    firsts = np.concatenate([[0], np.cumsum([len(each) for each in model.tables])])
    taken = [int(found.x[first:last].argmax()) for first, last in pairwise(firsts.tolist())]
    seconds = model.seconds(taken, spare=0)
    if seconds is None:
        return "found one that takes more than a memory"
    return Solution(tuple(taken), seconds, float(found.mip_dual_bound) * unit, found.status == 0)
