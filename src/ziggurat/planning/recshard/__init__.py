"""RecShard: which rows of which table lie in fast memory, which in slow, and on which device, from their statistics.

In: a problem whose topology declares slow memory. Out: a Plan that says of each table how many of its rows, by falling
frequency, are fast. ``filling`` knows what a byte of fast memory saves, ``ways`` where a table may lie at all,
``linear_model`` the best choice among them, ``greedy`` one that is always there.
"""

from ziggurat.planning.recshard.recshard import FirstAnswer, RecShard

__all__ = ["FirstAnswer", "RecShard"]
