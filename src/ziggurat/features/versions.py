"""Checks the version of saved fitted state."""

from __future__ import annotations

from ziggurat.core.errors import DataError


def check_version(part: str, found: object, known: int) -> None:
    """Checks that saved state has the version that this ziggurat reads.

    Args:
        part: what was saved, for the message.
        found: the version of the saved state.
        known: the version that this ziggurat reads.

    Raises:
        DataError: the versions differ.
    """
    if found != known:
        raise DataError(
            f"{part}: the saved state has version {found!r}, but this ziggurat reads version {known}",
            "delete the prepared folder and run `ziggurat prepare` again, or use the ziggurat that wrote it",
        )
