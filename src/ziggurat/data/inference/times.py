"""Finds how the times of a column are written: ISO 8601, a pattern, digits such as 24050112, or numbers since 1970.

Every cell must be a time in the format that is found. Where several formats read all cells (the 3rd of April or the 4th
of March), the one is taken in which neighbouring rows are closest in time, and the note says whether that decided.
Digits and numbers are taken for times only if the column's name says so, or if the values leave no other likely
reading: ids in the range of times fill the gaps that a calendar leaves, or do not grow with the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.data.inference.words import TIME_WORDS, words
from ziggurat.data.readers.cells.text import CellRules
from ziggurat.data.readers.cells.time_patterns import cast_pattern_times, parse_pattern_time, time_pattern
from ziggurat.data.readers.cells.times import EPOCH_UNITS, ISO, cast_times, holds_hours
from ziggurat.data.readers.cells.typed import convert_typed, type_mismatch

_CLOCK = re.compile(
    r"(?<![\d])(?P<clock>\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?)(?P<half>\s*[AaPp]\.?[Mm]\.?(?![A-Za-z]))?"
    r"(?P<zone>\s*(?:Z|UTC|GMT|[-+]\d{2}:?\d{2})(?![\w:]))?"
)
_MONTHS = re.compile(
    r"(?i)jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|"
    r"dec(ember)?"
)
_WEEKDAYS = re.compile(r"(?i)mon(day)?|tue(s|sday)?|wed(nesday)?|thu(rs?|rsday)?|fri(day)?|sat(urday)?|sun(day)?")
_BETWEEN = re.compile(r"[ ,./:\-_()\[\]T年月日時时分秒년월일시분초]*")
_BASIC = re.compile(
    r"(?P<date>\d{8})(?P<mark>[T_ -])(?P<clock>\d{6}|\d{4})(?P<fraction>[.,]\d{1,9})?"
    r"(?P<zone> ?(?:Z|UTC|GMT|[-+]\d{2}:?\d{2}))?"
)
ZONES = frozenset({
    "ACDT", "ACST", "AEDT", "AEST", "AKDT", "AKST", "ART", "AST", "ADT", "AWST", "BRT", "BST", "CDT", "CEST", "CET",
    "CST", "EDT", "EEST", "EET", "EST", "HKT", "HST", "IST", "JST", "KST", "MDT", "MSK", "MST", "NZDT", "NZST", "PDT",
    "PKT", "PST", "SAST", "SGT", "WEST", "WET", "WIB",
})  # fmt: skip
_ORDERS = ("dmY", "mdY", "Ymd", "dmy", "mdy", "ymd", "Ydm")
_DIGITS = {
    6: ("%y%m%d", "%Y%m", "%d%m%y", "%m%d%y"),
    8: ("%Y%m%d", "%y%m%d%H", "%d%m%Y", "%m%d%Y"),
    10: ("%Y%m%d%H", "%y%m%d%H%M"),
    12: ("%Y%m%d%H%M", "%y%m%d%H%M%S"),
    14: ("%Y%m%d%H%M%S",),
}
_DIGIT_WORDS = TIME_WORDS | {
    "day", "ds", "dt", "event", "hour", "month", "period", "week", "when", "ymd", "yyyymmdd", "yyyymmddhh",
}  # fmt: skip
_HOUR_WORDS = frozenset({"hour", "hours", "hr", "yyyymmddhh"})
FIRST, LAST = 631_152_000.0, 2_082_758_400.0  # 1990 to 2036, in which digits without a name must lie
_CENTURY, _NEXT_CENTURY = -2_208_988_800.0, 4_102_444_800.0  # 1900 to 2100, for digits with a name of times
_DAY = 86_400.0
_HOURS = 3
"""Different hours from which on the hour may tell rows apart."""
_EQUALLY = 0.9
"""Two readings are told apart if the way from row to row is in one at most this share of that in the other."""
PARSED = 50_000


@dataclass(frozen=True, slots=True)
class TimeGuess:
    """How a column's times are written, and what can be said about that."""

    format: str
    note: str


