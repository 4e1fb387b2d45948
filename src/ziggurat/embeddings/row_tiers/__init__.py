"""Tables whose rows are in three tiers: copied to every rank, copied to every host, split over all ranks.

In: ids of a batch, as positions by falling frequency. Out: the rows of its bags, and after the backward pass rows that
are equal on all ranks that hold them. ``distinct_rows`` classifies the ids, ``rank_groups`` are the exchanges,
``tiered_table`` holds the rows, ``copied_gradients`` sums the gradients of copies over the ranks, ``tiered_lookup`` is
the whole step.

Source: FlexShard, as in the module ``tiered_lookup``.
"""
