"""All sets of the benchmark ``p3s``."""

from __future__ import annotations

from bench.quality.tabular.keel import keel_sets
from bench.quality.tabular.others import ctr_sets, shipped_sets, survey_sets

TABLES = (*shipped_sets(), *keel_sets(), *survey_sets())
"""Those with a logistic regression and an MLP."""
LOGS = ctr_sets()
"""Those with a CTR model."""
