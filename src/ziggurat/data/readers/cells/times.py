"""Converts times to seconds since 1970 UTC: ISO 8601 text, text by a pattern, and numbers since 1970.

A time format is ``iso``, the name of a unit (``seconds`` to ``nanoseconds``, numbers since 1970), or a pattern
(:mod:`~ziggurat.data.readers.cells.time_patterns`).

Grammar of ISO 8601: a date ``2024-05-01``, optionally followed by ``T`` or a space and a time of day ``12``, ``12:30``,
``12:30:00`` or ``12:30:00.5``; a time of day is optionally followed by a zone: ``Z``, ``+02``, ``+0200``, ``+02:00`` or
`` UTC``. **Without a zone, times are UTC.** Digits beyond microseconds are truncated; 24:00 and leap seconds are
rejected.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta

import pyarrow as pa

from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.cells.time_patterns import cast_pattern_times, parse_pattern_time, time_pattern

ISO = "iso"
EPOCH_UNITS = {"seconds": 1.0, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
"""Name of a time format of numbers -> how many of them make a second."""

_ISO = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?(?:(Z| UTC)|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)
_ZONED = r"[T ].*(Z|[-+]\d\d(:?\d\d)?)$"
_BEYOND_MICROSECONDS = r"(\.\d{6})\d+"
_NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", re.ASCII)
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def checked_time_format(text: str) -> str:
    """Returns a time format that is known.

    Raises:
        ValueError: it is neither a known word nor a pattern that can be understood.
    """
    if "%" in text:
        time_pattern(text)
    elif text != ISO and text not in EPOCH_UNITS:
        raise ValueError(
            f'received {text!r}; allowed: {ISO}, {", ".join(EPOCH_UNITS)}, or a pattern such as "%d/%m/%Y %H:%M"'
        )
    return text


def time_example(time_format: str) -> str:
    """Returns a time that is written in this format, for hints."""
    if time_format == ISO:
        return "2024-05-01 or 2024-05-01T12:30:00Z"
    if time_format in EPOCH_UNITS:
        return f"{1_735_689_598 * int(EPOCH_UNITS[time_format])}"
    return time_pattern(time_format).example


def parse_time_text(text: str, time_format: str) -> float | None:
    """Returns one time in seconds since 1970 UTC; None if ``text`` is not written in this format.

    The reference for :func:`cast_times`.
    """
    if time_format == ISO:
        return parse_iso_time(text)
    if time_format in EPOCH_UNITS:
        value = float(text) / EPOCH_UNITS[time_format] if _NUMBER.fullmatch(text) else None
        return value if value is not None and abs(value) < float("inf") else None
    return parse_pattern_time(text, time_pattern(time_format))


def cast_times(text: pa.Array, time_format: str) -> pa.Array | None:
    """Converts a ``string`` array with nulls to float64 seconds since 1970 UTC; None if a cell is irregular."""
    if time_format == ISO:
        return cast_iso_times(text)
    if time_format in EPOCH_UNITS:
        numbers = _cast(text, pa.float64())
        fine = numbers is not None and pc.all(pc.is_finite(numbers)).as_py() is not False
        return pc.divide(numbers, EPOCH_UNITS[time_format]) if fine else None
    return cast_pattern_times(text, time_pattern(time_format))


def holds_hours(time_format: str) -> bool:
    """Whether times of this format may have a time of day."""
    return "%" not in time_format or time_pattern(time_format).has_hours


def reads_numbers(time_format: str) -> bool:
    """Whether typed numbers can be times of this format: counts since 1970, or digits such as 20240501."""
    return time_format in EPOCH_UNITS or (time_format != ISO and time_pattern(time_format).digits is not None)


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


def time_of_number(value: float, time_format: str) -> float | None:
    """Returns the time that a typed number is, in a format of :func:`reads_numbers`; None if it is none.

    The reference for :func:`times_of_numbers`.

    Raises:
        OverflowError: the number is an integer beyond float64.
    """
    if time_format in EPOCH_UNITS:
        seconds_since = float(value) / EPOCH_UNITS[time_format]
        return seconds_since if abs(seconds_since) < float("inf") else None
    pattern = time_pattern(time_format)
    if not 0 <= value < 1e18 or value != int(value):
        return None
    return parse_pattern_time(str(int(value)).zfill(pattern.digits or 0), pattern)


def times_of_numbers(numbers: pa.Array, time_format: str) -> pa.Array:
    """Converts typed numbers to float64 seconds since 1970 UTC in a format of :func:`reads_numbers`.

    Digits such as 5010100 for ``%y%m%d%H`` get back the zeros that a number loses. A number that is no time gives NaN.
    """
    if time_format in EPOCH_UNITS:
        floats = numbers.cast(pa.float64(), safe=False)
        since = pc.divide(floats, EPOCH_UNITS[time_format])
        return pc.if_else(pc.is_finite(since), since, pa.scalar(float("nan")))
    pattern = time_pattern(time_format)
    try:
        text = pc.utf8_lpad(numbers.cast(pa.int64()).cast(pa.string()), width=pattern.digits or 0, padding="0")
        times = cast_pattern_times(text, pattern)
    except pa.ArrowInvalid:
        times = None
    if times is not None:
        return times
    return pa.array([_time_or_nan(value, time_format) for value in numbers.to_pylist()], pa.float64())


def _time_or_nan(value: float | None, time_format: str) -> float | None:
    time = None if value is None else time_of_number(value, time_format)
    return float("nan") if value is not None and time is None else time
