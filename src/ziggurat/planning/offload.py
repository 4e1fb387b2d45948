"""How many rows of each table memory gets room for, where it has none for all of them.

The rows that are looked up most for what they take stay in memory: all tables' rows compete by look-ups a byte, and the
least of those that have room is the level to which memory is filled. A table all of whose rows are above it needs no
slots. That a cache finds those rows by itself, and follows where training goes, is its business
(:mod:`ziggurat.storage.row_cache`); here is decided how large it is.

Source: Ye et al. 2023, "MTrainS", arXiv 2305.01515, section 4: tables of high bandwidth demand a byte go up. Deviation:
rows compete, not tables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator

from ziggurat.core.config import Config
from ziggurat.core.errors import ConfigError, NoFeasiblePlan
from ziggurat.core.plan import Plan
from ziggurat.core.tables import TableSpec
from ziggurat.planning.cost import FLOAT, row_bytes, state_bytes
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import Bandwidth, Bytes, written_bytes
from ziggurat.planning.usage import Usage

BEYOND = "beyond memory"
"""How notes of plans begin that are of this."""
SLOT_BYTES, ROW_BYTES = 17, 9
"""Beside the row itself, of a slot; and of any row, where memory has room for some: which slot it is in, how often it
was used, and where it is on disk."""
WINDOW = 6
"""Batches whose rows should have room together: one that is trained, some on their way, and the next one's."""
MARGIN = 1.2
"""Times the rows that these are expected to have."""
_LEVELS = 60
_ADAM = "is trained by adam"


@dataclass(frozen=True)
class Need:
    """Examples whose rows should have room at once.

    Attributes:
        examples: how many.
        told: what they are, for messages: "6 training batches".
        key: of the config that makes them fewer.
        most: table -> ids that they look up at most, where somebody has counted; others as many as is usual.
    """

    examples: int
    told: str
    key: str
    most: Mapping[str, int] = field(default_factory=dict[str, int])

    def ids(self, table: str, usage: Usage) -> float:
        """That they look up in a table."""
        return max(self.examples * usage.ids_per_row, self.most.get(table, 0))


def needs_of(training: int, evaluation: int = 0) -> list[Need]:
    """Of so many examples of a training batch and of an evaluation's, all ranks' together."""
    needs = [Need(WINDOW * training, f"{WINDOW} training batches", "training.batch_size")]
    if evaluation:
        told = f"an evaluation batch of {evaluation:,} examples"
        needs.append(Need(evaluation, told, "evaluation.batch_size"))
    return needs


def _named(folder: Path | None) -> Path | None:
    if folder == Path():
        raise ValueError("names no folder; leave it out for the run's own")
    return folder


class BeyondMemoryConfig(Config):
    """Tables larger than memory: rows that it has no room for lie on a disk and come before they are looked up."""

    memory: Bytes
    """For rows of tables and their optimizer's states, of each rank: bytes, or as in 8GB."""
    folder: Annotated[Path | None, AfterValidator(_named)] = None
    """Where the other rows lie while training, best on a disk of its own; default: the run's folder. Nothing is kept
    there: checkpoints have all."""
    bandwidth: Bandwidth | None = None
    """At which rows of that folder move, for planners that tell hot rows from cold (``recshard``) where several ranks
    train: bytes a second, or as in 60MB/s; default: measured when a plan is made."""


@dataclass(frozen=True)
class _Shard:
    """A table's largest shard.

    Attributes:
        table: of it.
        rows: here.
        row_bytes: weights and states.
        needed: slots for each of the needs.
        lookups_N: of rows a step, falling, in groups of equals.
        ends_N: rows up to each group's end.
    """

    table: TableSpec
    rows: int
    row_bytes: float
    needed: tuple[int, ...]
    lookups_N: npt.NDArray[np.float64]
    ends_N: npt.NDArray[np.int64]

    @property
    def least(self) -> int:
        """Slots that it needs."""
        return max(self.needed)

    @property
    def whole(self) -> float:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    def taken(self, slots: int) -> float:
        """Bytes of so many slots; all rows need none."""
        return self.whole if slots >= self.rows else slots * (self.row_bytes + SLOT_BYTES) + self.rows * ROW_BYTES

    def share(self, slots: int) -> float:
        """Of its look-ups, those of the rows that are looked up most, as many as there are slots."""
        ends_N = np.minimum(self.ends_N, slots)
        times_N = np.diff(ends_N, prepend=0)
        return float(times_N @ self.lookups_N / (np.diff(self.ends_N, prepend=0) @ self.lookups_N))

    def missed(self, slots: int) -> float:
        """Distinct rows a step that are expected to be missing, if those that are looked up most have the slots."""
        times_N = np.diff(np.maximum(self.ends_N, slots), prepend=slots)
        return float(times_N @ -np.expm1(-self.lookups_N))

    def above(self, level: float) -> int:
        """Slots for the rows that are looked up more often than ``level`` times a byte and step."""
        group = int(np.searchsorted(-self.lookups_N / self.row_bytes, -level, side="left"))
        slots = max(self.least, int(self.ends_N[group - 1]) if group else 0)
        return self.rows if self.taken(slots) >= self.whole else slots


