"""A planner whose costs are measured and whose placements are learned.

``pool`` draws realistic tables, ``features`` describe a shard, ``cost_network`` predicts what a set of shards takes,
``policy`` and ``task`` place them, ``planner`` makes a plan of it. Measuring is ``training``'s business.
"""
