"""Places an experiment's embedding tables: from topology, disk, statistics and measured costs to a sharding plan.

In: an experiment, a prepared dataset, the devices. Out: a checked plan with predicted bytes and seconds.
Neighbours: ``planning`` makes plans without knowing experiments; ``embeddings`` applies them.
"""
