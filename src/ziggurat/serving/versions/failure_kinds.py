"""What kinds of failures of following there are."""

from __future__ import annotations

from ziggurat.checkpoint.store.store import Unreachable
from ziggurat.core.errors import ConfigError, DataError, RunFolderError


def kind_of(error: Exception) -> str:
    """Returns a word for a failure, for metrics."""
    cause = error.__cause__ if isinstance(error, DataError) and isinstance(error.__cause__, OSError) else error
    if isinstance(error, Unreachable):
        return "unreachable"
    if isinstance(error, RunFolderError):
        return "no_checkpoint" if "no checkpoint yet" in error.problem else "damaged"
    if isinstance(error, ConfigError):
        return "unsuitable"
    if isinstance(error, DataError) and "no space left" in error.problem:
        return "disk_full"
    return "disk" if isinstance(cause, OSError) else "other"
