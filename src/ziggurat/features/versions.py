"""Refusing fitted state of another version, in one sentence for every part."""

from __future__ import annotations

from ziggurat.core.errors import DataError


def check_version(part: str, found: object, known: int) -> None:
    """Nothing when ``found`` is ``known``.

    Raises:
        DataError: otherwise; fitted state is never guessed at.
    """
    if found != known:
        raise DataError(
            f"{part}: saved state of version {found!r}, this ziggurat reads version {known}",
            "delete the prepared folder and run `ziggurat prepare` again, or use the ziggurat that wrote it",
        )
