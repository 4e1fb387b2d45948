"""Profiles a sampled column: its type, the number and distribution of its values, whether cells hold several."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ziggurat.core.schema import ValueType
from ziggurat.data.inference.numeric.numbers import number_ways
from ziggurat.data.inference.numeric.plain_numbers import (
    EXACT_FLOAT,
    all_whole,
    plain_numbers,
    present,
    summarise_numbers,
)
from ziggurat.data.inference.times import number_times, text_times
from ziggurat.data.inference.unread_times import unread_number_times, unread_text_times
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.cells.brackets import split_brackets
from ziggurat.data.readers.cells.number_rules import NumberRules
from ziggurat.data.readers.cells.times import ISO

NULL_WORDS = frozenset({"?", "na", "n/a", "nan", "null", "\\n", "#n/a", "(null)"})
NULL_WORDS_AMONG_NUMBERS = NULL_WORDS | {"none", "-", ".", "missing", "unknown"}
_MOST_COMMON = 12
CELL_DELIMITERS = ("|", ";", ",", " ")
BRACKET_DELIMITERS = (",", ";", "|", " ")
ZERO_DATE = r"^\s*(0{4}[-/.]?00[-/.]?00|00[-/.]00[-/.]0{4})([T ]00(:?00){1,2}(\.0+)?Z?)?\s*$"
"""A date of zeros, as MySQL writes where there is none, with a time of day or without."""

_WORD = re.compile(r"[^\W\d_]([^\W\d]|-)*")
_SPECIAL_WORDS = NULL_WORDS_AMONG_NUMBERS | {"inf", "infinity"}
_INTEGER = r"^\s*[-+]?\d+\s*$"
_WHOLE_FLOAT = r"^\s*[-+]?\d+(\.0*)?\s*$"
_LISTS_WITHIN = r"\]\s*\S?\s*\["
_BRACKETS = r"(?s)^\s*\[\s*([^\s\[].*)?\]\s*$"


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """Profile of a sampled column; for a column of many values, the statistics are those of its elements.

    Attributes:
        name: the column's name in the file.
        type: the type as which its cells, or their elements, can be read.
        rows: number of cells, missing ones included.
        missing: share of missing cells.
        distinct: number of distinct values in the sample.
        distinct_estimate: estimated number of distinct values in the whole log (Chao 1984: d + f1² / 2 f2); equal to
            ``distinct`` if the sample is complete.
        singleton_share: share of the distinct values that occur once.
        minimum, median, percentile_99, maximum: of a numeric column, else 0.
        balanced_threshold: the threshold that about half of the numbers reach.
        common: the most frequent values, as written in the file.
        null_words: texts in the column that mean a missing value.
        nan: whether the numbers include NaN.
        infinity: whether they include infinities.
        vector: number of numbers in each cell, if the cells are vectors; else 0.
        many: whether cells hold lists, or text with ``delimiter`` between values.
        delimiter: the delimiter between the values of a text cell; None if the file holds lists.
        brackets: whether the text cells are lists in brackets.
        longest: largest number of values in a cell.
        is_temporal: whether cells are dates or times: typed, or text that is nothing else.
        time_format: the format in which they can be read as times (also numbers); None if they cannot.
        time_note: what is known of that format.
        unread_time: why its cells, which look like times, are not read as times.
        number_ways: how its text cells can be read as numbers, if not as programs write them; the type is then text
            until the way of the file is known (:mod:`ziggurat.data.inference.numeric.numbers`).
        whole_floats: whether whole numbers are written or stored as floats, as in ``123.0``.
        example: a cell as written, where that is unusual.
        declared: the type that the header states (:mod:`ziggurat.data.inference.header_types`).
        ascending: whether every value exceeds the previous one.
        non_numeric_cells: the few cells that keep the column from being numeric.
    """

    name: str
    type: ValueType
    rows: int
    missing: float = 0.0
    distinct: int = 0
    distinct_estimate: int = 0
    singleton_share: float = 0.0
    minimum: float = 0.0
    median: float = 0.0
    percentile_99: float = 0.0
    maximum: float = 0.0
    balanced_threshold: float = 0.0
    common: tuple[Any, ...] = ()
    null_words: tuple[str, ...] = ()
    nan: bool = False
    infinity: bool = False
    vector: int = 0
    many: bool = False
    delimiter: str | None = None
    brackets: bool = False
    longest: int = 1
    is_temporal: bool = False
    time_format: str | None = None
    time_note: str = ""
    unread_time: str = ""
    number_ways: tuple[NumberRules, ...] = ()
    whole_floats: bool = False
    example: str = ""
    declared: str | None = None
    ascending: bool = False
    non_numeric_cells: tuple[str, ...] = ()

    @property
    def numeric(self) -> bool:
        return self.type is not ValueType.TEXT

    @property
    def span(self) -> float:
        """Number of integers from the smallest to the largest value."""
        return self.maximum - self.minimum + 1


def profile_column(series: pl.Series, complete: bool) -> ColumnProfile:
    """Profiles one column; ``complete`` says whether the sample is the whole log."""
    kind = series.dtype
    if isinstance(kind, pl.Array):
        elements = _float(series.explode().cast(pl.Float64).alias(series.name), complete)
        missing = _share(series.is_null(), series)
        return replace(elements, rows=len(series), missing=missing, many=True, vector=kind.size, longest=kind.size)
    if isinstance(kind, pl.List):
        lists = series
        elements = profile_column(lists.explode().alias(series.name), complete)
        longest = int(lists.list.len().max() or 0)  # pyright: ignore[reportArgumentType]
        return replace(elements, rows=len(series), missing=_share(lists.is_null(), series), many=True, longest=longest)
    if kind == pl.String or kind == pl.Categorical or isinstance(kind, pl.Enum):
        return _text(series.cast(pl.String), complete)
    if kind.is_temporal() and not isinstance(kind, pl.Duration):
        timed = isinstance(kind, pl.Date | pl.Datetime)
        times = series.cast(pl.Datetime("us"), strict=False) if timed else series
        return replace(
            _number(times.cast(pl.Int64), ValueType.INTEGER, complete),
            is_temporal=True,
            time_format=ISO if timed else None,
            time_note=f"the file holds {'dates' if kind == pl.Date else 'timestamps'}" if timed else "",
            unread_time="",
        )
    without_fraction = isinstance(kind, pl.Decimal) and not kind.scale
    if kind == pl.Boolean or kind.is_integer() or without_fraction or isinstance(kind, pl.Duration):
        whole = series.cast(pl.Int64, strict=False)
        if whole.null_count() > series.null_count():  # beyond int64: ids, of which all digits count
            return _described(series.cast(pl.String), ValueType.TEXT, complete)
        return _number(whole, ValueType.INTEGER, complete)
    return _float(series.cast(pl.Float64, strict=False), complete)


def profile_frame(frame: pl.DataFrame, complete: bool) -> list[ColumnProfile]:
    """Profiles every column whose values are scalars or lists of scalars."""
    columns = frame.iter_columns()  # `frame.schema` looks at every column, each time
    return [profile_column(column, complete) for column in columns if not isinstance(column.dtype, pl.Struct)]


def _text(series: pl.Series, complete: bool) -> ColumnProfile:
    """Profiles text cells: as numbers if all are, as many values per cell if they share few values, else as text."""
    plain = plain_numbers(series)
    if plain is not None:
        return _number(plain, ValueType.INTEGER if plain.dtype == pl.Int64 else ValueType.FLOAT, complete)
    if _plain_words(series):
        return _described(series, ValueType.TEXT, complete)
    values = series.drop_nulls()
    uniques = values.unique()
    stripped = uniques.str.strip_chars()
    lowered = stripped.str.to_lowercase()
    # strict=False turns text that is not a number into null.
    numeric = stripped.cast(pl.Float64, strict=False).is_not_null() & (lowered != "nan")
    known = NULL_WORDS_AMONG_NUMBERS if bool(numeric.any()) else NULL_WORDS
    is_null_word = lowered.is_in(list(known))
    if known is not NULL_WORDS and not bool((numeric | is_null_word).all()):
        is_null_word = lowered.is_in(list(NULL_WORDS))  # not numeric: fewer words mean missing
    words, rest = uniques.filter(is_null_word), uniques.filter(~is_null_word)
    null_words = tuple(sorted(words.to_list()))
    kept = series.set(series.is_in(words.to_list()), None) if null_words else series
    if rest.len() == 0:
        return _described(kept, ValueType.TEXT, complete, null_words=null_words)
    numbers = rest.str.strip_chars().cast(pl.Float64, strict=False)
    non_numeric = rest.filter(numbers.is_null())
    zero_led = bool(rest.str.contains(r"^\s*[-+]?0\d").any())
    if non_numeric.len() == 0 and not zero_led:
        if bool(rest.str.contains(_INTEGER).all()):
            whole_numbers = kept.str.strip_chars().str.strip_prefix("+").cast(pl.Int64, strict=False)
            if whole_numbers.null_count() == kept.null_count():
                return replace(_number(whole_numbers, ValueType.INTEGER, complete), null_words=null_words)
            return _described(kept, ValueType.TEXT, complete, null_words=null_words)  # ids beyond int64 stay text
        floats = kept.str.strip_chars().cast(pl.Float64, strict=False)
        found = _float(floats, complete)
        if found.maximum >= EXACT_FLOAT and bool(rest.str.contains(_WHOLE_FLOAT).all()):
            digits = kept.str.strip_chars().str.strip_prefix("+").str.replace(r"\.0*$", "").cast(pl.Int64, strict=False)
            if digits.null_count() == kept.null_count():
                found = replace(_number(digits, ValueType.INTEGER, complete), whole_floats=True)
        return replace(found, null_words=null_words, example=str(kept.drop_nulls()[0]).strip())
    is_zero = rest.str.contains(ZERO_DATE)
    zeros = rest.filter(is_zero)
    rest = rest.filter(~is_zero) if 0 < zeros.len() < rest.len() else rest
    times = text_times(kept.set(kept.is_in(zeros.to_list()), None) if zeros.len() else kept, rest)
    if times is not None:
        if zeros.len():
            null_words = tuple(sorted({*null_words, *zeros.to_list()}))
            kept = kept.set(kept.is_in(zeros.to_list()), None)
        described = _described(kept, ValueType.TEXT, complete, null_words=null_words)
        return replace(described, is_temporal=True, time_format=times.format, time_note=times.note)
    unread = unread_text_times(kept, rest)
    if unread:
        return replace(_described(kept, ValueType.TEXT, complete, null_words=null_words), unread_time=unread)
    if bool(rest.str.contains(_BRACKETS).all()) and not bool(rest.str.contains(_LISTS_WITHIN).any()):
        return replace(_bracketed(kept, rest, complete), null_words=null_words)
    others = _other_numbers(series, uniques, complete)
    if others is not None:
        return others
    split = _split(kept, rest, complete)
    if split is not None:
        return replace(split, null_words=null_words)
    text = _described(kept, ValueType.TEXT, complete, null_words=null_words)
    if non_numeric.len() <= 3 and rest.len() >= 50 and not zero_led:
        return replace(text, non_numeric_cells=tuple(non_numeric.to_list()))
    return text


def _plain_words(texts: pl.Series) -> bool:
    """Whether every cell is a word of letters that means no number, time, list or missing value, found in one step."""
    words = pc.unique(texts.to_arrow().cast(pa.large_string()))
    if words.null_count == len(words):
        return False
    return all(
        word is None or (_WORD.fullmatch(word) and word.lower() not in _SPECIAL_WORDS) for word in words.to_pylist()
    )


def number_profile(profile: ColumnProfile, values: pl.Series, complete: bool) -> ColumnProfile:
    """Returns the profile of a text column whose cells are these numbers."""
    found = _number(values, ValueType.FLOAT, complete)
    return replace(
        found, null_words=profile.null_words, number_ways=profile.number_ways, example=profile.example, time_format=None
    )


def text_profile(series: pl.Series, complete: bool) -> ColumnProfile:
    """Profiles text cells as they are, whatever they look like."""
    return _described(series, ValueType.TEXT, complete)


def list_profile(series: pl.Series, delimiter: str, complete: bool) -> ColumnProfile:
    """Profiles text cells as several values with a delimiter between them."""
    lists = series.str.split(delimiter)
    elements = lists.explode()
    found = _text(elements.set(elements == "", None).alias(series.name), complete)
    longest = int(lists.list.len().max() or 0)  # pyright: ignore[reportArgumentType]
    missing = _share(series.is_null(), series)
    return replace(found, rows=len(series), missing=missing, many=True, delimiter=delimiter, longest=longest)


def _other_numbers(series: pl.Series, uniques: pl.Series, complete: bool) -> ColumnProfile | None:
    """Profiles a column of numbers with other marks or symbols, as text; None if it is none."""
    lowered = uniques.str.strip_chars().str.to_lowercase()
    words = uniques.filter(lowered.is_in(list(NULL_WORDS_AMONG_NUMBERS)))
    rest = uniques.filter(~lowered.is_in(list(NULL_WORDS_AMONG_NUMBERS))).str.strip_chars()
    ways = number_ways(rest)
    if not ways:
        return None
    null_words = tuple(sorted(words.to_list()))
    kept = series.set(series.is_in(words.to_list()), None) if null_words else series
    described = _described(kept, ValueType.TEXT, complete, null_words=null_words)
    usual = kept.drop_nulls().str.strip_chars()
    usual = usual.filter(usual.str.contains(r"[^0-9+-]")).head(1)
    return replace(described, number_ways=ways, example=str(usual[0]) if len(usual) else "")


def split_cells(cells: pl.Series, delimiter: str, brackets: bool) -> pl.Series:
    """Splits text cells without nulls into lists of text; a missing element is empty text."""
    if not brackets:
        return cells.str.split(delimiter)
    values, lengths, _ = split_brackets(cells.to_arrow().cast(pa.string()), delimiter)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    return pl.Series(cells.name, pa.LargeListArray.from_arrays(offsets, values))


def _bracketed(series: pl.Series, uniques: pl.Series, complete: bool) -> ColumnProfile:
    """Profiles a column of lists in brackets, separated by the first of the usual delimiters that occurs in them."""
    inside = uniques.str.strip_chars().str.strip_chars("[]").str.strip_chars().str.replace_all(r"\s+", " ")
    found = (mark for mark in BRACKET_DELIMITERS if bool(inside.str.contains(mark, literal=True).any()))
    delimiter = next(found, ",")
    lists = split_cells(series.drop_nulls(), delimiter, brackets=True)
    values = lists.explode().drop_nulls()
    elements = _text(values.set(values == "", None).alias(series.name), complete)
    longest = int(lists.list.len().max() or 0)  # pyright: ignore[reportArgumentType]
    return replace(
        elements,
        rows=len(series),
        missing=_share(series.is_null(), series),
        many=True,
        delimiter=delimiter,
        brackets=True,
        longest=longest,
    )


def _split(series: pl.Series, uniques: pl.Series, complete: bool) -> ColumnProfile | None:
    """Profiles the column as one of many values if a delimiter yields far fewer distinct values, else None."""
    for delimiter in CELL_DELIMITERS:
        has_delimiter = uniques.str.contains(delimiter, literal=True)
        if _share(has_delimiter, uniques) < 0.2 or uniques.len() < 8:
            continue
        tokens = uniques.str.split(delimiter).explode().unique()
        if tokens.len() > 0.5 * uniques.len():
            continue
        lists = series.str.split(delimiter)
        elements = _text(lists.explode().set(lists.explode() == "", None).alias(series.name), complete)
        if elements.many or elements.is_temporal:
            return None
        longest = int(lists.list.len().max() or 0)  # pyright: ignore[reportArgumentType]
        missing = _share(series.is_null(), series)
        return replace(elements, rows=len(series), missing=missing, many=True, delimiter=delimiter, longest=longest)
    return None


def _float(series: pl.Series, complete: bool) -> ColumnProfile:
    nan, infinity = bool(series.is_nan().any()), bool(series.is_infinite().any())
    values = series.set(~series.is_finite(), None) if nan or infinity else series
    finite = values.drop_nulls()
    if finite.len() > 0 and all_whole(finite):
        profile = _number(values.cast(pl.Int64), ValueType.INTEGER, complete)
        return replace(profile, nan=nan, infinity=infinity, whole_floats=True)
    return replace(_number(values, ValueType.FLOAT, complete), nan=nan, infinity=infinity)


def _number(series: pl.Series, kind: ValueType, complete: bool) -> ColumnProfile:
    values = present(series)
    found = summarise_numbers(values.to_numpy(), _MOST_COMMON)
    times = number_times(values, found.minimum, found.maximum)
    unseen = 0 if complete else found.once * found.once / (2 * max(1, found.twice))
    return ColumnProfile(
        name=series.name,
        type=kind,
        rows=len(series),
        missing=series.null_count() / max(1, len(series)),
        distinct=found.distinct,
        distinct_estimate=found.distinct + round(unseen),
        singleton_share=found.once / max(1, found.distinct),
        common=found.common,
        minimum=found.minimum,
        median=found.median,
        percentile_99=found.percentile_99,
        maximum=found.maximum,
        balanced_threshold=found.balanced_threshold,
        ascending=found.ascending,
        time_format=None if times is None else times.format,
        time_note="" if times is None else times.note,
        unread_time=unread_number_times(values, found.minimum, found.maximum) if times is None and len(values) else "",
    )


def _described(series: pl.Series, kind: ValueType, complete: bool, null_words: tuple[str, ...] = ()) -> ColumnProfile:
    values = series.drop_nulls()
    counts = values.alias("value").value_counts(sort=True, name="times")
    once = int((counts["times"] == 1).sum())
    repeated = int((counts["times"] == 2).sum())
    unseen = 0 if complete else once * once / (2 * max(1, repeated))
    return ColumnProfile(
        name=series.name,
        type=kind,
        rows=len(series),
        missing=_share(series.is_null(), series),
        distinct=counts.height,
        distinct_estimate=counts.height + round(unseen),
        singleton_share=once / max(1, counts.height),
        common=tuple(counts["value"].head(_MOST_COMMON).to_list()),
        null_words=null_words,
    )


def _share(mask: pl.Series, of: pl.Series) -> float:
    return float(mask.sum() or 0) / max(1, len(of))
