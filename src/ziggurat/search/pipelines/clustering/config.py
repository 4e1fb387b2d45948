"""How clusters of columns are learnt."""

from __future__ import annotations

import pydantic

from ziggurat.core.config import Config
from ziggurat.policies.discrete_rules import DiscreteRule


class PolicyConfig(Config):
    """How clusters are learnt."""

    clusters: int = pydantic.Field(default=3, ge=1, le=64)
    """C, at most."""
    pipelines: int = pydantic.Field(default=10, ge=1)
    """N, the pipelines that an episode evaluates at most; fewer where the budget has less than ten episodes of them."""
    episodes: int = pydantic.Field(default=50, ge=0)
    """Episodes at most."""
    pretraining: int = pydantic.Field(default=200, ge=0)
    """Steps of the autoencoder alone."""
    learning_rate: float = pydantic.Field(default=1e-2, gt=0.0)
    """The step size of Adam at the beginning of a cycle."""
    kl: float = pydantic.Field(default=0.1, ge=0.0)
    """Factor of KL(p‖q)."""
    entropy: float = pydantic.Field(default=0.01, ge=0.0)
    """Factor of the entropy, which is subtracted from the loss."""
    cycles: int = pydantic.Field(default=1, ge=1)
    """Cycles of the step size, at whose ends snapshots of the policy are kept. 1: the step size is constant and the
    last policy decides alone, which was ahead of an ensemble in trials."""
    members: int | None = pydantic.Field(default=None, ge=1)
    """How many decide together: the policy as it is, and the latest snapshots before; default: all. 1: the last policy
    decides alone, however the step size went."""
    rule: DiscreteRule = "vote"
    """How the snapshots decide together which cluster a column is in."""
    momentum: float = pydantic.Field(default=0.8, ge=0.0, lt=1.0)
    """How much of the baseline stays in each episode."""
