"""Says of columns that look like times and are not read as such what they are, and how to write them.

Such columns are no inputs: as values they would not repeat.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from ziggurat.data.inference.times import FIRST, LAST, PARSED, ZONES, first_cell, grows, number_times, text_times
from ziggurat.data.inference.words import GROUP_WORDS, ID_WORDS, QUANTITY_WORDS, TIME_WORDS, words

_ZONE = r"\s*\(?\b([A-Z]{3,4})\)?$"
_OTHER_MONTHS = (  # how months begin in German, French, Spanish, Italian, Portuguese, Dutch, Polish, Russian
    "jan|feb|m[äa]r|mrt|apr|avr|abr|kwi|ma[ijyg]|mei|jun|juin|giu|cze|jul|juil|lug|lip|aug|ao[uû]|ago|sie|sep|set|wrz"
    "|o[ck]t|ott|out|pa[zź]|nov|lis|de[czsk]|dic|dez|gru|ene|gen|sty|f[eé]v|lut|янв|фев|мар|апр|ма[йя]|июн|июл|авг|сен"
    "|окт|ноя|дек"
)
_CLOCK_AND_ZONE = r"(?:[ T]+\d\S{0,20})?(?: [A-Za-z/_+:\d.-]{1,30}|\[[\w/+-]{1,40}\])?"
_LOOKS = (
    rf"(?i)^\W*(?:[^\W\d]+\.?,? )?\d{{1,2}}(?:\.|er|º)?[ /-]*(?:de |del )?(?:{_OTHER_MONTHS})[^\W\d]*\.?,?[ /-]*"
    r"(?:de |del )?(?:19|20)?\d{2}\b.{0,20}$",
    r"^(?:19|20)\d{2}-?W\d{2}(?:-?[1-7])?$",
    r"^(?:19|20)\d{2}[ /-]?Q[1-4]$|^Q[1-4][ /-]?(?:19|20)\d{2}$",
    rf"^(?:19|20)\d{{2}}[-/.年](?:0?[1-9]|1[0-2])[-/.月](?:0?[1-9]|[12]\d|3[01])日?{_CLOCK_AND_ZONE}$",
    rf"^(?:0?[1-9]|[12]\d|3[01])[-/.](?:0?[1-9]|[12]\d|3[01])[-/.](?:19|20)\d{{2}}{_CLOCK_AND_ZONE}$",
    r"^\\?/Date\(-?\d+(?:[-+]\d{4})?\)\\?/$",
)
"""Texts that are likely times, whether they can be read or not."""
_MOSTLY = 0.95
_LEAST_TIMES = 3
"""Different cells from which on text or numbers that cannot be read may look like times."""

_DAY = 86_400.0
_IDS = GROUP_WORDS | ID_WORDS
_POINT_WORDS = TIME_WORDS - {"time"}
_OTHER_WORDS = QUANTITY_WORDS - {"days", "hours", "minutes", "since"}
_EVENT_WORDS = frozenset({"click", "created", "epoch", "event", "impression", "log", "request", "row", "unix", "view"})


@dataclass(frozen=True, slots=True)
class _Unit:
    """A unit in which times are counted: its name, its seconds, the number that is 1970, and the way to seconds."""

    name: str
    seconds: float
    start: float
    to_seconds: str
    by_growth: bool


_UNITS = (
    _Unit("minutes since 1970", 60.0, 0.0, "x * 60", by_growth=True),
    _Unit("hours since 1970", 3600.0, 0.0, "x * 3600", by_growth=False),
    _Unit("days since 1970", 86_400.0, 0.0, "x * 86400", by_growth=False),
    _Unit("days as Excel counts them", 86_400.0, 25_569.0, "(x - 25569) * 86400", by_growth=True),
    _Unit("Julian days", 86_400.0, 2_440_587.5, "(x - 2440587.5) * 86400", by_growth=True),
)


def unread_text_times(cells: pl.Series, uniques: pl.Series) -> str:
    """Says that text cells which :func:`~ziggurat.data.inference.times.text_times` does not read look like times.

    It says why they are not read, and nothing if they do not look like times.

    Args:
        cells: the cells in the order of their rows.
        uniques: the different cells without missing ones, at least one.
    """
    sampled = uniques.head(PARSED).str.strip_chars()
    zone = sampled.str.extract(_ZONE)
    zones = sorted(set(zone.drop_nulls().to_list()))
    if len(zones) > 1 and not zone.null_count() and ZONES.issuperset(zones):
        bare = cells.str.strip_chars().str.replace(_ZONE, "")
        if text_times(bare, bare.drop_nulls().unique()) is not None:
            named = f"{', '.join(zones[:-1])} and {zones[-1]}"
            return (
                f"times with names of zones, {named}, which are not read: write offsets such as -05:00 in their place"
            )
    looks = sampled.str.contains("|".join(f"(?:{look})" for look in _LOOKS))
    if len(sampled) < _LEAST_TIMES or float(looks.mean() or 0.0) < _MOSTLY:  # pyright: ignore[reportArgumentType]
        return ""
    others = sampled.filter(~looks)
    if 0 < len(others) <= 3 and text_times(sampled.filter(looks), sampled.filter(looks)) is not None:
        odd = ", ".join(repr(cell) for cell in others.to_list())
        return f"times except {odd}: to read it as times, add these to null_values"
    what = "it looks like times in a form that is not read"
    return f"{what}, such as {first_cell(cells)}: write them like 2024-05-31T12:30:00Z"


def unread_number_times(values: pl.Series, minimum: float, maximum: float) -> str:
    """Says that numbers which :func:`~ziggurat.data.inference.times.number_times` does not know look like times.

    Args:
        values: the values without missing ones, in the order of their rows, with the column's name.
        minimum: the smallest one.
        maximum: the largest one.
    """
    named = words(values.name)
    if minimum <= 0 < maximum and named & TIME_WORDS:
        times = values.filter(values > 0)
        guess = number_times(times, float(times.min() or 0), maximum)  # pyright: ignore[reportArgumentType]
        others = sorted(set(values.filter(values <= 0).head(PARSED).to_list()))
        if guess is None or len(others) > 1:
            return ""
        share = 1 - len(times) / len(values)
        what = re.split("[:,;]", guess.note)[0]
        return f"{what}, but {others[0]} in {share:.1%} of the rows, which is no time: leave these cells empty"
    for unit in _UNITS:
        first, last = ((end - unit.start) * unit.seconds for end in (minimum, maximum))
        if not (first >= FIRST and last <= LAST and values.n_unique() >= _LEAST_TIMES):
            continue
        gap = unit.seconds if not values.dtype.is_float() else 1.0
        by_growth = unit.by_growth and (unit.seconds < _DAY or values.dtype.is_float())
        if _is_named(named) or (by_growth and not named & _IDS and grows(values, first, last, gap)):
            return (
                f"it looks like times in a unit that is not read, {unit.name}, such as {values[0]}: write them like "
                f"2024-05-31T12:30:00Z, or as seconds since 1970, {unit.to_seconds}"
            )
    return ""


def _is_named(named: frozenset[str]) -> bool:
    """Whether a name is that of a point in time; ``time`` alone may be how long something takes."""
    if named & _OTHER_WORDS:
        return False
    return bool(named & _POINT_WORDS) or ("time" in named and named - {"time"} <= _EVENT_WORDS)
