"""The errors of an export that cannot be trusted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ziggurat.core.errors import DataError
from ziggurat.core.untrusted import Damage

DAMAGED = Damage(DataError, "export the run again: ziggurat export RUN OUT")


def check_version(values: Mapping[str, Any], path: Path, *reads: int) -> None:
    """Refuses a file of another version of its format.

    Raises:
        DataError: it is of another.
    """
    version = values.get("format_version")
    if version not in reads:
        raise DataError(
            f"{path}: has format version {version!r}, this ziggurat reads {' and '.join(map(str, reads))}",
            "export the run again, or use the ziggurat that exported it",
        )
