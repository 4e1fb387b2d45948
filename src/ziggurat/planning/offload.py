"""Decides how many cache slots each table gets if the tables are larger than memory (out-of-core tables).

The rows with the most look-ups a byte should stay in memory. The rows of all tables compete by look-ups a byte, and
memory is filled from the top down to some level. A table all of whose rows are above that level needs no slots. Only
the size of the caches is decided here; the cache itself finds the hot rows and follows them as training goes on
(:mod:`ziggurat.storage.row_cache`).

Source: Ye et al. 2023, "MTrainS", arXiv 2305.01515, section 4: tables with a high bandwidth demand a byte go to the
faster memory. Deviation: rows compete, not tables.
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
from ziggurat.planning.quantities import Bandwidth, Bytes, format_bytes
from ziggurat.planning.usage import Usage, touch_probability

NOTE_PREFIX = "beyond memory"
"""Prefix of the notes that :func:`with_slots` adds to a plan."""
SLOT_BYTES, ROW_BYTES = 17, 9
"""Overhead in bytes of a slot, in addition to its row; and of every row of a table with slots, for its slot, its use
count and its place on disk."""
WINDOW = 6
"""Batches whose rows must fit into memory at once: the one being trained, some in flight, and the next one."""
MARGIN = 1.2
"""Safety factor on the expected number of distinct rows in these batches."""
_BISECTIONS = 60
_TIERS = "has a copy of each row on every rank or host"
_ADAM = "is trained by adam"


@dataclass(frozen=True)
class Need:
    """Examples whose rows must fit into memory at once.

    Attributes:
        examples: the number of examples.
        description: what they are, for messages: "6 training batches".
        key: the config key that makes them fewer.
        max_ids: table -> the most ids that they look up, for tables where these were counted; of other tables they
            look up the mean.
    """

    examples: int
    description: str
    key: str
    max_ids: Mapping[str, int] = field(default_factory=dict[str, int])

    def ids(self, table: str, usage: Usage) -> float:
        """Returns the number of ids that the examples look up in a table."""
        return max(self.examples * usage.ids_per_row, self.max_ids.get(table, 0))


def memory_needs(training: int, evaluation: int = 0) -> list[Need]:
    """Returns the needs of training and evaluation.

    Args:
        training: examples of a training batch, over all ranks.
        evaluation: examples of an evaluation batch, over all ranks; 0 for none.
    """
    needs = [Need(WINDOW * training, f"{WINDOW} training batches", "training.batch_size")]
    if evaluation:
        description = f"an evaluation batch of {evaluation:,} examples"
        needs.append(Need(evaluation, description, "evaluation.batch_size"))
    return needs


def _checked_folder(folder: Path | None) -> Path | None:
    if folder == Path():
        raise ValueError("names no folder; leave it out for the run's own")
    return folder


class BeyondMemoryConfig(Config):
    """Tables larger than memory: rows that do not fit are kept on disk and fetched before they are looked up."""

    memory: Bytes
    """Memory of each rank for rows of tables and their optimizer states: bytes, or as in 8GB."""
    folder: Annotated[Path | None, AfterValidator(_checked_folder)] = None
    """Folder for the other rows during training, ideally on a disk of its own; default: the run's folder. Nothing
    remains there afterwards: checkpoints hold all rows."""
    bandwidth: Bandwidth | None = None
    """Bandwidth at which rows of that folder are read and written: bytes a second, or as in 60MB/s. Used by planners
    that distinguish hot from cold rows (``recshard``) if several ranks train. Default: measured when a plan is made."""


@dataclass(frozen=True)
class _OffloadedShard:
    """A table's largest shard; N groups of rows that are looked up equally often.

    Attributes:
        table: the table.
        rows: rows of the shard; of a table with its rows in tiers, those split over all ranks.
        row_bytes: bytes of a row's weights and states.
        slots_needed: slots that each of the needs requires.
        lookups_N: look-ups a step of one row of each group, falling.
        ends_N: number of rows up to each group's end.
        copies: bytes of the copied rows on the rank, for a table with its rows in tiers: they are in memory.
    """

    table: TableSpec
    rows: int
    row_bytes: float
    slots_needed: tuple[int, ...]
    lookups_N: npt.NDArray[np.float64]
    ends_N: npt.NDArray[np.int64]
    copies: float = 0.0

    @property
    def min_slots(self) -> int:
        """The fewest slots that satisfy every need."""
        return max(self.slots_needed)

    @property
    def total_bytes(self) -> float:
        """Bytes of all rows of the shard, and of copied ones beside it."""
        return self.copies + self.rows * self.row_bytes

    def bytes_taken(self, slots: int) -> float:
        """Returns the bytes that this many slots and the copies take; with one for every row, slots have no
        overhead."""
        if slots >= self.rows:
            return self.total_bytes
        return self.copies + slots * (self.row_bytes + SLOT_BYTES) + self.rows * ROW_BYTES

    def lookup_share(self, slots: int) -> float:
        """Returns the share of the look-ups that the most looked-up rows get, one row for each slot."""
        ends_N = np.minimum(self.ends_N, slots)
        times_N = np.diff(ends_N, prepend=0)
        return float(times_N @ self.lookups_N / (np.diff(self.ends_N, prepend=0) @ self.lookups_N))

    def expected_misses(self, slots: int) -> float:
        """Returns the distinct rows a step expected to miss the cache, if the most looked-up rows have the slots."""
        times_N = np.diff(np.maximum(self.ends_N, slots), prepend=slots)
        return float(times_N @ -np.expm1(-self.lookups_N))

    def slots_above(self, level: float) -> int:
        """Returns the slots for the rows that are looked up more often than ``level`` times a byte and step."""
        group = int(np.searchsorted(-self.lookups_N / self.row_bytes, -level, side="left"))
        slots = max(self.min_slots, int(self.ends_N[group - 1]) if group else 0)
        return self.rows if self.bytes_taken(slots) >= self.total_bytes else slots


def with_slots(
    plan: Plan,
    tables: Sequence[TableSpec],
    usages: Mapping[str, Usage],
    examples: int,
    needs: Sequence[Need],
    memory: float,
) -> Plan:
    """Returns ``plan`` with cache slots for the tables on ranks whose memory cannot hold all rows.

    Args:
        plan: the placements. Its split into fast and slow rows has served to choose ranks and is dropped here: the
            slots decide how many rows are in memory.
        tables: the tables that the plan places.
        usages: table -> how it is looked up.
        examples: examples of a training step, over all ranks.
        needs: what must fit into memory at once; at least one need.
        memory: bytes for rows on each rank.

    Raises:
        ConfigError: a table that needs slots cannot have any.
        NoFeasiblePlan: memory cannot hold the rows that a step needs.
    """
    plan = replace(plan, placements={name: replace(each, fast_rows=None) for name, each in plan.placements.items()})
    shards = {table.name: _offloaded_shard(plan, table, usages[table.name], examples, needs) for table in tables}
    ranks: dict[int, list[_OffloadedShard]] = {}
    for table in tables:
        for rank in {shard.rank for shard in plan.shards(table)}:
            ranks.setdefault(rank, []).append(shards[table.name])
    slots: dict[str, int] = {}
    for rank, held in ranks.items():
        for name, count in _slots_on_rank(rank, held, plan, needs, memory).items():
            slots[name] = min(slots.get(name, count), count)
    placements = {name: replace(each, slots=slots.get(name)) for name, each in plan.placements.items()}
    misses = max(
        (sum(s.expected_misses(slots.get(s.table.name, s.rows)) for s in held) for held in ranks.values()), default=0
    )
    notes = tuple(
        f"{NOTE_PREFIX}: of table {name!r}, {count:,} of {shards[name].rows:,} rows{_per_shard(plan, name)} fit, "
        f"{100 * shards[name].lookup_share(count):.0f} % of its look-ups"
        for name, count in slots.items()
    )
    if notes:
        notes += (f"{NOTE_PREFIX}: the rank with the most misses is expected to fetch {misses:,.0f} rows a step",)
    return replace(plan, placements=placements, notes=(*without_slots(plan).notes, *notes))


def with_memory_for_rows_only(problem: Problem) -> Problem:
    """Returns ``problem`` with its fast memory enlarged by the reserve and the buffers of a step.

    The configured memory is then for rows alone. A device's buffers are assumed to be as large as if it held every
    table.
    """
    topology = problem.topology
    buffers = problem.client_bytes + sum(problem.whole(table).buffer_bytes for table in problem.tables)
    memory = math.ceil((topology.memory_bytes + buffers) / (1 - problem.reserve))
    return problem.but(topology=replace(topology, memory_bytes=memory))


def row_traffic_bytes(tables: Sequence[TableSpec]) -> float:
    """Returns the bytes that the cost model counts for a row that is looked up once in a step, the mean over all rows.

    The row is read for its look-up, and read and written by the optimizer.
    """
    rows = sum(table.rows for table in tables)
    return sum(table.rows * (FLOAT * table.dim + 2 * row_bytes(table, table.dim)) for table in tables) / max(rows, 1)


def without_slots(plan: Plan) -> Plan:
    """Returns ``plan`` without the slots and notes that :func:`with_slots` adds."""
    placements = {name: replace(each, slots=None) for name, each in plan.placements.items()}
    return replace(plan, placements=placements, notes=tuple(n for n in plan.notes if not n.startswith(NOTE_PREFIX)))


def _slots_on_rank(
    rank: int, held: Sequence[_OffloadedShard], plan: Plan, needs: Sequence[Need], memory: float
) -> dict[str, int]:
    """Returns table -> slots, for the tables that cannot have all their rows in this rank's memory."""
    if sum(shard.total_bytes for shard in held) <= memory:
        return {}
    fixed = [shard for shard in held if _obstacle(plan, shard.table)]
    offloadable = [shard for shard in held if not _obstacle(plan, shard.table)]
    available = memory - sum(shard.total_bytes for shard in fixed)
    least = sum(shard.bytes_taken(shard.min_slots) for shard in offloadable)
    if available < least:
        if fixed and memory >= least:
            largest = max(fixed, key=lambda shard: shard.total_bytes)
            raise ConfigError(
                f"planning.beyond_memory: rank {rank} has {format_bytes(memory)} for rows, and table "
                f"{largest.table.name!r}, with {format_bytes(largest.total_bytes)} there, "
                f"{_obstacle(plan, largest.table)}: all of its rows need memory",
                f"{_hint_for(plan, largest.table)}, or give at least {_format_rounded_up(least + memory - available)}",
            )
        bytes_by_need = [
            sum(shard.bytes_taken(shard.slots_needed[number]) for shard in offloadable) for number in range(len(needs))
        ]
        binding = needs[max(range(len(needs)), key=lambda number: bytes_by_need[number])]
        raise NoFeasiblePlan(
            f"planning.beyond_memory.memory: rank {rank} has {format_bytes(memory)} for rows, and those of "
            f"{binding.description}, which must fit together, need {format_bytes(least + memory - available)}",
            f"give at least {_format_rounded_up(least + memory - available)}, or use a smaller {binding.key}",
        )
    low, high = 0.0, max(float(shard.lookups_N[0]) / shard.row_bytes for shard in offloadable) + 1.0
    for _ in range(_BISECTIONS):
        level = (low + high) / 2
        if sum(shard.bytes_taken(shard.slots_above(level)) for shard in offloadable) <= available:
            high = level
        else:
            low = level
    slots = {shard.table.name: shard.slots_above(high) for shard in offloadable}
    rest = available - sum(shard.bytes_taken(slots[shard.table.name]) for shard in offloadable)
    for shard in sorted(offloadable, key=lambda shard: -_next_density(shard, slots[shard.table.name])):
        have = slots[shard.table.name]
        if have < shard.rows:
            more = min(shard.rows - 1 - have, int(rest / (shard.row_bytes + SLOT_BYTES)))
            slots[shard.table.name] = have + max(0, more)
            rest -= max(0, more) * (shard.row_bytes + SLOT_BYTES)
    return {shard.table.name: slots[shard.table.name] for shard in offloadable if slots[shard.table.name] < shard.rows}


