"""Finds how the numbers of a file are written: decimal mark, thousands, currencies, per cent.

A column says in which ways its cells can be read; a file is read in one way. ``1,977`` alone may be 1977 or 1.977, so
the columns that can be read in one way only decide for the file. Columns that are written in another way are left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import polars as pl
import pyarrow as pa

from ziggurat.core.schema import RawColumn, ValueType
from ziggurat.data.readers.cells.number_rules import PLAIN, NumberRules
from ziggurat.data.readers.cells.text import CellRules, convert_text

_WAYS = ((".", ""), (".", ","), (",", "."), (",", " "), (".", "'"), (".", " "), (",", "'"), (",", ""))
"""Decimal mark and mark between thousands, the likelier ones first where a cell can be read in several ways."""
_CURRENCIES = (
    "AUD", "BRL", "CAD", "CHF", "CNY", "CZK", "DKK", "EUR", "GBP", "HKD", "HUF", "IDR", "ILS", "INR", "JPY", "KRW",
    "MXN", "NOK", "NZD", "PLN", "RUB", "SEK", "SGD", "THB", "TRY", "TWD", "USD", "VND", "ZAR", "Fr.", "kr", "zł",
    "R$", "US$", "A$", "C$", "Kč", "Ft",
)  # fmt: skip
_SYMBOL = "|".join([re.escape(each) for each in sorted(_CURRENCIES, key=len, reverse=True)] + [r"\p{Sc}", "%"])
_BLANKS = "[ \\t\u00a0\u202f]*"
_SIGN = "[-+\u2212]?"
_AROUND = f"^{_SIGN}{_BLANKS}(?P<before>{_SYMBOL})?{_BLANKS}{_SIGN}(?P<body>[0-9][0-9.,' \u00a0\u202f\u2019]*?)"
_CELL = f"{_AROUND}{_BLANKS}(?P<after>{_SYMBOL})?$"
_IN_PARENTHESES = f"^({_SYMBOL})?{_BLANKS}\\(([^-+\u2212()]+)\\){_BLANKS}({_SYMBOL})?$"
_MOST_SYMBOLS = 5


def number_ways(cells: pl.Series) -> tuple[NumberRules, ...]:
    """Returns the ways in which all cells can be read as numbers, the likelier ones first; none if they are no numbers.

    Args:
        cells: different text cells without missing ones and without blanks around them.
    """
    in_parentheses = cells.str.contains(_IN_PARENTHESES)
    negative = bool(in_parentheses.any()) and not bool(in_parentheses.all())
    if negative:
        cells = cells.str.replace(_IN_PARENTHESES, "-$1$2$3")
    first = cells.head(1).str.contains(_CELL)
    if not len(cells) or not bool(first.all()) or not bool(cells.str.contains(_CELL).all()):
        return ()
    parts = cells.str.extract_groups(_CELL).struct.unnest()
    symbols = {symbol for name in ("before", "after") for symbol in parts[name].drop_nulls().unique().to_list()}
    bodies = parts["body"].str.replace_all("[\u00a0\u202f]", " ").str.replace_all("\u2019", "'")
    if len(symbols) > _MOST_SYMBOLS:
        return ()
    kept = tuple(sorted(symbols - {""}))
    used = {mark for mark in "., '" if bool(bodies.str.contains(mark, literal=True).any())}
    if not kept and not used and not negative:
        return ()  # digits alone, such as codes with leading zeros
    ways = [
        (decimal, mark)
        for decimal, mark in _WAYS
        if (not mark or mark in used)
        and (decimal == "." or decimal in used or not used & {".", ","})
        and bool(bodies.str.contains(_written(decimal, mark)).all())
    ]
    if not kept and _may_be_lists(bodies):
        ways = [way for way in ways if not way[1]]
    return tuple(NumberRules(decimal, mark, kept, negative) for decimal, mark in ways)


def rules_of_file(ways: Sequence[tuple[NumberRules, ...]]) -> NumberRules:
    """Returns how the numbers of a file are written, given the ways in which each of its columns can be read.

    The most columns decide, of those that can be read with one decimal mark only, else of all.
    """
    listed = [each for each in ways if each]
    if not listed:
        return PLAIN
    certain = [each for each in listed if len({rules.decimal for rules in each}) == 1] or listed
    decimal = Counter(each[0].decimal for each in certain).most_common(1)[0][0]
    fitting = [next((rules for rules in each if rules.decimal == decimal), None) for each in listed]
    marks = Counter(rules.thousands for rules in fitting if rules is not None and rules.thousands)
    thousands = marks.most_common(1)[0][0] if marks else ""
    read = [rules for rules in fitting if rules is not None and rules.thousands in {"", thousands}]
    symbols = sorted({symbol for rules in read for symbol in rules.symbols})
    return NumberRules(decimal, thousands, tuple(symbols), any(rules.parentheses for rules in read))


def read_numbers(cells: pl.Series, rules: NumberRules, null_words: Sequence[str]) -> pl.Series | None:
    """Returns text cells as numbers; None if one of them is written in another way."""
    text = cells.cast(pl.String).to_arrow().cast(pa.string())
    column = RawColumn(cells.name, ValueType.FLOAT)
    converted = convert_text(text, column, CellRules(tuple(null_words), nan_is_missing=True, numbers=rules))
    return None if converted.bad else pl.Series(cells.name, converted.values)


def _written(decimal: str, mark: str) -> str:
    point = re.escape(decimal)
    if not mark:
        return f"^(?:0|[1-9][0-9]*)(?:{point}[0-9]*)?$"
    return f"^(?:0|[1-9][0-9]*|[1-9][0-9]{{0,2}}(?:{re.escape(mark)}[0-9]{{3}})+)(?:{point}[0-9]*)?$"


def _may_be_lists(bodies: pl.Series) -> bool:
    """Whether what looks like thousands may be ids beside each other: 120,455,871. Then all have three digits."""
    grouped = bodies.filter(bodies.str.contains(r"[0-9][,. ']+[0-9]"))
    return len(grouped) > 0 and bool(grouped.str.contains(r"^[0-9]{3}[,. '][0-9]{3}([,. '][0-9]{3})*$").all())
