"""Groups of ranks that wait no longer than the process group does: torch gives each group 30 minutes of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import (
    _set_pg_timeout,  # pyright: ignore[reportPrivateUsage] - torch has no public name
)


def new_group(ranks: Sequence[int] | None = None) -> dist.ProcessGroup:
    """Returns a group with the timeout of the process group (``parallel.timeout_s``). All ranks call it.

    Args:
        ranks: its ranks; default: all.
    """
    return cast("dist.ProcessGroup", dist.new_group(None if ranks is None else list(ranks), timeout=_timeout()))


def limit_waits(mesh: DeviceMesh) -> DeviceMesh:
    """Gives the groups of a mesh the timeout of the process group; returns the mesh."""
    for group in mesh.get_all_groups():
        _set_pg_timeout(_timeout(), group)
    return mesh


def _timeout() -> timedelta:
    group = dist.group.WORLD
    assert group is not None
    backend: Any = group._get_backend(torch.device("cpu"))  # pyright: ignore[reportPrivateUsage] - torch has no public name
    return backend.options._timeout
