"""How the traffic of a table in tiers grows with the number of hosts, beside the same table split by rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ziggurat.core.tables import TableSpec
from ziggurat.planning.flexshard.flexshard import FlexShard
from ziggurat.planning.flexshard.thresholds import TierCounts
from ziggurat.planning.problem import Problem
from ziggurat.planning.tier_estimate import DEDUPLICATED, IN_TIERS, Alternative, every_look_up, in_tiers


@dataclass(frozen=True, slots=True)
class Grown:
    """The table on some number of ranks, each with the same number of examples.

    Attributes:
        ranks: the number of ranks.
        counts: the numbers of copied rows.
        in_tiers, split, every_look_up: the table in tiers; split by rows and de-duplicated; each look-up sent.
    """

    ranks: int
    counts: TierCounts
    in_tiers: Alternative
    split: Alternative
    every_look_up: Alternative


def growth(problem: Problem, table: TableSpec, hosts: Sequence[int], config: FlexShard.Config) -> list[Grown]:
    """Returns the table planned for these numbers of hosts, each with the devices of the problem's topology.

    Args:
        problem: the table's look-ups, the devices, and their memory, which the table has to itself.
        table: the table.
        hosts: the numbers of hosts.
        config: the settings by which each number is planned: memory, slack and the least that copies must save.

    Raises:
        ConfigError: the rows of the table cannot be placed one by one.
        NoFeasiblePlan: the devices of some number of hosts lack memory.
    """
    planner = FlexShard(config.model_copy(update={"tables": (table.name,)}))
    found: list[Grown] = []
    for number in hosts:
        topology = replace(problem.topology, hosts=number)
        grown = problem.but(tables=(table,), topology=topology, constraints={})
        placement = planner.plan(grown).placements[table.name]
        counts, tiered = TierCounts(placement.copied_rows or 0, placement.host_rows or 0), grown.tiered(table)
        found.append(
            Grown(
                topology.world_size,
                counts,
                in_tiers(IN_TIERS, tiered, counts.copied, counts.host),
                in_tiers(DEDUPLICATED, tiered, 0, 0),
                every_look_up(tiered),
            )
        )
    return found
