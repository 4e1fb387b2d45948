"""How well rows are ranked, overall and within groups."""

from __future__ import annotations

from ziggurat.metrics.grouped import GroupedFigures
from ziggurat.metrics.metric import Metric, Summary
from ziggurat.metrics.ranking import auc


def _groups(summary: Summary) -> GroupedFigures:
    assert summary.groups is not None
    return summary.groups


AUC = Metric(
    "auc",
    "AUC",
    "higher",
    "Chance that a random positive is scored above a random negative; 0.5 is guessing.",
    lambda summary: auc(summary.histogram),
)
GAUC = Metric(
    "gauc",
    "GAUC",
    "higher",
    "AUC within each group, averaged over groups by their impressions.",
    lambda summary: _groups(summary).gauc,
    grouped=True,
)
GROUPS_KEPT = Metric(
    "gauc_groups",
    "Groups kept",
    "neither",
    "Groups whose rows were all held in memory; GAUC is computed from them.",
    lambda summary: float(_groups(summary).groups_kept),
    grouped=True,
    counts=True,
)
GROUPS_OF_ONE_CLASS = Metric(
    "gauc_groups_one_class",
    "Groups of one class",
    "neither",
    "Kept groups without a positive or without a negative, which have no AUC.",
    lambda summary: float(_groups(summary).groups_one_class),
    grouped=True,
    counts=True,
)
GROUPS_SEEN = Metric(
    "gauc_groups_seen",
    "Groups seen",
    "neither",
    "All groups; an estimate if memory did not suffice to keep all of them.",
    lambda summary: _groups(summary).groups_seen,
    grouped=True,
    counts=True,
)