def with_slots(
    plan: Plan,
    tables: Sequence[TableSpec],
    usages: Mapping[str, Usage],
    examples: int,
    needs: Sequence[Need],
    memory: float,
) -> Plan:
    """``plan`` with slots for those tables that memory has no room for, and without any where there is room for all.

    Args:
        plan: who holds what. Where it tells fast rows from slow, that has done its part in choosing ranks: which rows
            memory has is the slots' business.
        tables: placed by it.
        usages: how they are looked up.
        examples: of a training step, all ranks' together.
        needs: what should have room at once; a need at least.
        memory: bytes of each rank.

    Raises:
        ConfigError: a table that needs slots cannot have any.
        NoFeasiblePlan: the least that a step needs has no room.
    """
    plan = replace(plan, placements={name: replace(each, fast_rows=None) for name, each in plan.placements.items()})
    shards = {table.name: _shard(plan, table, usages[table.name], examples, needs) for table in tables}
    ranks: dict[int, list[_Shard]] = {}
    for table in tables:
        for rank in {shard.rank for shard in plan.shards(table)}:
            ranks.setdefault(rank, []).append(shards[table.name])
    slots: dict[str, int] = {}
    for rank, held in ranks.items():
        for name, count in _filled(rank, held, plan, needs, memory).items():
            slots[name] = min(slots.get(name, count), count)
    placements = {name: replace(each, slots=slots.get(name)) for name, each in plan.placements.items()}
    missed = max((sum(s.missed(slots.get(s.table.name, s.rows)) for s in held) for held in ranks.values()), default=0)
    told = tuple(
        f"{BEYOND}: of table {name!r}, {count:,} of {shards[name].rows:,} rows{_each(plan, name)} have room, "
        f"{100 * shards[name].share(count):.0f} % of its look-ups"
        for name, count in slots.items()
    )
    if told:
        told += (f"{BEYOND}: some {missed:,.0f} rows a step are expected to be missing, on the rank that lacks most",)
    return replace(plan, placements=placements, notes=(*without_slots(plan).notes, *told))


def beside_buffers(problem: Problem) -> Problem:
    """``problem``, whose fast memory is for rows alone: what a step keeps beside them, and the reserve, have their own.

    A device's buffers are taken to be as large as if it held every table.
    """
    topology = problem.topology
    buffers = problem.client_bytes + sum(problem.whole(table).buffer_bytes for table in problem.tables)
    memory = math.ceil((topology.memory_bytes + buffers) / (1 - problem.reserve))
    return problem.but(topology=replace(topology, memory_bytes=memory))


def moved_bytes(tables: Sequence[TableSpec]) -> float:
    """Of a row that is looked up once in a step, what costs of a memory count: it is read for its look-up, and read and
    written by the optimizer. The mean of all rows."""
    rows = sum(table.rows for table in tables)
    return sum(table.rows * (FLOAT * table.dim + 2 * row_bytes(table, table.dim)) for table in tables) / max(rows, 1)


def without_slots(plan: Plan) -> Plan:
    """``plan`` as it was before :func:`with_slots`."""
    placements = {name: replace(each, slots=None) for name, each in plan.placements.items()}
    return replace(plan, placements=placements, notes=tuple(n for n in plan.notes if not n.startswith(BEYOND)))


