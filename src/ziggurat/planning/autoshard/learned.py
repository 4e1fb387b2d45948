"""Loads a planner's cost network and policy, from a folder or from those shipped with ziggurat."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.errors import ConfigError, DataError, shorten
from ziggurat.planning.autoshard.cost_network import CostNetwork
from ziggurat.planning.autoshard.costs import LearnedCosts
from ziggurat.planning.autoshard.policy import Policy

SHIPPED = Path(__file__).with_name("shipped")
NETWORK, POLICY = "network.safetensors", "policy.safetensors"
_HINT = "measure again: `ziggurat doctor --measure --out FOLDER`"


def learned_costs(folder: Path | None) -> LearnedCosts:
    """Returns the costs by the cost network in ``folder``, or by the one shipped with ziggurat if it is None.

    Raises:
        ConfigError: the folder has no cost network.
        DataError: the cost network is damaged, or does not say what it was measured on.
    """
    path = (folder or SHIPPED) / NETWORK
    if not path.is_file():
        raise ConfigError(
            f"planning.planner.learned: {path.parent} has no {NETWORK}",
            "measure one with `ziggurat doctor --measure`, or leave learned out for the one that comes with ziggurat",
        )
    network = CostNetwork.load(path)
    origin, held_out = network.origin, network.origin.get("held_out", {"median": 0.0})
    for key in ("machine", "kind", "date"):
        if not isinstance(origin.get(key), str):
            raise DataError(f"{path}: does not say what it was measured on: {key} is {shorten(origin.get(key))}", _HINT)
    if not isinstance(held_out, dict) or not isinstance(held_out.get("median"), int | float):
        raise DataError(f"{path}: does not say how accurate it is: held_out is {shorten(held_out)}", _HINT)
    return LearnedCosts(network)


def learned_policy(folder: Path | None) -> Policy:
    """Returns the policy in ``folder``, or the one shipped with ziggurat if there is none."""
    path = (folder or SHIPPED) / POLICY
    return Policy.load(path if path.is_file() else SHIPPED / POLICY)


def proposer_path(folder: Path, number: int) -> Path:
    """Returns the file of the policy with this number, from 1, of several that propose together."""
    return folder / f"proposer-{number}.safetensors"


def learned_policies(folder: Path | None, count: int) -> tuple[Policy, ...]:
    """Returns policies that propose together: for a ``count`` of 1 that of :func:`learned_policy`.

    Raises:
        ConfigError: the folder has fewer than ``count``; the policy that comes with ziggurat is a single one.
        DataError: a policy is damaged.
    """
    if count == 1:
        return (learned_policy(folder),)
    paths = [proposer_path(folder or SHIPPED, number) for number in range(1, count + 1)]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        single = "the policy that comes with ziggurat is a single one"
        where = single if folder is None else f"{folder} lacks {missing[0]}"
        raise ConfigError(
            f"planning.planner.proposers: {count}, but {where}",
            "train them with `ziggurat plan CONFIG --train` and name their folder in planning.planner.learned, or "
            "leave proposers out",
        )
    return tuple(Policy.load(path) for path in paths)
