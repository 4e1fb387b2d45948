"""Parses times that are written by a pattern, such as ``%d/%m/%Y %H:%M``: the directives of strptime, read strictly.

==========  ========================================================================================================
directive   text
==========  ========================================================================================================
%Y %y       a year of four digits; of two digits, where 69 to 99 are 1969 to 1999, and 00 to 68 are 2000 to 2068
%m %d       month and day, of one or two digits
%b %B       an English month name, short or long, in any case
%a %A       an English weekday name, which is not compared with the date
%j          day of the year, of three digits
%H %I %p    hour of 24; hour of 12, which needs %p: AM or PM, in any case
%M %S %f    minutes; seconds; a fraction of up to nine digits, of which those beyond microseconds are truncated
%z          Z, UTC, GMT, or an offset: +02, +0200, +02:00. Without it, times are UTC.
%F %T %R %D are short for ``%Y-%m-%d``, ``%H:%M:%S``, ``%H:%M`` and ``%m/%d/%y``
==========  ========================================================================================================

Where no other character stands between two numbers, as in ``%y%m%d%H``, each has all of its digits. A space stands for
one or more spaces. Parts that a pattern leaves out are the first ones: ``%Y-%m`` is the first of the month. Hour 24 and
leap seconds are rejected, as in ISO 8601 text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

MAX_PATTERN = 200
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_LONG_MONTHS = ("uary", "ruary", "ch", "il", "", "e", "y", "ust", "t|tember", "ober", "ember", "ember")
_MONTH = "|".join(f"{short}(?:{rest})?" for short, rest in zip(_MONTHS, _LONG_MONTHS, strict=True))
_WEEKDAY = "mon(?:day)?|tue(?:s|sday)?|wed(?:nesday)?|thu(?:rs?|rsday)?|fri(?:day)?|sat(?:urday)?|sun(?:day)?"
_SHORT = {"F": "%Y-%m-%d", "T": "%H:%M:%S", "R": "%H:%M", "D": "%m/%d/%y"}
_TWO_DIGITS = {"m": "month", "d": "day", "H": "hour", "I": "hour12", "M": "minute", "S": "second"}
_TEXTS = {
    "Y": ("year", "[0-9]{4}"),
    "y": ("year2", "[0-9]{2}"),
    "j": ("yearday", "[0-9]{3}"),
    "b": ("monthname", f"(?i:{_MONTH})"),
    "B": ("monthname", f"(?i:{_MONTH})"),
    "a": ("weekday", f"(?i:{_WEEKDAY})"),
    "A": ("weekday", f"(?i:{_WEEKDAY})"),
    "p": ("half", r"(?i:[ap]\.?m\.?)"),
    "f": ("fraction", "[0-9]{1,9}"),
    "z": ("zone", "(?:Z|UTC|GMT|[-+][0-9]{2}(?::?[0-9]{2})?)"),
}
_NUMBERS = frozenset("YymdHIMSjf")
DIRECTIVES = "".join(sorted({*_TWO_DIGITS, *_TEXTS, *_SHORT}))
_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_EXAMPLE = datetime(2024, 12, 31, 23, 59, 58, 250_000)


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A pattern that was understood.

    Attributes:
        text: the pattern as it was written.
        regex: a regular expression with a named group per directive, which Python and polars read in the same way.
        digits: number of digits if the text consists of digits alone, else None.
    """

    text: str
    regex: re.Pattern[str]
    digits: int | None

    @property
    def example(self) -> str:
        """A time that is written like this."""
        plain = _expanded(self.text).replace("%-", "%").replace("%z", "+00:00")
        return _EXAMPLE.strftime(plain)

    @property
    def has_hours(self) -> bool:
        """Whether the text holds the time of day."""
        return "hour" in self.regex.groupindex or "hour12" in self.regex.groupindex


@lru_cache(maxsize=256)
def time_pattern(text: str) -> TimePattern:
    """Returns the pattern that ``text`` describes.

    Raises:
        ValueError: a directive is unknown or used twice, or the parts do not make a date; the message says which.
    """
    if len(text) > MAX_PATTERN:
        raise ValueError(f"received a pattern of {len(text):,} characters; at most {MAX_PATTERN} are allowed")
    tokens = list(_tokens(_expanded(text)))
    groups: list[str] = []
    regex = ""
    digits: int | None = 0
    for place, (directive, literal) in enumerate(tokens):
        if directive is None:
            regex += " +" if literal == " " else re.escape(literal)
            digits = None
            continue
        beside = {tokens[near][0] for near in (place - 1, place + 1) if 0 <= near < len(tokens)}
        if directive in _TWO_DIGITS:
            count = "{2}" if beside & _NUMBERS else "{1,2}"
            name, expression = _TWO_DIGITS[directive], f"[0-9]{count}"
            width = 2
        else:
            name, expression = _TEXTS[directive]
            width = {"Y": 4, "y": 2, "j": 3}.get(directive, 0)
        if name in groups:
            raise ValueError(f"%{directive} states again what the pattern states before it")
        groups.append(name)
        regex += f"(?P<{name}>{expression})"
        digits = digits + width if digits is not None and width else None
    _check(set(groups))
    return TimePattern(text, re.compile(regex), digits)