def text_times(cells: pl.Series, uniques: pl.Series) -> TimeGuess | None:
    """Returns the format of text cells; None if no format reads all of them.

    Args:
        cells: the cells in the order of their rows; the name counts where they are digits alone.
        uniques: the different cells without missing ones, at least one.
    """
    sampled = uniques.head(PARSED).str.strip_chars()
    first = first_cell(cells)
    if not 4 <= len(first) <= 60 or sum(letter.isdigit() for letter in first) < 2:
        return None
    if cast_times(_arrow(sampled), ISO) is not None:
        return TimeGuess(ISO, f"text such as {first}")
    if bool(sampled.str.contains(r"^\d+$").all()):
        return _digits(cells, sampled)
    lengths = sampled.str.len_chars()
    shown = (first, str(sampled[lengths.arg_min() or 0]), str(sampled[lengths.arg_max() or 0]))
    patterns = dict.fromkeys(pattern for cell in shown for pattern in _patterns(cell))
    return _best(list(patterns), cells, sampled)


def number_times(values: pl.Series, minimum: float, maximum: float) -> TimeGuess | None:
    """Returns the format of numbers without missing ones, if any: digits of a date and hour, or a unit since 1970.

    Args:
        values: the values in the order of their rows, with the column's name.
        minimum: the smallest one.
        maximum: the largest one.
    """
    named = bool(words(values.name) & TIME_WORDS)
    if not values.dtype.is_float() and 10**3 <= maximum < 10**14:
        even = (len(str(int(maximum))) + 1) // 2 * 2
        ends = [f"{int(end):0{even}d}" for end in (minimum, maximum)]
        if minimum >= 10 ** (even - 2) and any(_reads(pattern, ends) for pattern in _DIGITS.get(even, ())):
            digits = values.cast(pl.String).str.pad_start(even, "0")
            found = _digits(digits.alias(values.name), digits.unique().head(PARSED))
            if found is not None:
                return found
    for unit, count in EPOCH_UNITS.items():
        if 1e8 * count <= minimum and maximum <= 4e9 * count:
            if named or grows(values, minimum / count, maximum / count):
                why = "by its name and range" if named else "it grows with the rows, in the range of times"
                return TimeGuess(unit, f"{unit} since 1970: {why}")
            return None
    return None


def _reads(pattern: str, cells: Sequence[str]) -> bool:
    return all(parse_pattern_time(cell, time_pattern(pattern)) is not None for cell in cells)