def _filled(rank: int, held: Sequence[_Shard], plan: Plan, needs: Sequence[Need], memory: float) -> dict[str, int]:
    """Table -> slots, of those that do not have room for all rows on this rank."""
    if sum(shard.whole for shard in held) <= memory:
        return {}
    fixed = [shard for shard in held if _why_not(plan, shard.table)]
    able = [shard for shard in held if not _why_not(plan, shard.table)]
    room = memory - sum(shard.whole for shard in fixed)
    least = sum(shard.taken(shard.least) for shard in able)
    if room < least:
        if fixed and memory >= least:
            largest = max(fixed, key=lambda shard: shard.whole)
            raise ConfigError(
                f"planning.beyond_memory: rank {rank} has {written_bytes(memory)} for rows, and table "
                f"{largest.table.name!r}, with {written_bytes(largest.whole)} there, {_why_not(plan, largest.table)}: "
                "all of its rows need memory",
                f"{_other_way(plan, largest.table)}, or give at least {_enough(least + memory - room)}",
            )
        by_need = [sum(shard.taken(shard.needed[number]) for shard in able) for number in range(len(needs))]
        binding = needs[max(range(len(needs)), key=lambda number: by_need[number])]
        raise NoFeasiblePlan(
            f"planning.beyond_memory.memory: rank {rank} has {written_bytes(memory)} for rows, and those of "
            f"{binding.told}, which should be there together, need {written_bytes(least + memory - room)}",
            f"give at least {_enough(least + memory - room)}, or use a smaller {binding.key}",
        )
    low, high = 0.0, max(float(shard.lookups_N[0]) / shard.row_bytes for shard in able) + 1.0
    for _ in range(_LEVELS):
        level = (low + high) / 2
        if sum(shard.taken(shard.above(level)) for shard in able) <= room:
            high = level
        else:
            low = level
    slots = {shard.table.name: shard.above(high) for shard in able}
    rest = room - sum(shard.taken(slots[shard.table.name]) for shard in able)
    for shard in sorted(able, key=lambda shard: -_next(shard, slots[shard.table.name])):
        have = slots[shard.table.name]
        if have < shard.rows:
            more = min(shard.rows - 1 - have, int(rest / (shard.row_bytes + SLOT_BYTES)))
            slots[shard.table.name] = have + max(0, more)
            rest -= max(0, more) * (shard.row_bytes + SLOT_BYTES)
    return {shard.table.name: slots[shard.table.name] for shard in able if slots[shard.table.name] < shard.rows}


def _each(plan: Plan, name: str) -> str:
    return " of each shard" if plan.row_parts(name) > 1 else ""


def _next(shard: _Shard, slots: int) -> float:
    """Look-ups a byte of the first row that has no slot."""
    group = min(int(np.searchsorted(shard.ends_N, slots, side="right")), len(shard.ends_N) - 1)
    return float(shard.lookups_N[group]) / shard.row_bytes


def _shard(plan: Plan, table: TableSpec, usage: Usage, examples: int, needs: Sequence[Need]) -> _Shard:
    parts = plan.row_parts(table.name)
    held = max(plan.shards(table), key=lambda shard: shard.rows.size)
    rows, columns = held.rows.size, held.columns.size
    row_bytes = FLOAT * columns + state_bytes(table.optimizer, rows, columns) / rows
    ids = usage.ids_per_row * examples / parts
    if usage.accesses is None:
        lookups, times = np.array([ids / rows]), np.array([rows])
    else:
        counts, numbers = np.unique(usage.accesses, return_counts=True)
        lookups = counts[::-1] * (usage.ids_per_row * examples / usage.accesses.sum())
        times = -(-numbers[::-1] // parts)
    ends = np.minimum(np.cumsum(times), rows)
    needed = tuple(
        min(rows, math.ceil(MARGIN * usage.distinct(each.ids(table.name, usage), held.rows))) for each in needs
    )
    return _Shard(table, rows, row_bytes, needed, lookups, ends)


def _other_way(plan: Plan, table: TableSpec) -> str:
    """What makes a table able to have slots."""
    if _why_not(plan, table) == _ADAM:
        return f"use another optimizer in embeddings.tables.{table.name}"
    return f"leave planning.tables.{table.name} out, or split it by rows"


def _enough(needed: float) -> str:
    """So many bytes, rounded up."""
    return written_bytes(needed * 1.01)


def _why_not(plan: Plan, table: TableSpec) -> str:
    """Why a table cannot have slots; empty where it can."""
    placement = plan.placements[table.name]
    if table.optimizer["name"] == "adam":
        return _ADAM
    if placement.sharding in {"column_wise", "grid"}:
        return "is split by columns"
    return "is on every rank" if placement.sharding == "data_parallel" else ""
