"""Bytes and bandwidths as people write them: ``8GB``, ``64 GiB``, ``900 GB/s``, ``25 Gbit/s``."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import pydantic

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {f"{prefix}i": 1024**power for power, prefix in enumerate("kmgt", start=1)}
_WRITTEN = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([kmgt]?i?)(b|byte|bytes|bit|bits)?(/s|ps)?\s*", re.I)


def parse_bytes(written: Any) -> Any:
    """``"8GB"`` -> 8,000,000,000 and ``"8GiB"`` -> 8,589,934,592; what is no text is handed on.

    Raises:
        ValueError: text that is no number of bytes.
    """
    if not isinstance(written, str):
        return written
    amount, bits, rate = _parse(written)
    if amount is None or bits or rate:
        raise ValueError(f"expected bytes, as in 8GB or 512MiB; received {written!r}")
    return round(amount)


def parse_bandwidth(written: Any) -> Any:
    """``"25Gbit/s"`` -> 3.125e9 bytes a second; what is no text is handed on.

    Raises:
        ValueError: text that is no number of bytes or bits a second.
    """
    if not isinstance(written, str):
        return written
    amount, bits, rate = _parse(written)
    if amount is None or not (rate or bits):
        raise ValueError(f"expected a bandwidth, as in 900GB/s or 25Gbit/s; received {written!r}")
    if re.search(r"b(/s|ps)?\s*$", written):  # a small b: bits to some, bytes to others
        raise ValueError(f"{written!r} may be bits or bytes; write Gbit/s or GB/s, or so")
    return amount / 8 if bits else amount


def _parse(written: str) -> tuple[float | None, bool, bool]:
    """The amount, None where there is no finite one; whether it counts bits; whether it is said to be by the second."""
    match = _WRITTEN.fullmatch(written)
    if match is None:
        return None, False, False
    number, prefix, unit, rate = match.groups(default="")
    amount = float(number) * (_DECIMAL | _BINARY).get(prefix.lower(), math.nan)
    return (amount if math.isfinite(amount) else None), unit.lower().startswith("bit"), bool(rate)


def written_bytes(value: float) -> str:
    """``12.3 GB``: in the decimal unit that leaves one to three digits before the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB" if value < 999.5 else f"{value:,.0f} TB"


def written_seconds(value: float) -> str:
    """``1.23 ms``: in the unit that leaves one to three digits before the point."""
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if abs(value) * factor < 999.5:
            return f"{value * factor:.3g} {unit}"
    return f"{value:.3g} s"


_TEXT_OR_NUMBER: dict[str, Any] = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}

Bytes = Annotated[
    int, pydantic.Field(gt=0), pydantic.BeforeValidator(parse_bytes), pydantic.WithJsonSchema(_TEXT_OR_NUMBER)
]
"""A number of bytes: 8e9 or ``8GB``."""

Bandwidth = Annotated[
    float, pydantic.Field(gt=0), pydantic.BeforeValidator(parse_bandwidth), pydantic.WithJsonSchema(_TEXT_OR_NUMBER)
]
"""Bytes a second: 9e11, ``900GB/s`` or ``25Gbit/s``."""
