"""Times written as text, in ISO 8601, as seconds since 1970 UTC.

Grammar: ``2024-05-01``, and behind it ``T`` or a space and ``12``, ``12:30``, ``12:30:00`` or ``12:30:00.5``; behind a
time of day a zone: ``Z``, ``+02``, ``+0200``, ``+02:00`` or `` UTC``. **Without a zone it is UTC.** Digits beyond
microseconds are cut off; 24:00 and leap seconds are refused.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pyarrow as pa

from ziggurat.data.readers.arrow_compute import pc

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?(?:(Z| UTC)|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)
_ZONED = r"[T ].*(Z|[-+]\d\d(:?\d\d)?)$"
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def parse_moment(text: str) -> float | None:
    """The seconds since 1970 UTC of one time; None where ``text`` is none. The reference of :func:`cast_moments`."""
    found = _ISO.fullmatch(text)
    if found is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in found.groups()[:6])
    fraction, _, sign, zone_hours, zone_minutes = found.groups()[6:]
    microsecond = int((fraction or "0")[:6].ljust(6, "0"))
    east = timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0))
    if east >= timedelta(days=1) or int(zone_minutes or 0) > 59:
        return None
    try:
        local = datetime(year, month, day, hour, minute, second, microsecond)
    except ValueError:
        return None
    since = local - _EPOCH + (east if sign == "-" else -east)
    return float(since // _MICROSECOND) / 1e6


def cast_moments(text: pa.Array) -> pa.Array | None:
    """float64 seconds since 1970 UTC of a ``string`` array with nulls; None when a cell has to be looked at."""
    if pc.any(pc.starts_with(text, "0000")).as_py():  # a year to pyarrow, not to Python
        return None
    moments = _cast(text, pa.timestamp("us"))
    if moments is None:
        text = pc.replace_substring_regex(text, _BEYOND_MICROSECONDS, r"\1")
        text = pc.replace_substring_regex(text, " UTC$", "Z")
        nothing = pa.scalar(None, pa.string())
        zoned = pc.match_substring_regex(text, _ZONED)
        here = _cast(pc.if_else(zoned, text, nothing), pa.timestamp("us", "UTC"))
        bare = _cast(pc.if_else(zoned, nothing, text), pa.timestamp("us"))
        if here is None or bare is None:
            return None
        moments = pc.coalesce(here.cast(pa.timestamp("us")), bare)
    return seconds(moments)


def seconds(moments: pa.Array) -> pa.Array:
    """Arrow timestamps (those without a zone are UTC) or dates as float64 seconds since 1970 UTC."""
    microseconds = moments.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return pc.divide(microseconds.cast(pa.float64(), safe=False), 1e6)


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return None
