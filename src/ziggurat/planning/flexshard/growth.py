"""How the traffic of a table in tiers grows with the number of hosts, beside the same table split by rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ziggurat.core.tables import TableSpec
from ziggurat.planning.flexshard.flexshard import SLACK
from ziggurat.planning.flexshard.thresholds import TierCounts, fastest_counts
from ziggurat.planning.problem import Problem
from ziggurat.planning.tier_cost import PricedTable, baseline_bytes
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


def growth(problem: Problem, table: TableSpec, hosts: Sequence[int]) -> list[Grown]:
    """Returns the table planned for these numbers of hosts, each with the devices of the problem's topology.

    Copies take no more memory than the table would if each look-up were sent.
    """
    found: list[Grown] = []
    for number in hosts:
        topology = replace(problem.topology, hosts=number)
        tiered = PricedTable(table, problem.curve(table), topology, problem.batch_size)
        (counts,) = fastest_counts([tiered], baseline_bytes(tiered)[2], SLACK) or [TierCounts(0, 0)]
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
