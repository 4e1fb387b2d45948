"""Bytes and bandwidths as people write them: ``8GB``, ``64 GiB``, ``900 GB/s``, ``25 Gbit/s``."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any

import pydantic

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {f"{prefix}i": 1024**power for power, prefix in enumerate("kmgt", start=1)}
_PATTERN = re.compile(r"\s*([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([kmgt]?i?)(b|byte|bytes|bit|bits)?(/s|ps)?\s*", re.I)


def parse_bytes(value: Any) -> Any:
    """Parses ``"8GB"`` into 8,000,000,000 and ``"8GiB"`` into 8,589,934,592; returns anything but text unchanged.

    Raises:
        ValueError: the text is not a number of bytes.
    """
    if not isinstance(value, str):
        return value
    amount, bits, rate = _parse(value)
    if amount is None or bits or rate:
        raise ValueError(f"expected bytes, as in 8GB or 512MiB; received {value!r}")
    return round(amount)


def parse_bandwidth(value: Any) -> Any:
    """Parses ``"25Gbit/s"`` into 3.125e9 bytes a second; returns anything but text unchanged.

    Raises:
        ValueError: the text is not a number of bytes or bits a second.
    """
    if not isinstance(value, str):
        return value
    amount, bits, rate = _parse(value)
    if amount is None or not (rate or bits):
        raise ValueError(f"expected a bandwidth, as in 900GB/s or 25Gbit/s; received {value!r}")
    if re.search(r"b(/s|ps)?\s*$", value):  # a small b: bits to some readers, bytes to others
        raise ValueError(f"{value!r} may be bits or bytes; write Gbit/s or GB/s, for example")
    return amount / 8 if bits else amount


def _parse(value: str) -> tuple[float | None, bool, bool]:
    """Returns the amount (None if the text has no finite one), whether it counts bits, whether it is per second."""
    match = _PATTERN.fullmatch(value)
    if match is None:
        return None, False, False
    number, prefix, unit, rate = match.groups(default="")
    amount = float(number) * (_DECIMAL | _BINARY).get(prefix.lower(), math.nan)
    return (amount if math.isfinite(amount) else None), unit.lower().startswith("bit"), bool(rate)


def format_bytes(value: float) -> str:
    """Formats bytes as in ``12.3 GB``, in the decimal unit that leaves one to three digits before the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB" if value < 999.5 else f"{value:,.0f} TB"


def format_seconds(value: float) -> str:
    """Formats seconds as in ``1.23 ms``, in the unit that leaves one to three digits before the point."""
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if abs(value) * factor < 999.5:
            return f"{value * factor:.3g} {unit}"
    return f"{value:.3g} s"


_TEXT_OR_NUMBER: dict[str, Any] = {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}

Bytes = Annotated[
    int, pydantic.Field(gt=0), pydantic.BeforeValidator(parse_bytes), pydantic.WithJsonSchema(_TEXT_OR_NUMBER)
]
"""A number of bytes: 8e9 or ``8GB``."""

BytesOrZero = Annotated[
    int, pydantic.Field(ge=0), pydantic.BeforeValidator(parse_bytes), pydantic.WithJsonSchema(_TEXT_OR_NUMBER)
]
"""A number of bytes that may be 0."""

Bandwidth = Annotated[
    float, pydantic.Field(gt=0), pydantic.BeforeValidator(parse_bandwidth), pydantic.WithJsonSchema(_TEXT_OR_NUMBER)
]
"""Bytes a second: 9e11, ``900GB/s`` or ``25Gbit/s``."""
