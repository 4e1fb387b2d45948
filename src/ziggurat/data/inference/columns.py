"""What a sampled column holds: its type, how many different values, how they are spread, whether cells hold several."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.data.readers.cells.brackets import split_brackets
from ziggurat.data.readers.cells.text import CellRules, convert_text

NULL_WORDS = frozenset({"?", "na", "n/a", "nan", "null", "\\n", "#n/a", "(null)"})
NULL_WORDS_AMONG_NUMBERS = NULL_WORDS | {"none", "-", "missing", "unknown"}
CELL_DELIMITERS = ("|", ";", ",", " ")
BRACKET_DELIMITERS = (",", ";", "|", " ")
_MOMENT = r"^(\d{4}[-/]\d\d?[-/]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4})([ T]\d\d?(:\d\d.*)?)?$"
_DECIMAL_COMMA = r"^\s*[-+]?(\d+|\d{1,3}(\.\d{3})+)(,\d+)?\s*$"
_INTEGER = r"^\s*[-+]?\d+\s*$"
_LISTS_WITHIN = r"\]\s*\S?\s*\["
_BRACKETS = r"(?s)^\s*\[\s*([^\s\[].*)?\]\s*$"


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """A column of a sample; figures of a column of many values are those of its elements.

    Attributes:
        name: the column's name in the file.
        type: how its cells, or their elements, can be read.
        rows: cells looked at, missing ones included.
        missing: share of missing cells.
        distinct: different values in the sample.
        distinct_estimate: different values in the whole log (Chao 1984: d + f1² / 2 f2), where the sample is a part.
        singles: share of the different values that occur once.
        low, median, high, top: least value, median, 99th percentile and largest value of a numeric column, else 0.
        halving: the value from which on about half of the numbers lie.
        common: the most frequent values, as the file writes them.
        null_words: text in it that means missing.
        nan: NaN among its numbers.
        many: cells hold lists, or text with ``delimiter`` between values.
        delimiter: between the values of a text cell; None where the file holds lists.
        brackets: the text cells are lists in brackets.
        longest: most values in a cell.
        moment: cells are dates or times.
        iso: they are text that ``time_format: iso`` reads.
        decimal_comma: cells are numbers with a comma, as in ``3,14``; the type is text then.
        ascending: every value above the one before it.
        odd_cells: a few cells of a column that is numeric but for them.
    """

    name: str
    type: ValueType
    rows: int
    missing: float = 0.0
    distinct: int = 0
    distinct_estimate: int = 0
    singles: float = 0.0
    low: float = 0.0
    median: float = 0.0
    high: float = 0.0
    top: float = 0.0
    halving: float = 0.0
    common: tuple[Any, ...] = ()
    null_words: tuple[str, ...] = ()
    nan: bool = False
    many: bool = False
    delimiter: str | None = None
    brackets: bool = False
    longest: int = 1
    moment: bool = False
    iso: bool = False
    decimal_comma: bool = False
    ascending: bool = False
    odd_cells: tuple[str, ...] = ()

    @property
    def numeric(self) -> bool:
        return self.type is not ValueType.TEXT

    @property
    def span(self) -> float:
        """How many whole numbers lie from the least to the largest value."""
        return self.top - self.low + 1


def profile_column(series: pl.Series, whole: bool) -> ColumnProfile:
    """Look at one column; ``whole``: the sample is the log."""
    kind = series.dtype
    if isinstance(kind, pl.List | pl.Array):
        lists = series.cast(pl.List(kind.inner)) if isinstance(kind, pl.Array) else series  # pyright: ignore[reportArgumentType]
        elements = profile_column(lists.explode().alias(series.name), whole)
        longest = int(lists.list.len().max() or 0)  # pyright: ignore[reportArgumentType]
        return replace(elements, rows=len(series), missing=_share(lists.is_null(), series), many=True, longest=longest)
    if kind == pl.String or kind == pl.Categorical or isinstance(kind, pl.Enum):
        return _text(series.cast(pl.String), whole)
    if kind.is_temporal():
        timed = isinstance(kind, pl.Date | pl.Datetime)
        moments = series.cast(pl.Datetime("us"), strict=False) if timed else series
        return replace(_number(moments.cast(pl.Int64), ValueType.INTEGER, whole), moment=True)
    if kind == pl.Boolean or kind.is_integer():
        return _number(series.cast(pl.Int64, strict=False), ValueType.INTEGER, whole)
    return _float(series.cast(pl.Float64, strict=False), whole)


def profile_frame(frame: pl.DataFrame, whole: bool) -> list[ColumnProfile]:
    """Every column whose values are scalars or lists of them."""
    return [
        profile_column(frame[name], whole) for name in frame.columns if not isinstance(frame.schema[name], pl.Struct)
    ]


def _text(series: pl.Series, whole: bool) -> ColumnProfile:
    """Text cells: numbers if all of them are, several values a cell if they share few, else text."""
    values = series.drop_nulls()
    uniques = values.unique()
    bare = uniques.str.strip_chars()
    lowered = bare.str.to_lowercase()
    # strict=False turns what is no number into null.
    numeric = bare.cast(pl.Float64, strict=False).is_not_null() & (lowered != "nan")
    known = NULL_WORDS_AMONG_NUMBERS if bool(numeric.any()) else NULL_WORDS
    is_null_word = lowered.is_in(list(known))
    if known is not NULL_WORDS and not bool((numeric | is_null_word).all()):
        is_null_word = lowered.is_in(list(NULL_WORDS))  # text after all
    words, rest = uniques.filter(is_null_word), uniques.filter(~is_null_word)
    null_words = tuple(sorted(words.to_list()))
    kept = series.set(series.is_in(words.to_list()), None) if null_words else series
    if rest.len() == 0:
        return _described(kept, ValueType.TEXT, whole, null_words=null_words)
    numbers = rest.str.strip_chars().cast(pl.Float64, strict=False)
    odd = rest.filter(numbers.is_null())
    zero_led = bool(rest.str.contains(r"^\s*[-+]?0\d").any())
    if odd.len() == 0 and not zero_led:
        if bool(rest.str.contains(_INTEGER).all()):
            whole_numbers = kept.str.strip_chars().str.strip_prefix("+").cast(pl.Int64, strict=False)
            if whole_numbers.null_count() == kept.null_count():
                return replace(_number(whole_numbers, ValueType.INTEGER, whole), null_words=null_words)
            return _described(kept, ValueType.TEXT, whole, null_words=null_words)  # ids beyond int64 stay text
        floats = kept.str.strip_chars().cast(pl.Float64, strict=False)
        return replace(_number(floats, ValueType.FLOAT, whole), null_words=null_words)
    if bool(rest.str.contains(_BRACKETS).all()) and not bool(rest.str.contains(_LISTS_WITHIN).any()):
        return replace(_bracketed(kept, rest, whole), null_words=null_words)
    if bool(rest.str.contains(_MOMENT).all()):
        described = _described(kept, ValueType.TEXT, whole, null_words=null_words)
        return replace(described, moment=True, iso=_is_iso(rest))
    if bool(rest.str.contains(_DECIMAL_COMMA).all()) and bool(rest.str.contains(",", literal=True).any()):
        return replace(_described(kept, ValueType.TEXT, whole, null_words=null_words), decimal_comma=True)
    split = _split(kept, rest, whole)
    if split is not None:
        return replace(split, null_words=null_words)
    text = _described(kept, ValueType.TEXT, whole, null_words=null_words)
    if odd.len() <= 3 and rest.len() >= 50 and not zero_led:
        return replace(text, odd_cells=tuple(odd.to_list()))
    return text


def _is_iso(cells: pl.Series) -> bool:
    return not convert_text(
        cells.cast(pl.String).to_arrow().cast(pa.string()), RawColumn("", ValueType.TIME), CellRules()
    ).bad


def split_cells(cells: pl.Series, delimiter: str, brackets: bool) -> pl.Series:
    """Text cells without nulls as lists of text; an element that is missing is empty."""
    if not brackets:
        return cells.str.split(delimiter)
    values, lengths, _ = split_brackets(cells.to_arrow().cast(pa.string()), delimiter)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int64())
    return pl.Series(cells.name, pa.LargeListArray.from_arrays(offsets, values))


def _bracketed(series: pl.Series, uniques: pl.Series, whole: bool) -> ColumnProfile:
    """A column of lists in brackets: the first of the usual delimiters that is in one of them separates its values."""
    inside = uniques.str.strip_chars().str.strip_chars("[]").str.strip_chars().str.replace_all(r"\s+", " ")
    found = (mark for mark in BRACKET_DELIMITERS if bool(inside.str.contains(mark, literal=True).any()))
    delimiter = next(found, ",")
    lists = split_cells(series.drop_nulls(), delimiter, brackets=True)
    values = lists.explode().drop_nulls()
    elements = _text(values.set(values == "", None).alias(series.name), whole)
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


def _split(series: pl.Series, uniques: pl.Series, whole: bool) -> ColumnProfile | None:
    """The column as one of many values, where some delimiter cuts its cells into far fewer different values."""
    for delimiter in CELL_DELIMITERS:
        holding = uniques.str.contains(delimiter, literal=True)
        if _share(holding, uniques) < 0.2 or uniques.len() < 8:
            continue
        tokens = uniques.str.split(delimiter).explode().unique()
        if tokens.len() > 0.5 * uniques.len():
            continue
        lists = series.str.split(delimiter)
        elements = _text(lists.explode().set(lists.explode() == "", None).alias(series.name), whole)
        if elements.many or elements.moment:
            return None
        longest = int(lists.list.len().max() or 0)  # pyright: ignore[reportArgumentType]
        missing = _share(series.is_null(), series)
        return replace(elements, rows=len(series), missing=missing, many=True, delimiter=delimiter, longest=longest)
    return None


def _float(series: pl.Series, whole: bool) -> ColumnProfile:
    nan = bool(series.is_nan().any())
    values = series.fill_nan(None)
    finite = values.drop_nulls()
    integral = finite.len() > 0 and bool(((finite == finite.floor()) & (finite.abs() < 2.0**53)).all())
    if integral:
        return replace(_number(values.cast(pl.Int64), ValueType.INTEGER, whole), nan=nan)
    return replace(_number(values, ValueType.FLOAT, whole), nan=nan)


def _number(series: pl.Series, kind: ValueType, whole: bool) -> ColumnProfile:
    values = series.drop_nulls()
    profile = _described(series, kind, whole)
    if values.len() == 0:
        return profile
    figures = [values.quantile(share, "nearest") for share in (0, 0.5, 0.99, 1)]
    low, median, high, top = (float(figure or 0) for figure in figures)
    ascending = values.len() > 2 and bool((values.diff().drop_nulls() > 0).all())
    halving = min((median, _next_above(values, median)), key=lambda value: abs(_share(values >= value, values) - 0.5))
    return replace(profile, low=low, median=median, high=high, top=top, halving=halving, ascending=ascending)


def _next_above(values: pl.Series, bound: float) -> float:
    above: Any = values.filter(values > bound).min()
    return bound if above is None else float(above)


def _described(series: pl.Series, kind: ValueType, whole: bool, null_words: tuple[str, ...] = ()) -> ColumnProfile:
    values = series.drop_nulls()
    counts = values.alias("value").value_counts(sort=True, name="times")
    once = int((counts["times"] == 1).sum())
    twice = int((counts["times"] == 2).sum())
    unseen = 0 if whole else once * once / (2 * max(1, twice))
    return ColumnProfile(
        name=series.name,
        type=kind,
        rows=len(series),
        missing=_share(series.is_null(), series),
        distinct=counts.height,
        distinct_estimate=counts.height + round(unseen),
        singles=once / max(1, counts.height),
        common=tuple(counts["value"].head(12).to_list()),
        null_words=null_words,
    )


def _share(mask: pl.Series, of: pl.Series) -> float:
    return float(mask.sum() or 0) / max(1, len(of))
