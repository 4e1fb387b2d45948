"""The cost network and the policy that a planner has: those of a folder, or those that come with ziggurat."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.planning.autoshard.cost_network import CostNetwork
from ziggurat.planning.autoshard.planner import AutoShard
from ziggurat.planning.autoshard.policy import Policy

SHIPPED = Path(__file__).with_name("shipped")
NETWORK, POLICY = "network.safetensors", "policy.safetensors"


def learned(config: AutoShard.Config) -> tuple[CostNetwork, Policy]:
    """What the config names; a folder without a policy goes with the one that comes with ziggurat.

    Raises:
        ConfigError: no cost network lies there.
    """
    folder = config.learned or SHIPPED
    if not (folder / NETWORK).is_file():
        raise ConfigError(
            f"planning.planner.learned: {folder} has no {NETWORK}",
            "measure one with `ziggurat doctor --measure`, or leave learned out for the one that comes with ziggurat",
        )
    policy = folder / POLICY
    return CostNetwork.load(folder / NETWORK), Policy.load(policy if policy.is_file() else SHIPPED / POLICY)
