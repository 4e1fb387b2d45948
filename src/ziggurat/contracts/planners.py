"""Checks a planner from outside the package by a small problem."""

from __future__ import annotations

import contextlib

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.contract import PlannerSettings
from ziggurat.planning.problem import Problem

_ROW_OPTIMIZER = {"name": "sgd", "lr": 0.1}


def check_planner(config: PlannerSettings) -> None:
    """Checks, if a planner is from outside the package, that it plans a few small tables for one device and for four.

    Args:
        config: the planner's config.

    Raises:
        ConfigError: it cannot be built, fails, or returns an impossible plan; the message names it.
    """
    if config.reference is None or config.needs_learned_costs:
        return
    planner = config.without_measuring().build_checked()
    for devices in (1, 4):
        with contextlib.suppress(NoFeasiblePlan):
            planner.plan(small_problem(devices))


def small_problem(devices: int) -> Problem:
    """Returns three tables to place on so many devices of one host, with ample memory."""
    tables = tuple(
        TableSpec(name, rows, 16, (name,), "sum", _ROW_OPTIMIZER, 0.01)
        for name, rows in (("users", 5000), ("items", 1000), ("days", 7))
    )
    topology = Topology(1, devices, "a small example", "cpu", 10**9, 1e10, 1e10, 1e9, (), 0, 0.0)
    return Problem(tables, topology, None, 64)
