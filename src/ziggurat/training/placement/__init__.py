"""From an experiment to a sharding plan: topology, disk, statistics, measured costs, planner.

In: an experiment, a prepared dataset, the devices. Out: a plan, checked, with predicted bytes and seconds.
Neighbours: ``planning`` makes plans without knowing experiments; ``embeddings`` applies them.
"""
