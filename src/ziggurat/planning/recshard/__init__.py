"""RecShard: decides from statistics which rows of each table go to fast memory, which to slow, and on which device.

In: a problem whose topology declares slow memory. Out: a Plan that says for each table how many of its rows, by falling
frequency, are in fast memory. ``filling`` computes what a byte of fast memory saves, ``sharding_options`` lists the
possible placements of a table, ``linear_model`` chooses the best among them, and ``greedy`` finds a plan without a
solver, which ``local_search`` improves.
"""

from ziggurat.planning.recshard.recshard import GreedyRecShard, RecShard

__all__ = ["GreedyRecShard", "RecShard"]
