"""A planner with measured costs and a learned placement policy.

``pool`` draws realistic tables, ``features`` describe a shard, ``cost_network`` predicts the time of a set of shards,
``policy`` and ``task`` place them, and ``planner`` turns that into a plan. Measurements are made in ``training``.
"""
