"""A table whose rows are in tiers, with the prediction for each tier, and what other ways to place the table cost.

Split by rows over all ranks, each look-up sent, is how TorchRec's EmbeddingCollection looks up sequences, and what
FlexShard was compared with. De-duplicated, each rank asks once for each distinct row; that is a table in tiers without
copies. Whole tables and copies of the whole table are priced as in any plan (:mod:`~ziggurat.planning.cost`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ziggurat.core.plan import Placement, Plan
from ziggurat.planning.problem import Problem
from ziggurat.planning.tier_cost import TIER_NAMES, PricedTable, TierLoad, baseline_bytes

IN_TIERS, DEDUPLICATED, EVERY_LOOK_UP = "in tiers", "rows split, de-duplicated", "rows split, each look-up sent"
WHOLE, COPIED = "whole on one rank", "copied to every rank"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One way to place a table.

    Attributes:
        name: how it is placed.
        intra_bytes, inter_bytes: bytes that all ranks send in a step, within hosts and between them.
        exchange_seconds: modelled seconds in which the busiest rank sends its part; the ranks of a host share its link.
        kept_bytes: bytes that the fullest rank keeps for the table, with the buffers of its look-ups.
    """

    name: str
    intra_bytes: float
    inter_bytes: float
    exchange_seconds: float
    kept_bytes: float


@dataclass(frozen=True, slots=True)
class TierEstimate:
    """The prediction for a table in tiers.

    Attributes:
        table: its name.
        tiers: what each tier costs a rank, in the order of :data:`~ziggurat.planning.tier_cost.TIER_NAMES`.
        thresholds: the least probability that a rank needs a row of the tier, for the rows copied to every rank and
            those copied to every host; None for a tier without rows.
        alternatives: the table in these tiers, then placed in other ways.
    """

    table: str
    tiers: tuple[TierLoad, TierLoad, TierLoad]
    thresholds: tuple[float | None, float | None]
    alternatives: tuple[Alternative, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "tiers": [
                {"tier": name, **asdict(load), "kept_bytes": load.kept_bytes}
                for name, load in zip(TIER_NAMES, self.tiers, strict=True)
            ],
            "thresholds": list(self.thresholds),
            "alternatives": [asdict(each) for each in self.alternatives],
        }


def tier_estimates(problem: Problem, plan: Plan) -> tuple[TierEstimate, ...]:
    """Returns the prediction for each table that the plan places in tiers."""
    found: list[TierEstimate] = []
    for table in problem.tables:
        placement = plan.placements[table.name]
        if placement.sharding != "row_tiers":
            continue
        tiered = problem.tiered(table)
        copied, of_host, _ = placement.tiers(table.rows)
        thresholds = (
            tiered.probability(copied.size - 1) if copied.size else None,
            tiered.probability(of_host.first + of_host.size - 1) if of_host.size else None,
        )
        loads = tiered.loads(copied.size, of_host.size)
        others = alternatives(problem, tiered, copied.size, of_host.size)
        found.append(TierEstimate(table.name, loads, thresholds, others))
    return tuple(found)


def alternatives(problem: Problem, tiered: PricedTable, copied: int, host: int) -> tuple[Alternative, ...]:
    """Returns what the table costs in tiers with these numbers of copied rows, and in other ways."""
    every = tuple(range(problem.topology.world_size))
    return (
        in_tiers(IN_TIERS, tiered, copied, host),
        in_tiers(DEDUPLICATED, tiered, 0, 0),
        every_look_up(tiered),
        _placed(problem, tiered, WHOLE, Placement("table_wise", (0,))),
        _placed(problem, tiered, COPIED, Placement("data_parallel", every)),
    )


def in_tiers(name: str, tiered: PricedTable, copied: int, host: int) -> Alternative:
    """Returns what the table costs in tiers with these numbers of copied rows."""
    loads, world = tiered.loads(copied, host), tiered.topology.world_size
    return Alternative(
        name,
        world * sum(load.intra_bytes for load in loads),
        world * sum(load.inter_bytes for load in loads),
        sum(load.exchange_seconds(tiered.topology) for load in loads),
        sum(load.kept_bytes for load in loads),
    )


def every_look_up(tiered: PricedTable) -> Alternative:
    """Returns what the table costs split by rows over all ranks when each look-up is sent."""
    intra, inter, kept = baseline_bytes(tiered)
    topology = tiered.topology
    seconds = intra / topology.intra_bandwidth + inter / topology.device_inter_bandwidth
    return Alternative(EVERY_LOOK_UP, topology.world_size * intra, topology.world_size * inter, seconds, kept)


def _placed(problem: Problem, tiered: PricedTable, name: str, placement: Placement) -> Alternative:
    topology = problem.topology
    plan = Plan(topology.world_size, {tiered.table.name: placement}, topology.devices)
    costs = [cost for _, cost in problem.costs(tiered.table, plan)]
    return Alternative(
        name,
        sum(cost.intra_bytes for cost in costs),
        sum(cost.inter_bytes for cost in costs),
        max(cost.seconds - cost.memory_traffic / topology.lookup_bandwidth for cost in costs),
        max(cost.kept_bytes for cost in costs),
    )
