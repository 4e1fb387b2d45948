"""Converts ISO 8601 text to seconds since 1970 UTC.

Grammar: a date ``2024-05-01``, optionally followed by ``T`` or a space and a time of day ``12``, ``12:30``,
``12:30:00`` or ``12:30:00.5``; a time of day is optionally followed by a zone: ``Z``, ``+02``, ``+0200``, ``+02:00`` or
`` UTC``. **Without a zone, times are UTC.** Digits beyond microseconds are truncated; 24:00 and leap seconds are
rejected.
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


def parse_iso_time(text: str) -> float | None:
    """Returns one time in seconds since 1970 UTC; None if ``text`` is not a time.

    The reference for :func:`cast_iso_times`.
    """
    match = _ISO.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    fraction, _, sign, zone_hours, zone_minutes = match.groups()[6:]
    microsecond = int((fraction or "0")[:6].ljust(6, "0"))
    utc_offset = timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0))
    if utc_offset >= timedelta(days=1) or int(zone_minutes or 0) > 59:
        return None
    try:
        local = datetime(year, month, day, hour, minute, second, microsecond)
    except ValueError:
        return None
    elapsed = local - _EPOCH + (utc_offset if sign == "-" else -utc_offset)
    return float(elapsed // _MICROSECOND) / 1e6


def cast_iso_times(text: pa.Array) -> pa.Array | None:
    """Converts a ``string`` array with nulls to float64 seconds since 1970 UTC; None if a cell is irregular."""
    if pc.any(pc.starts_with(text, "0000")).as_py():  # pyarrow accepts the year 0, Python does not
        return None
    times = _cast(text, pa.timestamp("us"))
    if times is None:
        text = pc.replace_substring_regex(text, _BEYOND_MICROSECONDS, r"\1")
        text = pc.replace_substring_regex(text, " UTC$", "Z")
        null = pa.scalar(None, pa.string())
        has_zone = pc.match_substring_regex(text, _ZONED)
        aware = _cast(pc.if_else(has_zone, text, null), pa.timestamp("us", "UTC"))
        naive = _cast(pc.if_else(has_zone, null, text), pa.timestamp("us"))
        if aware is None or naive is None:
            return None
        times = pc.coalesce(aware.cast(pa.timestamp("us")), naive)
    return seconds(times)


def seconds(times: pa.Array) -> pa.Array:
    """Converts Arrow timestamps (UTC if they have no zone) or dates to float64 seconds since 1970 UTC."""
    microseconds = times.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
    return pc.divide(microseconds.cast(pa.float64(), safe=False), 1e6)


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        return None
