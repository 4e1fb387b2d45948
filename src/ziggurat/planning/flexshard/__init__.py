"""FlexShard: decides row by row which rows of sequence tables have copies, from how often each is looked up.

In: a problem with statistics. Out: a Plan in which such tables have the sharding ``row_tiers``, with the numbers of
rows that are copied to every rank and to every host. ``thresholds`` finds the fastest numbers within a memory,
``growth`` does so for other numbers of ranks, and ``flexshard`` is the planner. What a row costs in each tier is in
:mod:`~ziggurat.planning.tier_cost`, what the other ways to place a table cost in
:mod:`~ziggurat.planning.tier_estimate`.
"""

from ziggurat.planning.flexshard.flexshard import FlexShard

__all__ = ["FlexShard"]
