"""Who holds which shard of which table: cost models, balancing, planners.

In: tables, a topology, statistics. Out: a ``core`` Plan with its predicted bytes and seconds, or why there is none.
Pure functions, no process group; of files, only what :mod:`~ziggurat.planning.autoshard` has learned. ``training``
measures topologies, ``embeddings`` applies what comes out.
Start at :mod:`~ziggurat.planning.planner`; a new planner keeps to :class:`~ziggurat.planning.problem.Planner`.
"""

from ziggurat.planning.plan_estimate import PlanEstimate
from ziggurat.planning.planner import plan_tables

__all__ = ["PlanEstimate", "plan_tables"]
