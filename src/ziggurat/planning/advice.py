"""What would make room, found by planning again: devices, memory, columns, a leaner optimizer, a smaller batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ziggurat.core.tables import TableSpec
from ziggurat.planning.constraints import COLUMN_MULTIPLE
from ziggurat.planning.problem import Problem, TableConstraint
from ziggurat.planning.quantities import written_bytes

MOST_TIMES = 32
"""As many devices as there are, at most."""

_STEPS = 900 * 16 + 16
"""Numbers of :func:`_three_digits` up to an exbibyte."""

_STRIDE = 300
"""Of them at once while looking for enough: from any number to 1.4 to 4 times it."""

Fits = Callable[[Problem], bool]


def advice(problem: Problem, memory: int | None, fits: Fits, others: Iterable[str] = ()) -> str:
    """The changes that would each suffice by itself, as one sentence.

    Args:
        problem: of which no plan could be made.
        memory: of each device, with which one can; None where there is none.
        fits: whether one can be made of another problem.
        others: changes that suffice as well, found by the caller.
    """
    more = f"{written_bytes(memory)} of memory a device" if memory is not None else None
    ways = [way for way in (_devices(problem, fits), more, *others) if way]
    table = max(problem.tables, key=lambda table: problem.whole(table).kept_bytes, default=None)
    if table is not None:
        ways += [way for way in (_dim(problem, table, fits), _optimizer(problem, table, fits)) if way]
    ways += list(_wishes(problem, fits))
    half = max(problem.batch_size // 2, 1)
    if fits(problem.but(batch_size=half)):
        ways.append(f"training.batch_size: {half} (now {problem.batch_size})")
    return "any of these makes room: " + "; ".join(ways) if ways else "give fewer rows or columns to the largest tables"


def least_memory(problem: Problem, fits: Fits) -> int | None:
    """The least bytes a device of which a plan can be made, among the numbers of three digits and noughts; whatever
    memory the devices have now, it is the same one. None where an exbibyte would not do."""
    return _least(problem.topology.memory_bytes, lambda memory: fits(with_memory(problem, memory)))


def least_slow_memory(problem: Problem, fits: Fits) -> int | None:
    """As :func:`least_memory`, of slow memory, for planners that use it."""
    topology = problem.topology
    bandwidth = topology.slow_bandwidth or topology.lookup_bandwidth

    def enough(memory: int) -> bool:
        return fits(problem.but(topology=replace(topology, slow_memory_bytes=memory, slow_bandwidth=bandwidth)))

    return _least(topology.slow_memory_bytes, enough)


def _least(now: int, suffices: Callable[[int], bool]) -> int | None:
    """The least number of three digits and noughts that suffices, looked for around ``now``."""

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
    """The problem on devices of so much memory."""
    return problem.but(topology=replace(problem.topology, memory_bytes=memory_bytes))


def _three_digits(step: int) -> int:
    """100, 101, …, 999, 1000, 1010, …, 9990, 10000, 10100, …"""
    return (100 + step % 900) * 10 ** (step // 900)


def _devices(problem: Problem, fits: Fits) -> str | None:
    """The fewest times as many devices, in powers of two. All ranks of the world or of a host are then others."""
    topology, factor = problem.topology, 2
    constraints = {
        name: constraint
        if constraint.sharding in ("table_wise", "column_wise")
        else TableConstraint(constraint.sharding)
        for name, constraint in problem.constraints.items()
    }
    while factor <= MOST_TIMES:
        if topology.hosts == 1:
            more = replace(topology, devices=topology.devices * factor)
            said = f"{more.devices} devices with {written_bytes(topology.memory_bytes)} each"
        else:
            more = replace(topology, hosts=topology.hosts * factor)
            said = f"{more.hosts} hosts of {topology.devices} devices"
        if fits(problem.but(topology=more, constraints=constraints)):
            return said
        factor *= 2
    return None


def _dim(problem: Problem, table: TableSpec, fits: Fits) -> str | None:
    """The largest half, quarter, … of the largest table's columns."""
    unit, dim = COLUMN_MULTIPLE * table.vectors, table.dim // 2
    while dim >= unit:
        dim -= dim % unit
        if fits(_with(problem, replace(table, dim=dim))):
            return f"embeddings.tables.{table.name}.dim: {dim // table.vectors} (now {table.vector_dim})"
        dim //= 2
    return None


def _optimizer(problem: Problem, table: TableSpec, fits: Fits) -> str | None:
    """Row-wise Adagrad for the largest table, where its optimizer keeps more."""
    if table.optimizer["name"] not in ("adam", "adagrad"):
        return None
    leaner = replace(table, optimizer={"name": "rowwise_adagrad", "lr": 0.05, "eps": 1e-8, "weight_decay": 0.0})
    if fits(_with(problem, leaner)):
        return f"embeddings.tables.{table.name}.optimizer: {{name: rowwise_adagrad}} (now {table.optimizer['name']})"
    return None


def _wishes(problem: Problem, fits: Fits) -> Iterator[str]:
    """Leaving out what the user asked of one table."""
    for name in problem.constraints:
        if fits(
            problem.but(
                constraints={other: constraint for other, constraint in problem.constraints.items() if other != name}
            )
        ):
            yield f"leave out planning.tables.{name}"


def _with(problem: Problem, table: TableSpec) -> Problem:
    """The problem with this table in place of the one of its name."""
    return problem.but(tables=tuple(table if other.name == table.name else other for other in problem.tables))
