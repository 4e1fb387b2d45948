"""Checks saved fitted state: its version, and the values that every encoder saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ziggurat.core.errors import DataError, shorten
from ziggurat.core.untrusted import Damage

DAMAGED = Damage(
    DataError, "delete the prepared folder and run `ziggurat prepare` again; for a run, restore its folder `encoders`"
)
"""What the errors about a damaged transform look like."""
_MOST_ROWS = 2**62


def check_version(part: str, found: object, *known: int) -> None:
    """Checks that saved state has a version that this ziggurat reads.

    Args:
        part: what was saved, for the message.
        found: the version of the saved state.
        known: the versions that this ziggurat reads.

    Raises:
        DataError: the version is another.
    """
    if found not in known or isinstance(found, bool):
        versions = f"version{'s' if len(known) > 1 else ''} {' and '.join(map(str, known))}"
        raise DataError(
            f"{part}: the saved state has version {found!r}, but this ziggurat reads {versions}",
            "delete the prepared folder and run `ziggurat prepare` again, or use the ziggurat that wrote it",
        )


def saved_integer(figures: Mapping[str, Any], name: str, least: int | None) -> int:
    """Returns a whole number of saved state.

    Args:
        figures: the saved JSON.
        name: the key of the number.
        least: the least value allowed, with 2^62 as the largest one; None allows any number.

    Raises:
        DataError: it is missing, no whole number, or outside the range.
    """
    value = figures.get(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DAMAGED.of(name, f"expected a whole number, received {shorten(value)}")
    if least is not None and not least <= value <= _MOST_ROWS:
        raise DAMAGED.of(name, f"expected a number from {least} to 2^62, received {shorten(value)}")
    return value
