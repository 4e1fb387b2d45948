"""The FlexShard planner: tables of sequences are split row by row, hot rows having copies; the rules place the others.

Source: FlexShard, arXiv 2301.02959. Deviations: the thresholds are not fixed but follow from the bandwidths of the
topology and from the memory (:mod:`~ziggurat.planning.flexshard.thresholds`); by default the tables take no more memory
than by the paper's baseline, split by rows with each look-up sent; buffers for received rows are counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import pydantic

from ziggurat.core.errors import ConfigError, InvalidSection, NoFeasiblePlan
from ziggurat.core.plan import Placement, Plan
from ziggurat.core.progress import Progress
from ziggurat.core.tables import TableSpec
from ziggurat.planning.constraints import check_names, check_sharding, must_replicate
from ziggurat.planning.contract import Planner, PlannerSettings, TimeParts
from ziggurat.planning.cost import FLOAT, ShardCost, state_bytes
from ziggurat.planning.flexshard.thresholds import (
    TierCounts,
    fastest_counts,
    kept_bytes,
    smallest_counts,
    step_seconds,
)
from ziggurat.planning.placement import Loads
from ziggurat.planning.problem import Problem
from ziggurat.planning.quantities import BytesOrZero, format_bytes
from ziggurat.planning.rules import Rules
from ziggurat.planning.tier_cost import PricedTable, baseline_bytes

COPIES_SHARE = 0.5
"""The most of the memory for rows that copies may take if the other rows are on a disk; the rest is for slots."""
_HALVINGS = 12
"""How often the interval of memories is halved to find the largest with so few copies."""
SLACK = 0.01
"""The default share by which a step may be slower where its forward pass then waits for fewer bytes."""


class FlexShard(Planner):
    """The FlexShard planner; see the module's docstring."""

    class Config(PlannerSettings):
        """Rows of sequence tables copied to every rank, to every host or split, by how often each is looked up."""

        uses_row_tiers: ClassVar[bool] = True

        name: Literal["flexshard"] = "flexshard"

        tables: tuple[str, ...] | None = None
        """The tables whose rows are placed one by one, and no others. Default: those of sequences whose positions are
        looked up one by one, unless planning.tables names another sharding for them. The rules place all others."""
        extra_memory: BytesOrZero | None = 0
        """Memory of a device that these tables may take beyond what they would take split by rows with each look-up
        sent, buffers for received rows included: bytes, or as in 512MB. null: all memory that the device has."""
        slack: float = pydantic.Field(default=SLACK, ge=0, allow_inf_nan=False)
        """The share by which a step may be slower, by the cost model, than with the fastest numbers of copied rows,
        where that leaves fewer bytes for the forward pass to wait for: more rows are then on every rank."""

        least_gain: float = pydantic.Field(default=0.05, ge=0, lt=1)
        """The share of the tables' modelled seconds that copies must save, or there are none: the gradients of copies
        take three exchanges more, whose latency is not modelled. 0: they need not save any, as ``slack`` allows."""

        @property
        def named_tables(self) -> tuple[str, ...]:
            return self.tables or ()

        def build(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> FlexShard:
            del time_parts, progress
            return FlexShard(self)

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rules = Rules(Rules.Config())

    def plan(self, problem: Problem) -> Plan:
        """See :class:`~ziggurat.planning.contract.Planner`.

        Raises:
            ConfigError: the config names a table that does not exist, or whose rows cannot be placed one by one.
        """
        chosen = self.chosen(problem)
        if not chosen:
            notes = (_nothing_chosen(problem), *self._notes_on_skipped(problem))
            return replace(self.rules.plan(problem), notes=notes)
        tables = [problem.tiered(table) for table in chosen]
        split = sum(baseline_bytes(table)[2] for table in tables)
        others = self._others(problem, chosen, tables, split)
        left = _free_bytes(problem, others) - sum(map(_rounding_bytes, tables))
        extra = self.config.extra_memory
        least = kept_bytes(tables, [TierCounts(0, 0)] * len(tables))  # may be above ``split`` by rounding
        memory = left if extra is None else min(left, max(split, least) + extra)
        counts = fastest_counts(tables, memory, self.config.slack)
        if counts is not None and problem.memory_for_rows is not None:
            limit = problem.memory_for_rows * COPIES_SHARE
            counts = _with_copies_in(limit, problem, tables, counts, memory, self.config)
        if counts is None:
            raise _no_memory(problem, chosen, tables, left)
        saved = _saved_by_copies(tables, counts)
        is_little = 0 < self.config.least_gain > saved and least <= memory
        counts = [TierCounts(0, 0)] * len(tables) if is_little else counts
        ranks = tuple(range(problem.topology.world_size))
        tiers = {
            table.name: Placement("row_tiers", ranks, copied_rows=each.copied, host_rows=each.host)
            for table, each in zip(chosen, counts, strict=True)
        }
        every = {**others.placements, **tiers}
        placements = {table.name: every[table.name] for table in problem.tables}
        notes = tuple(_note(table, each) for table, each in zip(tables, counts, strict=True))
        if is_little:
            notes += (f"flexshard: copies would save {saved:.1%} of the tables' modelled time, so there are none",)
        notes = (*notes, *self._notes_on_skipped(problem), *_remarks(problem))
        return Plan(others.world_size, placements, others.local_size, notes)

    def _notes_on_skipped(self, problem: Problem) -> list[str]:
        """Returns why tables of sequences have no tiers, where the config leaves the choice open."""
        if self.config.tables is not None or problem.topology.world_size == 1:
            return []
        found = ((each.name, _why_no_tiers(problem, each)) for each in problem.tables if each.positions)
        return [f"flexshard: table {name!r} has no tiers: {why}" for name, why in found if why is not None]

    def chosen(self, problem: Problem) -> list[TableSpec]:
        """Returns the tables whose rows are placed one by one.

        Raises:
            ConfigError: the config names a table that does not exist, or whose rows cannot be placed one by one.
        """
        if problem.topology.world_size == 1:
            return []
        if self.config.tables is None:
            return [table for table in problem.tables if may_have_tiers(problem, table)]
        specs = {table.name: table for table in problem.tables}
        check_names("planning.planner.tables", self.config.tables, problem.tables)
        for name in self.config.tables:
            _check_asked(problem, name, specs)
        return [table for table in problem.tables if table.name in self.config.tables]

    def _others(
        self, problem: Problem, chosen: Sequence[TableSpec], tables: Sequence[PricedTable], split: float
    ) -> Plan:
        """Returns the plan of the other tables in the memory that the chosen ones leave, at worst by having as few
        bytes as they can."""
        rest = tuple(table for table in problem.tables if table not in chosen)
        try:
            return self.rules.plan(_without(problem, rest, split))
        except NoFeasiblePlan:
            return self.rules.plan(_without(problem, rest, _least_bytes(tables)))


def _with_copies_in(
    limit: float,
    problem: Problem,
    tables: Sequence[PricedTable],
    counts: list[TierCounts],
    memory: float,
    config: FlexShard.Config,
) -> list[TierCounts]:
    """Returns the numbers of copied rows whose copies take at most ``limit`` bytes of a rank, from those without that
    limit.

    A smaller memory for all rows leaves fewer copies; the largest one with few enough is found by halving.
    """
    local = problem.topology.devices

    def copies(found: Sequence[TierCounts]) -> float:
        pairs = zip(tables, found, strict=True)
        return sum((each.copied + each.host / local) * _row_bytes(table) for table, each in pairs)

    if copies(counts) <= limit:
        return counts
    none = [TierCounts(0, 0)] * len(tables)
    low, high, best = kept_bytes(tables, none), min(memory, kept_bytes(tables, counts)), none
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        found = fastest_counts(tables, middle, config.slack)
        if found is None or copies(found) > limit:
            low, high = (middle, high) if found is None else (low, middle)
        else:
            low, best = middle, found
    return best


def _saved_by_copies(tables: Sequence[PricedTable], counts: Sequence[TierCounts]) -> float:
    """Returns the share of the tables' modelled seconds that copies save; none of tables that nothing looks up."""
    without = step_seconds(tables, [TierCounts(0, 0)] * len(tables))
    return 1 - step_seconds(tables, counts) / without if without else 0.0


def fastest_tiers(problem: Problem, table: TableSpec) -> list[ShardCost]:
    """Returns the costs of the table's shards with the fastest numbers of copied rows, in any memory."""
    (counts,) = fastest_counts([problem.tiered(table)], math.inf) or [TierCounts(0, 0)]
    ranks = tuple(range(problem.topology.world_size))
    placement = Placement("row_tiers", ranks, copied_rows=counts.copied, host_rows=counts.host)
    plan = Plan(problem.topology.world_size, {table.name: placement}, problem.topology.devices)
    return [cost for _, cost in problem.costs(table, plan)]


def may_have_tiers(problem: Problem, table: TableSpec) -> bool:
    """Returns whether the table is of sequences that are looked up one by one, and may be split by rows."""
    return _why_no_tiers(problem, table) is None


def _why_no_tiers(problem: Problem, table: TableSpec) -> str | None:
    """Returns why the rows of a table are not placed one by one unless it is asked for; None if they are."""
    if problem.topology.world_size == 1:
        return "there is one device"
    if not table.positions:
        return "no sequence looks it up position by position"
    if table.name in problem.constraints:
        return f"planning.tables places it {problem.constraints[table.name].sharding}"
    if must_replicate(table, problem.topology.kind):
        return f"its optimizer, {table.optimizer['name']}, needs a copy of it on every device"
    try:
        check_sharding(table, "row_tiers", problem.topology)
    except InvalidSection as error:
        return error.fault
    if table.rows < problem.topology.world_size:
        return f"it has {table.rows:,} rows for {problem.topology.world_size:,} devices"
    return None


def _check_asked(problem: Problem, name: str, specs: dict[str, TableSpec]) -> None:
    where = f"planning.planner.tables: {name!r}"
    if name in problem.constraints:
        raise ConfigError(
            f"{where}: planning.tables.{name} asks for {problem.constraints[name].sharding}", "leave one of the two out"
        )
    try:
        check_sharding(specs[name], "row_tiers", problem.topology)
    except InvalidSection as error:
        raise ConfigError(f"{where}: {error.fault}", error.hint) from None


def _without(problem: Problem, rest: tuple[TableSpec, ...], taken: float) -> Problem:
    """Returns the problem of the other tables, on devices with that much less memory."""
    names = {table.name for table in rest}
    constraints = {name: each for name, each in problem.constraints.items() if name in names}
    smaller = problem.but(tables=rest, constraints=constraints)
    missing = problem.client_bytes - smaller.client_bytes + taken
    memory = max(1, int(problem.topology.memory_bytes - missing / (1 - problem.reserve)))
    return smaller.but(topology=replace(problem.topology, memory_bytes=memory))


def _free_bytes(problem: Problem, others: Plan) -> float:
    """Returns the bytes that the plan leaves on the fullest device."""
    loads = Loads(problem)
    for table in problem.tables:
        if table.name in others.placements:
            loads.add(table, others)
    return min(loads.free)


def _least_bytes(tables: Sequence[PricedTable]) -> float:
    """Returns the least bytes of a device for the tables; a row that is surely needed takes less as a copy."""
    return kept_bytes(tables, smallest_counts(tables))


def _rounding_bytes(tiered: PricedTable) -> float:
    """Returns by how much a rank's part may be above the mean of all ranks: a row of each split tier."""
    return 2.0 * _row_bytes(tiered)


def _row_bytes(tiered: PricedTable) -> float:
    """Returns the bytes of a row with its optimizer state."""
    return FLOAT * tiered.table.dim + state_bytes(tiered.table.optimizer, 1, tiered.table.dim)


def _no_memory(
    problem: Problem, chosen: Sequence[TableSpec], tables: Sequence[PricedTable], left: float
) -> NoFeasiblePlan:
    short = format_bytes(_least_bytes(tables) - left)
    names = ", ".join(repr(table.name) for table in chosen)
    return NoFeasiblePlan(
        f"the rows of {names} need {short} more on every device, where other tables leave "
        f"{format_bytes(max(left, 0.0))} for them, with {problem.batch_size:,} examples a step",
        "give the devices more memory, use more of them, or make training.batch_size smaller",
    )


def _note(tiered: PricedTable, counts: TierCounts) -> str:
    """Returns a line with the table's thresholds."""
    parts: list[str] = []
    if counts.copied:
        parts.append(
            f"{counts.copied:,} rows are copied to every rank (q ≥ {tiered.probability(counts.copied - 1):.3g})"
        )
    if counts.host:
        last = tiered.probability(counts.copied + counts.host - 1)
        subject = "" if counts.copied else "rows are copied "
        parts.append(f"{counts.host:,} {subject}to every host (q ≥ {last:.3g})")
    rest = tiered.table.rows - counts.copied - counts.host
    parts.append(f"{rest:,} are split over all ranks")
    return f"flexshard: table {tiered.table.name!r}: {', '.join(parts)}; q: probability that a rank needs the row"


def _remarks(problem: Problem) -> list[str]:
    if problem.statistics is not None:
        return []
    return [
        "flexshard: without statistics no row is known to be hotter than another; all have one tier as far as memory "
        "allows"
    ]


def _nothing_chosen(problem: Problem) -> str:
    if problem.topology.world_size == 1:
        return "flexshard: one device holds all rows"
    return "flexshard: no table has tiers, so the rules place all; name tables in planning.planner.tables"
