"""Finds changes that would make a plan feasible, by planning again: more devices or memory, fewer columns, an optimizer
with less state, a smaller batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ziggurat.core.tables import TableSpec
from ziggurat.planning.constraints import COLUMN_MULTIPLE
from ziggurat.planning.problem import Problem, TableConstraint
from ziggurat.planning.quantities import format_bytes

MAX_DEVICE_FACTOR = 32
"""The largest factor by which the number of devices is multiplied."""

_STEPS = 900 * 16 + 16
"""Number of steps of :func:`_three_digits` up to an exbibyte."""

_STRIDE = 300
"""Steps taken at once while searching upwards: 300 steps multiply a number by 1.4 to 4."""

Fits = Callable[[Problem], bool]
"""Returns whether a plan can be made for a problem."""


def advice(problem: Problem, memory: int | None, fits: Fits, others: Iterable[str] = ()) -> str:
    """Returns one sentence that lists changes, each of which makes a plan feasible by itself.

    Args:
        problem: the problem for which no plan could be made.
        memory: bytes of memory a device that would suffice; None if no amount does.
        fits: returns whether a plan can be made for a changed problem.
        others: further sufficient changes, found by the caller.
    """
    more = f"{format_bytes(memory)} of memory a device" if memory is not None else None
    changes = [change for change in (_devices(problem, fits), more, *others) if change]
    table = max(problem.tables, key=lambda table: problem.whole(table).kept_bytes, default=None)
    if table is not None:
        changes += [change for change in (_dim(problem, table, fits), _optimizer(problem, table, fits)) if change]
    changes += list(_without_constraint(problem, fits))
    half = max(problem.batch_size // 2, 1)
    if fits(problem.but(batch_size=half)):
        changes.append(f"training.batch_size: {half} (now {problem.batch_size})")
    if not changes:
        return "give fewer rows or columns to the largest tables"
    return "any of these makes room: " + "; ".join(changes)


def least_memory(problem: Problem, fits: Fits) -> int | None:
    """Returns the least bytes of memory a device for which a plan can be made, or None if an exbibyte does not suffice.

    Only numbers of three digits followed by zeros are tried, so the result does not depend on the memory that the
    devices have now.
    """
    return _least(problem.topology.memory_bytes, lambda memory: fits(with_memory(problem, memory)))


def least_slow_memory(problem: Problem, fits: Fits) -> int | None:
    """Returns the same as :func:`least_memory` for slow memory, for planners that use it."""
    topology = problem.topology
    bandwidth = topology.slow_bandwidth or topology.lookup_bandwidth

    def enough(memory: int) -> bool:
        return fits(problem.but(topology=replace(topology, slow_memory_bytes=memory, slow_bandwidth=bandwidth)))

    return _least(topology.slow_memory_bytes, enough)


def _least(now: int, suffices: Callable[[int], bool]) -> int | None:
    """Returns the least number of three digits followed by zeros that suffices; the search starts at ``now``."""

    def enough(step: int) -> bool:
        return suffices(_three_digits(step))

    low = bisect_right(range(_STEPS), now, key=_three_digits) - 1
    low, high = max(low, -1), max(low, 0) + _STRIDE
    while not enough(high):
        low, high = high, high + _STRIDE
        if high >= _STEPS:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return _three_digits(high)


def with_memory(problem: Problem, memory_bytes: int) -> Problem:
    """Returns the problem with this much memory on each device."""
    return problem.but(topology=replace(problem.topology, memory_bytes=memory_bytes))


def _three_digits(step: int) -> int:
    """Returns the step-th number of the sequence 100, 101, …, 999, 1000, 1010, …, 9990, 10000, 10100, …"""
    return (100 + step % 900) * 10 ** (step // 900)


def _devices(problem: Problem, fits: Fits) -> str | None:
    """Returns the smallest power of two times as many devices that suffices.

    Constraints that name all ranks of the world or of a host lose their ranks, since these are then different ones.
    Where tables lie on the hosts of their towers nothing is said: another number of hosts needs other towers.
    """
    if any(constraint.by_tower for constraint in problem.constraints.values()):
        return None
    topology, factor = problem.topology, 2
    constraints = {
        name: constraint
        if constraint.sharding in ("table_wise", "column_wise")
        else TableConstraint(constraint.sharding)
        for name, constraint in problem.constraints.items()
    }
    while factor <= MAX_DEVICE_FACTOR:
        if topology.hosts == 1:
            more = replace(topology, devices=topology.devices * factor)
            change = f"{more.devices} devices with {format_bytes(topology.memory_bytes)} each"
        else:
            more = replace(topology, hosts=topology.hosts * factor)
            change = f"{more.hosts} hosts of {topology.devices} devices"
        if fits(problem.but(topology=more, constraints=constraints)):
            return change
        factor *= 2
    return None


def _dim(problem: Problem, table: TableSpec, fits: Fits) -> str | None:
    """Returns the largest half, quarter, … of the table's columns that suffices."""
    unit, dim = COLUMN_MULTIPLE * table.vectors, table.dim // 2
    while dim >= unit:
        dim -= dim % unit
        if fits(_with(problem, replace(table, dim=dim))):
            return f"embeddings.tables.{table.name}.dim: {dim // table.vectors} (now {table.vector_dim})"
        dim //= 2
    return None


def _optimizer(problem: Problem, table: TableSpec, fits: Fits) -> str | None:
    """Returns the change to row-wise Adagrad for the table, if its optimizer keeps more state and that suffices."""
    if table.optimizer["name"] not in ("adam", "adagrad"):
        return None
    leaner = replace(table, optimizer={"name": "rowwise_adagrad", "lr": 0.05, "eps": 1e-8, "weight_decay": 0.0})
    if fits(_with(problem, leaner)):
        return f"embeddings.tables.{table.name}.optimizer: {{name: rowwise_adagrad}} (now {table.optimizer['name']})"
    return None


def _without_constraint(problem: Problem, fits: Fits) -> Iterator[str]:
    """Yields each constraint of the user whose removal suffices."""
    for name in (name for name, each in problem.constraints.items() if not each.by_tower):
        if fits(
            problem.but(
                constraints={other: constraint for other, constraint in problem.constraints.items() if other != name}
            )
        ):
            yield f"leave out planning.tables.{name}"


def _with(problem: Problem, table: TableSpec) -> Problem:
    """Returns the problem with this table in place of the one with the same name."""
    return problem.but(tables=tuple(table if other.name == table.name else other for other in problem.tables))
