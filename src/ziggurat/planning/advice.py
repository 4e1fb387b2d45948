"""What would make room, found by planning again: devices, memory, columns, a leaner optimizer, a smaller batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ziggurat.core.tables import TableSpec
from ziggurat.planning.constraints import COLUMN_MULTIPLE
from ziggurat.planning.problem import Problem, Wish
from ziggurat.planning.quantities import written_bytes

MOST_TIMES = 32
"""As many devices as there are, at most."""

Fits = Callable[[Problem], bool]


def advice(problem: Problem, fits: Fits) -> str:
    """The changes that would each suffice by itself, as one sentence.

    Args:
        problem: of which no plan could be made.
        fits: whether one can be made of another problem.
    """
    ways = [way for way in (_devices(problem, fits), _memory(problem, fits)) if way]
    table = max(problem.tables, key=lambda table: problem.whole(table).kept_bytes, default=None)
    if table is not None:
        ways += [way for way in (_dim(problem, table, fits), _optimizer(problem, table, fits)) if way]
    ways += list(_wishes(problem, fits))
    half = max(problem.batch_size // 2, 1)
    if fits(problem.but(batch_size=half)):
        ways.append(f"training.batch_size: {half} (now {problem.batch_size})")
    return "any of these makes room: " + "; ".join(ways) if ways else "give fewer rows or columns to the largest tables"


def _devices(problem: Problem, fits: Fits) -> str | None:
    """The fewest times as many devices, in powers of two. All ranks of the world or of a host are then others."""
    topology, factor = problem.topology, 2
    wishes = {
        name: wish if wish.sharding in ("table_wise", "column_wise") else Wish(wish.sharding)
        for name, wish in problem.wishes.items()
    }
    while factor <= MOST_TIMES:
        if topology.hosts == 1:
            more = replace(topology, devices=topology.devices * factor)
            said = f"{more.devices} devices with {written_bytes(topology.memory_bytes)} each"
        else:
            more = replace(topology, hosts=topology.hosts * factor)
            said = f"{more.hosts} hosts of {topology.devices} devices"
        if fits(problem.but(topology=more, wishes=wishes)):
            return said
        factor *= 2
    return None


def _memory(problem: Problem, fits: Fits) -> str | None:
    """The least memory a device, to a sixteenth of what is missing."""
    low = problem.topology.memory_bytes
    high = 2 * low

    def enough(memory: int) -> bool:
        return fits(problem.but(topology=replace(problem.topology, memory_bytes=memory)))

    while not enough(high):
        low, high = high, 2 * high
        if high > 2**60:
            return None
    for _ in range(5):
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return f"{written_bytes(1.005 * high)} of memory a device"


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
    for name in problem.wishes:
        if fits(problem.but(wishes={other: wish for other, wish in problem.wishes.items() if other != name})):
            yield f"leave out planning.tables.{name}"


def _with(problem: Problem, table: TableSpec) -> Problem:
    """The problem with this table in place of the one of its name."""
    return problem.but(tables=tuple(table if other.name == table.name else other for other in problem.tables))
