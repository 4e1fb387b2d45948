"""Snapshots: the checkpoints at the ends of a cyclic schedule's cycles, which are kept for an ensemble."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ziggurat.checkpoint.format.manifest import Manifest
from ziggurat.checkpoint.store.store import Unreachable
from ziggurat.core.errors import RunFolderError

SNAPSHOT = "snapshot"
"""The key of a checkpoint's state that says whether it is one."""


def snapshots(steps: Sequence[int], manifest_of: Callable[[int], Manifest | None]) -> list[int]:
    """Returns those steps whose checkpoints are snapshots, as their manifests say; a damaged manifest says nothing.

    Args:
        steps: steps of checkpoints.
        manifest_of: returns the manifest of a step; None if it is of format 1.

    Raises:
        Unreachable: the store gives no answer.
    """
    return [step for step in steps if _is_snapshot(step, manifest_of)]


def _is_snapshot(step: int, manifest_of: Callable[[int], Manifest | None]) -> bool:
    try:
        manifest = manifest_of(step)
    except Unreachable:
        raise
    except RunFolderError:
        return False
    return manifest is not None and manifest.state.get(SNAPSHOT) is True
