"""Which raw columns describe an item, and which the user or the context.

A request to rank has one user and many items. What describes the user is then encoded and looked up once. The guess is
the column whose name says that it identifies an item, and all columns that have one value for each item in the rows of
the log: an item's category, its brand, not its position on the page.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from ziggurat.core.errors import ConfigError, nearest
from ziggurat.core.schema import RawSchema
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.features.config import CategoricalFeature, FeatureConfig

_ITEM = re.compile(
    r"(^|[^a-z])(item|product|article|film|movie|video|song|track|book|ad|ads|creative|sku|goods|news|listing|offer|"
    r"anime|game|app|doc|document|recipe|hotel|job)s?([^a-z]|$)"
)
_LEAST_REPEATED = 2.0
"""Rows for each distinct item that a sample must have on average to say which columns follow from the item."""


def item_columns(
    features: Sequence[FeatureConfig], schema: RawSchema, table: pa.Table | None, chosen: Sequence[str] | None
) -> tuple[str, ...]:
    """Returns the raw columns that describe an item, in the order of the schema; none if there is no telling.

    Args:
        features: the features of the model.
        schema: the raw columns of the features.
        table: some rows of the log, if there are any.
        chosen: the columns, if they are known.

    Raises:
        ConfigError: a chosen column is none of those that the features need, or all are chosen.
    """
    columns = tuple(dict.fromkeys(column.source for column in schema.columns))
    if chosen is not None:
        for name in chosen:
            if name not in columns:
                close = nearest(name, columns)
                hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(columns)}"
                raise ConfigError(f"item columns: there is no column {name!r}; {hint}", "name columns of the log")
        if set(chosen) == set(columns):
            raise ConfigError(
                "item columns: all columns are named", "leave out those of the user and the context, or all"
            )
        return tuple(name for name in columns if name in chosen)
    single = [each for each in features if isinstance(each, CategoricalFeature)]
    ids = [each.source_column for each in single if each.log_columns == (each.source_column,)]
    item = next((name for name in ids if _ITEM.search(name.lower())), None)
    if item is None:
        return ()
    follow = set() if table is None else _following(table, schema, item)
    found = tuple(name for name in columns if name == item or name in follow)
    return () if len(found) == len(columns) else found


def _following(table: pa.Table, schema: RawSchema, item: str) -> set[str]:
    """Returns the columns that have one value for each item, and more than one altogether."""
    table = table.filter(table[item].is_valid())
    plain = {column.name: _plain(table[column.name]) for column in schema.columns}
    items = pc.count_distinct(plain[item]).as_py()
    if table.num_rows < _LEAST_REPEATED * items:
        return set()
    return {
        column.source
        for column in schema.columns
        if column.source != item
        and all(
            _follows(plain[each.name], plain[item], items) for each in schema.columns if each.source == column.source
        )
    }


def _follows(values: pa.ChunkedArray, keys: pa.ChunkedArray, items: int) -> bool:
    pairs = pa.table({"key": keys, "value": values}).group_by(["key", "value"]).aggregate([])
    return pairs.num_rows == items and pc.count_distinct(values, mode="all").as_py() > 1


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column that can be grouped; lists are their text."""
    if pa.types.is_dictionary(column.type):
        return column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        return pa.chunked_array([[None if each is None else repr(each) for each in column.to_pylist()]], pa.string())
    return column