def parse_pattern_time(text: str, pattern: TimePattern) -> float | None:
    """Returns one time in seconds since 1970 UTC; None if ``text`` is not written like the pattern.

    The reference for :func:`cast_pattern_times`.
    """
    match = pattern.regex.fullmatch(text)
    if match is None:
        return None
    found = match.groupdict()
    year = int(found["year"]) if "year" in found else _full_year(int(found["year2"]))
    month = _MONTHS.index(found["monthname"][:3].lower()) + 1 if "monthname" in found else int(found.get("month", 1))
    hour = int(found.get("hour", 0))
    if "half" in found:
        hour = int(found["hour12"])
        if not 1 <= hour <= 12:
            return None
        hour = hour % 12 + (12 if found["half"][0] in "pP" else 0)
    micro = int(found.get("fraction", "0")[:6].ljust(6, "0"))
    offset = _zone_seconds(found.get("zone", "Z"))
    try:
        day = datetime(year, month, int(found.get("day", 1)))
        if "yearday" in found:
            day += timedelta(days=int(found["yearday"]) - 1)
            if day.year != year:
                return None
        local = day.replace(
            hour=hour, minute=int(found.get("minute", 0)), second=int(found.get("second", 0)), microsecond=micro
        )
    except (ValueError, OverflowError):
        return None
    if offset is None:
        return None
    return float((local - _EPOCH - timedelta(seconds=offset)) // _MICROSECOND) / 1e6


def cast_pattern_times(text: pa.Array, pattern: TimePattern) -> pa.Array | None:
    """Converts a ``string`` array with nulls to float64 seconds since 1970 UTC; None if a cell is irregular.

    Cells that recur are parsed once.
    """
    head = text.slice(0, 4_096)
    if len(text) > len(head) and len(head.unique()) < len(head) // 2:
        encoded = text.dictionary_encode()
        values = cast_pattern_times(encoded.dictionary, pattern)
        return None if values is None else values.take(encoded.indices)
    cells = pl.Series("", text, dtype=pl.String)
    groups = cells.str.extract_groups(f"^(?:{pattern.regex.pattern})$").struct.unnest()
    present = cells.is_not_null().to_numpy()
    if int(groups.to_series(0).null_count()) != len(cells) - int(present.sum()):
        return None
    fields = _Fields(groups, len(cells))
    years = fields.number("year", 1970) if "year" in groups.columns else _full_years(fields.number("year2", 70))
    months = fields.months() if "monthname" in groups.columns else fields.number("month", 1)
    days = fields.number("day", 1)
    hours, minutes, seconds = fields.number("hour", 0), fields.number("minute", 0), fields.number("second", 0)
    fine = (years >= 1) & (months >= 1) & (months <= 12) & (minutes < 60) & (seconds < 60) & (days >= 1)
    if "half" in groups.columns:
        hours = fields.number("hour12", 12)
        fine &= (hours >= 1) & (hours <= 12)
        hours = hours % 12 + 12 * fields.is_afternoon()
    fine &= hours < 24
    starts, lengths = _months(years, np.clip(months, 1, 12))
    fine &= days <= lengths
    if "yearday" in groups.columns:
        days = fields.number("yearday", 1)
        year_lengths = 365 + ((years % 4 == 0) & ((years % 100 != 0) | (years % 400 == 0)))
        fine &= (days >= 1) & (days <= year_lengths)
    offsets = fields.offsets()
    if offsets is None or not fine[present].all():
        return None
    seconds_of_day = hours * 3600 + minutes * 60 + seconds - offsets
    micro = ((starts + days - 1) * 86_400 + seconds_of_day) * 1_000_000 + fields.fraction()
    return pa.array(micro.astype(np.float64) / 1e6, mask=~present)


class _Fields:
    """The parts of many times, as integers; where a cell is missing, a default."""

    def __init__(self, groups: pl.DataFrame, rows: int) -> None:
        self._groups, self._rows = groups, rows

    def number(self, name: str, default: int) -> npt.NDArray[np.int64]:
        if name not in self._groups.columns:
            return np.full(self._rows, default, np.int64)
        return self._groups[name].cast(pl.Int64).fill_null(default).to_numpy()

    def months(self) -> npt.NDArray[np.int64]:
        names = self._groups["monthname"].str.slice(0, 3).str.to_lowercase()
        numbers = {name: number for number, name in enumerate(_MONTHS, 1)}
        return names.replace_strict(numbers, default=1, return_dtype=pl.Int64).to_numpy()

    def is_afternoon(self) -> npt.NDArray[np.bool_]:
        return self._groups["half"].str.to_lowercase().str.starts_with("p").fill_null(False).to_numpy()

    def fraction(self) -> npt.NDArray[np.int64]:
        if "fraction" not in self._groups.columns:
            return np.zeros(self._rows, np.int64)
        return self._groups["fraction"].str.pad_end(6, "0").str.slice(0, 6).cast(pl.Int64).fill_null(0).to_numpy()

    def offsets(self) -> npt.NDArray[np.int64] | None:
        """Returns the seconds east of UTC; None if one is a day or more."""
        if "zone" not in self._groups.columns:
            return np.zeros(self._rows, np.int64)
        zones = self._groups["zone"]
        known = {zone: _zone_seconds(zone) for zone in zones.drop_nulls().unique().to_list()}
        if None in known.values():
            return None
        return zones.replace_strict(known, default=0, return_dtype=pl.Int64).to_numpy()


def _months(
    years: npt.NDArray[np.int64], months: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the first day of each month, in days since 1970, and the number of its days."""
    counted: Any = ((years - 1970) * 12 + months - 1).astype("datetime64[M]")
    starts = counted.astype("datetime64[D]").astype(np.int64)
    ends = (counted + 1).astype("datetime64[D]").astype(np.int64)
    return starts, ends - starts


def _expanded(text: str) -> str:
    return re.sub("%([FTRD])", lambda match: _SHORT[match[1]], text)


def _tokens(text: str) -> Iterator[tuple[str | None, str]]:
    """Yields (directive, "") or (None, character); spaces that follow each other are one."""
    place = 0
    while place < len(text):
        if text[place] != "%":
            if not (text[place] == " " and place and text[place - 1] == " "):
                yield None, text[place]
            place += 1
            continue
        letter = text[place + 1 : place + 2]
        if letter == "-":  # %-d, as strftime writes numbers without zeros: one or two digits are read anyway
            place, letter = place + 1, text[place + 2 : place + 3]
        if letter == "%":
            yield None, "%"
        elif letter in _TWO_DIGITS or letter in _TEXTS:
            yield letter, ""
        else:
            zone = "; write times with an offset (%z), as names of zones are ambiguous" if letter == "Z" else ""
            allowed = " ".join(f"%{each}" for each in DIRECTIVES)
            raise ValueError(f"unknown directive {'%' + letter!r}{zone}; allowed: {allowed}")
        place += 2


def _check(groups: set[str]) -> None:
    if len(groups & {"year", "year2"}) != 1:
        raise ValueError("a year is needed, either %Y (four digits) or %y (two)")
    months = groups & {"month", "monthname"}
    if len(months) == 2:
        raise ValueError("the month is stated twice")
    if "yearday" in groups and (months or "day" in groups):
        raise ValueError("the day of the year (%j) stands beside a month or a day")
    if "day" in groups and not months:
        raise ValueError("the day (%d) needs a month, %m or %b")
    if ("half" in groups) != ("hour12" in groups) or {"hour", "hour12"} <= groups:
        raise ValueError("hours are written with %H, or with both %I and %p")
    hours = bool(groups & {"hour", "hour12"})
    if ("minute" in groups and not hours) or ("second" in groups and "minute" not in groups):
        raise ValueError("minutes need hours, and seconds need minutes")
    if "fraction" in groups and "second" not in groups:
        raise ValueError("a fraction (%f) needs seconds (%S)")


def _full_year(year: int) -> int:
    return year + (1900 if year >= 69 else 2000)


def _full_years(years: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return years + np.where(years >= 69, 1900, 2000)


def _zone_seconds(zone: str) -> int | None:
    """Returns seconds east of UTC; None if the offset is a day or more, or its minutes are 60 or more."""
    if zone in {"Z", "UTC", "GMT"}:
        return 0
    digits = zone[1:].replace(":", "")
    hours, minutes = int(digits[:2]), int(digits[2:] or 0)
    if hours > 23 or minutes > 59:
        return None
    return (hours * 3600 + minutes * 60) * (-1 if zone[0] == "-" else 1)
