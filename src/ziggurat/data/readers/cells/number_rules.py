"""How a source writes its numbers: the decimal mark, the mark between thousands, and signs of currencies and per cent.

With ``decimal: ","``, ``thousands: "."`` and ``symbols: ["€", "%"]``, ``1.234,50 €`` is 1234.5 and ``5%`` is 0.05:

- A symbol may stand before or after the number, with or without blanks between; several may.
- Thousands, where they are set apart, are so throughout: ``1.234.567``; ``1234567`` is read too, ``12.34.567`` is not.
- Blanks between thousands may be ordinary ones, no-break or narrow ones; an apostrophe may be straight or curled.
- ``%`` divides by 100.

With ``negative: parentheses``, as accounts are written, ``(1.234,50 €)`` and ``€ (1.234,50)`` are -1234.5; a minus sign
is read too, but not within parentheses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa

from ziggurat.data.readers.arrow_compute import pc

PER_CENT = "%"
MAX_SYMBOLS = 50
MAX_SYMBOL = 10
_BLANKS = "[ \t\u00a0\u202f]*"
_VARIANTS = {" ": "[ \u00a0\u202f]", "'": "['\u2019]"}
_SIGN = "[-+\u2212]?"
_IN_PARENTHESES = f"^\\({_BLANKS}([^-+\u2212()]*[^-+\u2212() \t\u00a0\u202f]){_BLANKS}\\)"


@dataclass(frozen=True, slots=True)
class NumberRules:
    """How numbers are written.

    Attributes:
        decimal: the decimal mark.
        thousands: the mark between groups of three digits; empty if there is none.
        symbols: signs around numbers, such as ``$`` and ``%``.
        parentheses: whether numbers in parentheses are negative.
    """

    decimal: str = "."
    thousands: str = ""
    symbols: tuple[str, ...] = ()
    parentheses: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether numbers are written as programs write them."""
        return self == PLAIN

    @property
    def has_signs(self) -> bool:
        """Whether more than the decimal mark differs from how programs write numbers."""
        return bool(self.thousands or self.symbols or self.parentheses)


PLAIN = NumberRules()


@dataclass(frozen=True, slots=True)
class _Expressions:
    """Regular expressions of some rules, without the end of the text, which is ``\\Z`` in Python and ``$`` in RE2."""

    leading: str
    trailing: str
    grouped: str
    mark: str


@lru_cache(maxsize=64)
def _expressions(rules: NumberRules) -> _Expressions:
    symbols = "|".join(re.escape(each) for each in sorted(rules.symbols, key=len, reverse=True)) or "[^\\s\\S]"
    mark = _VARIANTS.get(rules.thousands, re.escape(rules.thousands))
    return _Expressions(
        leading=f"^({_SIGN}){_BLANKS}(?:{symbols}){_BLANKS}",
        trailing=f"{_BLANKS}(?:{symbols})",
        grouped=f"^{_SIGN}[0-9]{{1,3}}(?:{mark}[0-9]{{3}})+(?:{re.escape(rules.decimal)}[0-9]*)?",
        mark=mark,
    )


def plain_number(cell: str, rules: NumberRules) -> tuple[str, bool]:
    """Returns a cell as programs write numbers, and whether it is in per cent. A cell that is no number stays none.

    The reference for :func:`plain_numbers`.
    """
    found = _expressions(rules)
    if rules.parentheses:
        cell = re.sub(rf"{_IN_PARENTHESES}\Z", r"-\1", cell)
    if rules.symbols:
        bare = re.sub(found.leading, r"\1", cell)
        bare = re.sub(rf"{found.trailing}\Z", "", bare)
        if rules.parentheses:
            bare = re.sub(rf"{_IN_PARENTHESES}\Z", r"-\1", bare)
        in_per_cent = PER_CENT in rules.symbols and PER_CENT in cell and PER_CENT not in bare
        cell = bare
    else:
        in_per_cent = False
    if rules.thousands and re.match(rf"{found.grouped}\Z", cell):
        cell = re.sub(found.mark, "", cell)
    if rules.decimal != ".":
        cell = cell.replace(".", "\0").replace(rules.decimal, ".")
    return cell.replace("\u2212", "-") if not rules.is_plain else cell, in_per_cent


def plain_numbers(cells: pa.Array, rules: NumberRules) -> tuple[pa.Array, pa.Array | None]:
    """Returns cells as programs write numbers, and which are in per cent (None: none is)."""
    found = _expressions(rules)
    in_per_cent = None
    if rules.parentheses:
        cells = pc.replace_substring_regex(cells, f"{_IN_PARENTHESES}$", r"-\1")
    if rules.symbols:
        bare = pc.replace_substring_regex(cells, found.leading, r"\1")
        bare = pc.replace_substring_regex(bare, f"{found.trailing}$", "")
        if rules.parentheses:
            bare = pc.replace_substring_regex(bare, f"{_IN_PARENTHESES}$", r"-\1")
        if PER_CENT in rules.symbols:
            lost = pc.invert(pc.match_substring(bare, PER_CENT))
            in_per_cent = pc.and_(pc.match_substring(cells, PER_CENT), lost)
        cells = bare
    if rules.thousands:
        grouped = pc.match_substring_regex(cells, f"{found.grouped}$")
        cells = pc.if_else(grouped, pc.replace_substring_regex(cells, found.mark, ""), cells)
    if rules.decimal != ".":
        cells = pc.replace_substring(pc.replace_substring(cells, ".", "\0"), rules.decimal, ".")
    if not rules.is_plain:
        cells = pc.replace_substring(cells, "\u2212", "-")
    return cells, in_per_cent


def check_number_rules(rules: NumberRules) -> None:
    """Validates that numbers can be told from their marks.

    Raises:
        ValueError: a mark or symbol is not possible; the message says which, and what is.
    """
    for key, mark in (("decimal", rules.decimal), ("thousands", rules.thousands)):
        if key == "thousands" and not mark:
            continue
        if len(mark) != 1 or mark.isalnum() or mark in '-+\u2212"\r\n\t\0':
            raise ValueError(f"{key}: received {mark!r}; it is one character, neither a letter, a digit nor a sign")
    if rules.parentheses and {"(", ")"} & {rules.decimal, rules.thousands, *"".join(rules.symbols)}:
        raise ValueError("negative: parentheses: neither a mark nor a symbol can hold a parenthesis then")
    if rules.decimal == rules.thousands:
        raise ValueError(f"decimal and thousands: both are {rules.decimal!r}; one character cannot be both")
    if len(rules.symbols) > MAX_SYMBOLS:
        raise ValueError(f"symbols: received {len(rules.symbols)} of them; at most {MAX_SYMBOLS} are allowed")
    for symbol in rules.symbols:
        unusable = {rules.decimal, rules.thousands, "-", "+"} & set(symbol)
        if not symbol.strip() or symbol != symbol.strip() or len(symbol) > MAX_SYMBOL or unusable:
            raise ValueError(f"symbols: received {symbol!r}; a symbol is short text without blanks, marks and signs")
        if any(letter.isdigit() for letter in symbol) or symbol.lower() in {"e", "x", "nan", "inf", "infinity"}:
            raise ValueError(f"symbols: received {symbol!r}, which numbers themselves may contain")
