"""Configuration of the metrics: memory budgets and the number of calibration bins."""

from __future__ import annotations

from pydantic import Field

from ziggurat.core.config import Config


class MetricsConfig(Config):
    """Memory budgets of the streaming metrics; within them every figure is exact."""

    score_keys: int = Field(default=1 << 18, ge=1 << 10, le=1 << 24)
    """Distinct logits kept per task (20 bytes each). AUC is exact up to this number; beyond it, neighbouring logits are
    merged into one key."""

    calibration_bins: int = Field(default=20, ge=2, le=1000)
    """Number of bins of the expected calibration error and of the calibration curve."""

    gauc_entries: int = Field(default=1 << 20, ge=1)
    """Distinct (group, logit) pairs kept per task for GAUC (28 bytes each). Beyond this number, groups are sampled by
    hash."""

    slice_ids: int = Field(default=64, ge=1, le=4096)
    """Ids 0 … slice_ids - 1 of a sliced feature get figures of their own; all other ids share the slice ``other``."""

    slice_score_keys: int = Field(default=1 << 14, ge=1 << 10, le=1 << 24)
    """Distinct logits kept per task and slice; see ``score_keys``."""
