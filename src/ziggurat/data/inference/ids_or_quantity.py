"""Decides whether a column of whole numbers holds ids or quantities: by its name, its values, and the label."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from ziggurat.data.inference.columns import ColumnProfile
from ziggurat.data.inference.label_order import Floats, LabelOrder, label_order
from ziggurat.data.inference.numeric.whole_numbers import is_quantity, whole_numbers
from ziggurat.data.inference.words import (
    GROUP_WORDS,
    ID_WORDS,
    NAMING_WORDS,
    QUANTITY_WORDS,
    format_number,
    last_word,
    words,
)


def ids_or_quantity(profile: ColumnProfile, cells: pl.Series, targets: Sequence[Floats]) -> tuple[bool, str, str]:
    """Whether integers are quantities (True) or ids (False), why, and why they may be the other kind after all."""
    named = words(profile.name)
    span = f"{format_number(profile.minimum)} … {format_number(profile.maximum)}"
    quantity, ids = bool(named & QUANTITY_WORDS) and profile.distinct > 2, bool(named & (ID_WORDS | GROUP_WORDS))
    both = "words of its name are of either kind" if quantity and ids else ""
    if both:  # price_id has ids and id_count quantities; days_by_item is left to values and label
        quantity, ids = last_word(profile.name) in QUANTITY_WORDS, last_word(profile.name) in NAMING_WORDS
    if quantity:
        return True, f"a quantity by its name, {span}", ""
    if ids:
        return False, f"{count_of(profile)}, ids by its name", ""
    if profile.distinct <= 2:
        return False, count_of(profile), ""
    numbers = whole_numbers(cells)
    order = _order(numbers, targets)
    dense = profile.span <= 2 * profile.distinct
    if dense and profile.distinct <= 32:
        doubt = "the label follows the order of the values" if order.quantity else both
        return False, f"{count_of(profile)}, few whole numbers", doubt
    number, why, sure = is_quantity(numbers.drop_nulls().to_numpy())
    doubt = "the label follows the order of the values, and differs apart from it" if order.mixed else both
    if order.quantity is not None and order.quantity != number and not sure:
        number, doubt = order.quantity, f"by the values alone: {why}"
        why = "the label follows the order of the values" if number else "the label differs between them without order"
    return (True, f"{why}, {span}", doubt) if number else (False, f"{count_of(profile)}; {why}", doubt)


def _order(numbers: pl.Series, targets: Sequence[Floats]) -> LabelOrder:
    """Returns how the labels depend on a column: of the first label that says whether it holds ids or quantities."""
    present = numbers.is_not_null().to_numpy()
    values = numbers.fill_null(0).to_numpy()
    orders = [label_order(values[rows], each[rows]) for each in targets for rows in [present & np.isfinite(each)]]
    certain = [order for order in orders if order.quantity is not None]
    return next(iter(certain or [order for order in orders if order.mixed]), LabelOrder())


def count_of(profile: ColumnProfile) -> str:
    """Says how many different values a column has."""
    if profile.distinct_estimate > 1.05 * profile.distinct:
        return f"{number_of_values(profile.distinct)} in the sample, perhaps {profile.distinct_estimate:,} in all"
    return number_of_values(profile.distinct)


def number_of_values(count: int) -> str:
    """Says a number of different values."""
    return "1 value" if count == 1 else f"{count:,} different values"