def parts_that_vary(cells: pl.Series, time_format: str) -> tuple[str, ...]:
    """Returns the parts of a time column that may tell rows apart: hour, weekday (over a week), age (over a day).

    Args:
        cells: the cells as sampled, text, numbers or typed times.
        time_format: the format that reads them.
    """
    present = cells.drop_nulls()
    column = RawColumn(cells.name, ValueType.TIME, time_format=time_format)
    array = present.to_arrow()
    if type_mismatch(array.type, column) is not None:
        return ()
    values = convert_typed(array, column, CellRules()).values.drop_null().to_numpy(zero_copy_only=False)
    if not len(values):
        return ()
    parts: list[str] = []
    if holds_hours(time_format) and len(np.unique(values % _DAY // 3600)) >= _HOURS:
        parts.append("hour")
    if values.max() - values.min() >= 7 * _DAY:
        parts.append("weekday")
    if values.max() - values.min() >= _DAY:
        parts.append("age")
    return tuple(parts)


def grows(values: pl.Series, first: float, last: float, unit_s: float = 1.0) -> bool:
    """Whether numbers without a name are times: within 1990 to 2036, over days, with gaps, and never falling.

    Args:
        values: the numbers in the order of their rows.
        first: the smallest one, in seconds since 1970.
        last: the largest one.
        unit_s: the seconds that lie at least between two of the numbers.
    """
    if not (first >= FIRST and last <= LAST and last - first >= _DAY and len(values) >= 100):
        return False
    return values.n_unique() < (last - first) / unit_s / 2 and bool((values.diff().drop_nulls() >= 0).all())


def _digits(cells: pl.Series, uniques: pl.Series) -> TimeGuess | None:
    lengths = uniques.str.len_chars().unique().to_list()
    if len(lengths) != 1 or lengths[0] not in _DIGITS:
        return None
    named = words(cells.name)
    patterns = list(_DIGITS[lengths[0]])
    if named & _HOUR_WORDS:
        patterns.sort(key=lambda pattern: not time_pattern(pattern).has_hours)
    plausible = [pattern for pattern in patterns if _plausible(pattern, uniques, bool(named & _DIGIT_WORDS))]
    found = _best(plausible, cells, uniques, ordered=True)
    if found is None:
        return None
    meaning = found.format.replace("%Y", "YYYY").replace("%y", "YY").replace("%m", "MM").replace("%d", "DD")
    meaning = meaning.replace("%H", "hh").replace("%M", "mm").replace("%S", "ss")
    doubt = "".join(found.note.partition("; ")[1:])
    return TimeGuess(found.format, f"digits {meaning}, such as {first_cell(cells)}{doubt}")


def _plausible(pattern: str, uniques: pl.Series, named: bool) -> bool:
    """Whether all cells are times of these decades, and the name or the gaps of a calendar say that they are times."""
    times = cast_pattern_times(_arrow(uniques), time_pattern(pattern))
    if times is None:
        return False
    seconds = times.to_numpy()
    if named:
        return bool(seconds.min() >= _CENTURY and seconds.max() <= _NEXT_CENTURY)
    if seconds.min() < FIRST or seconds.max() > LAST:
        return False
    coarse = _DAY if time_pattern(pattern).has_hours else 31 * _DAY
    return len(uniques) >= 5 and len(str(uniques[0])) >= 8 and len(np.unique(seconds // coarse)) >= 2


def _best(patterns: Sequence[str], cells: pl.Series, uniques: pl.Series, ordered: bool = False) -> TimeGuess | None:
    """Returns the pattern that reads all cells; of several, the one with the closest neighbours, else the first."""
    fitting = [
        pattern for pattern in patterns if cast_pattern_times(_arrow(uniques), time_pattern(pattern)) is not None
    ]
    if not fitting:
        return None
    example = f"text such as {first_cell(cells)}"
    named = next((word for word in re.findall("[A-Z]{3,4}", fitting[0]) if word in ZONES), None)
    if named is not None:
        example += f", always {named}, which is not converted: hours are those of that zone"
    if len(fitting) == 1:
        return TimeGuess(fitting[0], example)
    in_order = cells.drop_nulls().str.strip_chars()
    in_order = in_order.filter(in_order.is_in(uniques.to_list())).head(PARSED)
    travels = {pattern: _travel(pattern, in_order) for pattern in fitting}
    closest = min(fitting, key=lambda pattern: travels[pattern])
    decided = all(travels[closest] <= _EQUALLY * travels[pattern] for pattern in fitting if pattern is not closest)
    if ordered and _only_grows(fitting[0], in_order):
        decided = False
    chosen = closest if decided else fitting[0]
    others = " or ".join(pattern for pattern in fitting if pattern != chosen)
    why = (
        f"; {others} would read every value too, but then neighbouring rows would lie further apart: check this"
        if decided
        else f"; {others} would read every value too, and nothing decides: check this"
    )
    return TimeGuess(chosen, example + why)


def _travel(pattern: str, cells: pl.Series) -> float:
    """Returns the seconds between all consecutive rows, added up."""
    return float(np.abs(np.diff(_seconds(pattern, cells))).sum())


def _only_grows(pattern: str, cells: pl.Series) -> bool:
    return bool((np.diff(_seconds(pattern, cells)) >= 0).all())


def _seconds(pattern: str, cells: pl.Series) -> npt.NDArray[np.float64]:
    times = cast_pattern_times(_arrow(cells), time_pattern(pattern))
    assert times is not None
    return times.to_numpy(zero_copy_only=False)


def _patterns(cell: str) -> Iterator[str]:
    """Yields the patterns that a cell may be written by, the likelier ones first."""
    basic = _BASIC.fullmatch(cell)
    if basic is not None:
        clock = "%H%M%S" if len(basic["clock"]) == 6 else "%H%M"
        rest = basic["mark"] + clock + re.sub(r"\d+", "%f", basic["fraction"] or "")
        rest += re.sub(r"\S+", "%z", basic["zone"] or "")
        yield from (date + rest for date in _DIGITS[8] if not time_pattern(date).has_hours)
        return
    clocks = list(_CLOCK.finditer(cell))
    if len(clocks) > 1:
        return
    before, clock, after = cell, "", ""
    if clocks:
        before, clock, after = cell[: clocks[0].start()], _clock(clocks[0]), cell[clocks[0].end() :]
    pieces = [_pieces(part) for part in (before, after)]
    if None in pieces:
        return
    left, right = pieces
    assert left is not None
    assert right is not None
    american = bool(clocks and clocks[0]["half"])
    for order in _orders(left + right, american=american, clock=bool(clocks)):
        filled = iter(order)
        texts = [next(filled) if piece.isdigit() else piece for piece in left + right]
        yield "".join([*texts[: len(left)], clock, *texts[len(left) :]])


def _clock(found: re.Match[str]) -> str:
    hour = "%I" if found["half"] else "%H"
    clock = re.sub(r"^\d+", hour, found["clock"])
    for directive in ("%M", "%S"):
        clock = re.sub(r":\d\d(?!\d)", f":{directive}", clock, count=1)
    clock = re.sub(r"([.,])\d+$", r"\1%f", clock)
    half = re.sub(r"\S+", "%p", found["half"] or "")
    return clock + half + re.sub(r"\S+", "%z", found["zone"] or "")


def _pieces(text: str) -> list[str] | None:
    """Splits a date at its numbers and names; None if another word stands in it."""
    pieces: list[str] = []
    for piece in re.findall(r"\d+|[A-Za-z]+|[^A-Za-z\d]+", text):
        if piece.isdigit():
            pieces.append(piece)
        elif _MONTHS.fullmatch(piece):
            pieces.append("%b")
        elif _WEEKDAYS.fullmatch(piece):
            pieces.append("%a")
        elif _BETWEEN.fullmatch(piece) or piece in ZONES:
            pieces.append(piece)
        else:
            return None
    return pieces


def _orders(pieces: Sequence[str], american: bool, clock: bool) -> Iterator[list[str]]:
    """Yields a directive for each number of a date, in each order that the numbers allow."""
    numbers = [piece for piece in pieces if piece.isdigit()]
    by_name = pieces.count("%b")
    if by_name > 1 or pieces.count("%a") > 1:
        return
    wanted = {(1, 2): ("dY", "Yd", "dy", "yd"), (1, 1): ("Y",), (0, 3): _ORDERS, (0, 2): ("Ym", "mY")}
    with_clock = {4: "H", 5: "HM", 6: "HMS"}.get(len(numbers), "")
    if with_clock and not by_name and not clock:
        orders = [date + with_clock for date in ("Ymd", "dmY", "mdY")]
    else:
        orders = list(wanted.get((by_name, len(numbers)), ()))
    if len(numbers) == 1 and not by_name and len(numbers[0]) in _DIGITS:
        digits = _DIGITS[len(numbers[0])]
        yield from ([pattern] for pattern in digits if not (clock and time_pattern(pattern).has_hours))
        return
    if american or (not by_name and "/" in pieces):
        orders.sort(key=lambda order: not order.startswith("m"))
    for order in orders:
        if all(
            len(number) == 4 if letter == "Y" else len(number) <= 2
            for letter, number in zip(order, numbers, strict=True)
        ):
            yield [f"%{letter}" for letter in order]


def first_cell(cells: pl.Series) -> str:
    """Returns the first cell that is not missing."""
    return str(cells.drop_nulls()[0]).strip()


def _arrow(cells: pl.Series) -> pa.Array:
    return cells.cast(pl.String).to_arrow().cast(pa.string())
