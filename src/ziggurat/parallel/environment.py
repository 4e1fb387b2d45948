"""What a launcher says of the ranks in environment variables: torchrun, ours, or a scheduler by hand."""

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


def number_of(name: str, default: int | None = None) -> int:
    """The whole number that the environment variable holds.

    Args:
        name: one that launchers set.
        default: where it is not set.

    Raises:
        EnvironmentMismatch: it holds something else, or is not set and has no default.
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
    """Nothing, where the variables hold what launchers set. For one process only its WORLD_SIZE counts.

    Raises:
        EnvironmentMismatch: one does not, or is not there; it is named. Or this rank is beyond the last.
    """
    size = number_of("WORLD_SIZE", 1)
    if size <= 1:
        return
    for name in ("RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK"):
        number_of(name, 0)
    if missing := [name for name in _NEEDED if name not in os.environ]:
        raise EnvironmentMismatch(f"WORLD_SIZE={size}, but {' and '.join(missing)} not set", _START)
    if (rank := number_of("RANK")) >= size:
        raise EnvironmentMismatch(f"RANK={rank} and WORLD_SIZE={size}: ranks count from 0 to {size - 1}", _START)


def is_one_of_several() -> bool:
    """Whether a launcher says that there are other ranks; no, where nobody can tell."""
    size = os.environ.get("WORLD_SIZE", "1")
    return size.isascii() and size.isdigit() and int(size) > 1
