"""Decides which device holds which shard of which table: cost models, balancing, planners.

In: tables, a topology, statistics. Out: a ``core`` Plan with its predicted bytes and seconds, or the reason why there
is none. These are pure functions without a process group; the only files read are the learned weights of
:mod:`~ziggurat.planning.autoshard`. ``training`` measures topologies, ``embeddings`` applies the plan.
Start at :mod:`~ziggurat.planning.planner`; a new planner implements :class:`~ziggurat.planning.contract.Planner`.
"""

from ziggurat.planning.plan_estimate import PlanEstimate
from ziggurat.planning.planner import plan_tables

__all__ = ["PlanEstimate", "plan_tables"]
