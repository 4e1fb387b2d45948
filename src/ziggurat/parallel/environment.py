"""Reads the environment variables in which a launcher (torchrun, ours or a scheduler) describes the ranks."""

from __future__ import annotations

import os

from ziggurat.core.errors import EnvironmentMismatch, shorten

_MEANINGS = {
    "WORLD_SIZE": "how many ranks there are",
    "RANK": "which of them this one is, from 0",
    "LOCAL_WORLD_SIZE": "how many ranks are on this host",
    "LOCAL_RANK": "which of those this one is, from 0",
    "MASTER_PORT": "the port at which the ranks meet",
}

_NEEDED = ("RANK", "LOCAL_WORLD_SIZE")
_START = "start ranks with `ziggurat train --nproc N` or torchrun; for one process unset WORLD_SIZE"


def environment_integer(name: str, default: int | None = None) -> int:
    """Returns the integer in an environment variable.

    Args:
        name: a variable that launchers set.
        default: the value if it is not set.

    Raises:
        EnvironmentMismatch: it is not an integer, or is not set and has no default.
    """
    found = os.environ.get(name)
    if found is None and default is not None:
        return default
    if found is None or not (found.isascii() and found.isdigit()):
        received = "is not set" if found is None else f"is {shorten(found)}"
        raise EnvironmentMismatch(
            f"the environment variable {name} {received}; launchers set it to a whole number, {_MEANINGS[name]}",
            "start ranks with `ziggurat train --nproc N` or torchrun; for one process "
            "`unset WORLD_SIZE RANK LOCAL_WORLD_SIZE LOCAL_RANK`",
        )
    return int(found)


def check_world() -> None:
    """Validates the variables that launchers set. For a single process only WORLD_SIZE matters.

    Raises:
        EnvironmentMismatch: a variable is missing or invalid (the message names it), or RANK is not below WORLD_SIZE.
    """
    size = environment_integer("WORLD_SIZE", 1)
    if size <= 1:
        return
    for name in ("RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK"):
        environment_integer(name, 0)
    if missing := [name for name in _NEEDED if name not in os.environ]:
        raise EnvironmentMismatch(f"WORLD_SIZE={size}, but {' and '.join(missing)} not set", _START)
    if (rank := environment_integer("RANK")) >= size:
        raise EnvironmentMismatch(f"RANK={rank} and WORLD_SIZE={size}: ranks count from 0 to {size - 1}", _START)


def has_other_ranks() -> bool:
    """Returns whether a launcher started several ranks; False if WORLD_SIZE is not set or invalid."""
    size = os.environ.get("WORLD_SIZE", "1")
    return size.isascii() and size.isdigit() and int(size) > 1
