"""Loads a planner's cost network and policy, from a folder or from those shipped with ziggurat."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.planning.autoshard.cost_network import CostNetwork
from ziggurat.planning.autoshard.costs import LearnedCosts
from ziggurat.planning.autoshard.policy import Policy

SHIPPED = Path(__file__).with_name("shipped")
NETWORK, POLICY = "network.safetensors", "policy.safetensors"


def learned_costs(folder: Path | None) -> LearnedCosts:
    """Returns the costs by the cost network in ``folder``, or by the one shipped with ziggurat if it is None.

    Raises:
        ConfigError: the folder has no cost network.
    """
    path = (folder or SHIPPED) / NETWORK
    if not path.is_file():
        raise ConfigError(
            f"planning.planner.learned: {path.parent} has no {NETWORK}",
            "measure one with `ziggurat doctor --measure`, or leave learned out for the one that comes with ziggurat",
        )
    return LearnedCosts(CostNetwork.load(path))


def learned_policy(folder: Path | None) -> Policy:
    """Returns the policy in ``folder``, or the one shipped with ziggurat if there is none."""
    path = (folder or SHIPPED) / POLICY
    return Policy.load(path if path.is_file() else SHIPPED / POLICY)
