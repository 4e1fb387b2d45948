"""Who holds which shard of which table: cost models, balancing, planners.

In: tables, a topology, statistics. Out: a ``core`` Plan, or why there is none. Pure functions; no process group, no
files. ``embeddings`` applies what comes out.
"""