def _per_shard(plan: Plan, name: str) -> str:
    return " of each shard" if plan.row_parts(name) > 1 else ""


def _next_density(shard: _OffloadedShard, slots: int) -> float:
    """Returns the look-ups a byte of the most looked-up row without a slot."""
    group = min(int(np.searchsorted(shard.ends_N, slots, side="right")), len(shard.ends_N) - 1)
    return float(shard.lookups_N[group]) / shard.row_bytes


def _offloaded_shard(
    plan: Plan, table: TableSpec, usage: Usage, examples: int, needs: Sequence[Need]
) -> _OffloadedShard:
    if plan.placements[table.name].sharding == "row_tiers":
        return _split_tier(plan, table, usage, examples, needs)
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
    slots_needed = tuple(
        min(rows, math.ceil(MARGIN * usage.distinct(each.ids(table.name, usage), held.rows))) for each in needs
    )
    return _OffloadedShard(table, rows, row_bytes, slots_needed, lookups, ends)


def _split_tier(plan: Plan, table: TableSpec, usage: Usage, examples: int, needs: Sequence[Need]) -> _OffloadedShard:
    """Returns the first rank's range of a table's rows that are split over all ranks; the hottest rows are copied.

    A rank is asked once a step for a row by each rank that needs it, but a look-up counts as one here: the rows that
    are split are those that few ranks need in a step.
    """
    placement, parts = plan.placements[table.name], plan.world_size
    copied, hosts, split = placement.tiers(table.rows)
    rows, per_host = -(-split.size // parts), -(-hosts.size // plan.local_size)
    row_bytes = FLOAT * table.dim + state_bytes(table.optimizer, max(1, rows), table.dim) / max(1, rows)
    accesses = np.ones(table.rows) if usage.accesses is None else np.sort(usage.accesses)[::-1]
    counts, numbers = np.unique(accesses[split.first :], return_counts=True)
    shares, times = counts[::-1] / accesses.sum(), numbers[::-1] / parts
    slots_needed = tuple(
        min(rows, max(1, math.ceil(MARGIN * float(times @ touch_probability(shares, each.ids(table.name, usage))))))
        for each in needs
    )
    ends = np.minimum(np.cumsum(-(-numbers[::-1] // parts)), rows)
    lookups = shares * usage.ids_per_row * examples
    copies = (copied.size + per_host) * row_bytes
    return _OffloadedShard(table, rows, row_bytes, slots_needed, lookups, ends, copies)


def _hint_for(plan: Plan, table: TableSpec) -> str:
    """Returns advice on how to make a table able to have slots."""
    if _obstacle(plan, table) == _ADAM:
        return f"use another optimizer in embeddings.tables.{table.name}"
    if _obstacle(plan, table) == _TIERS:
        return "make a new plan (planning.new_plan: always)"
    return f"leave planning.tables.{table.name} out, or split it by rows"


def _format_rounded_up(needed: float) -> str:
    """Formats bytes one per cent higher, so that the rounded figure is never too low."""
    return format_bytes(needed * 1.01)


def _obstacle(plan: Plan, table: TableSpec) -> str:
    """Returns why a table cannot have slots; empty if it can."""
    placement = plan.placements[table.name]
    if table.optimizer["name"] == "adam":
        return _ADAM
    if placement.sharding in {"column_wise", "grid"}:
        return "is split by columns"
    if placement.sharding == "row_tiers" and not placement.tiers(table.rows)[2].size:
        return _TIERS
    return "is on every rank" if placement.sharding == "data_parallel" else ""
