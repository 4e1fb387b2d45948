"""Turns sampled Arrow tables with nested columns into flat ones, as the readers see them, with reasons for the rest.

Fields of structs become columns named by their path, such as ``geo.lat``, and so do keys of maps that recur. What no
feature can be made of is left out by name, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pt

from ziggurat.data.inference.numeric.plain_numbers import EXACT_FLOAT, all_whole
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.data.readers.cells.typed import text_cells
from ziggurat.data.readers.columnar.paths import (
    is_key,
    is_list,
    is_period,
    plain_list_type,
    resolve,
    storage_type,
    take_steps,
)

MOST_DEPTH = 32
MOST_KEYS = 256
"""Most keys of one map that become columns."""
KEY_SHARE = 0.01
"""Least share of the rows in which a key of a map must occur to become a column."""
FRACTIONS = "lists of fractions whose lengths differ: neither ids nor a vector"
PERIODS = "periods of pandas, stored as counts of them: write the times at which they begin, .dt.to_timestamp()"
LIST_OF_LISTS = "lists of lists, read as one list a row"


@dataclass(frozen=True, slots=True)
class FlatSample:
    """A sample without nested columns.

    Attributes:
        frame: a column of scalars, of lists, or of vectors (``pl.Array``) for each path.
        left_out: path -> why no column can be made of it.
        notes: path -> what was done to its values.
    """

    frame: pl.DataFrame
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    notes: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class _Leaf:
    """Values inside a column, reached by ``steps``."""

    steps: tuple[str, ...]
    kind: pa.DataType
    in_list: bool

    @property
    def name(self) -> str:
        return ".".join(self.steps)


def flatten(table: pa.Table) -> FlatSample:
    """Returns a flat sample of a table."""
    left_out: dict[str, str] = {}
    notes: dict[str, str] = {}
    series: list[pl.Series] = []
    batches = table.combine_chunks().to_batches()
    if not batches:
        return FlatSample(pl.DataFrame())
    batch = batches[0]
    for name in dict.fromkeys(table.schema.names):
        if len(table.schema.get_all_field_indices(name)) > 1:
            left_out[name] = "several columns have this name: rename all but one"
            continue
        if is_period(table.schema.field(name)):
            left_out[name] = PERIODS
            continue
        for leaf in _leaves((name,), table.schema.field(name).type, in_list=False):
            for each in _columns_of(leaf, batch, left_out):
                _add(each, batch, series, left_out, notes)
    return FlatSample(pl.DataFrame(series), left_out, notes)


def _leaves(steps: tuple[str, ...], kind: pa.DataType, in_list: bool) -> Iterator[_Leaf]:
    """Yields the columns inside a column, and whatever can be none, in the order of the file."""
    kind = storage_type(kind)
    if is_list(kind) and pt.is_struct(_innermost(kind)):
        yield from _leaves(steps, _innermost(kind), in_list=True)
    elif pt.is_struct(kind) and kind.num_fields and len(steps) < MOST_DEPTH:
        for index in range(kind.num_fields):
            yield from _leaves((*steps, kind.field(index).name), kind.field(index).type, in_list)
    else:
        yield _Leaf(steps, kind, in_list)


def _innermost(kind: pa.DataType) -> pa.DataType:
    kind = storage_type(kind)
    return _innermost(kind.value_type) if is_list(kind) else kind


def _columns_of(leaf: _Leaf, batch: pa.RecordBatch, left_out: dict[str, str]) -> Iterator[_Leaf]:
    """Yields the leaf itself, or the keys of a map that recur."""
    if not pt.is_map(leaf.kind):
        yield leaf
        return
    if not is_key(leaf.kind.key_type) or leaf.in_list:
        what = "maps in lists" if leaf.in_list else f"a map whose keys are {leaf.kind.key_type}, not text"
        left_out[leaf.name] = what
        return
    maps = take_steps(batch, leaf.steps)
    counts = pl.Series("key", maps.keys.cast(pa.string())).value_counts(sort=True)
    least = max(2, int(KEY_SHARE * batch.num_rows))
    kept = counts.filter(pl.col("count") >= least)["key"].head(MOST_KEYS).to_list()
    for key in sorted(kept):
        yield from _leaves((*leaf.steps, key), leaf.kind.item_type, in_list=False)
    if counts.height > len(kept):
        rare = f"{counts.height - len(kept):,} of its {counts.height:,} keys: in fewer than {least:,} sampled rows"
        none = f"a map of {counts.height:,} keys, of which none recurs"
        left_out[leaf.name] = f"{rare}, or rarer than {MOST_KEYS} others" if kept else none
    elif not kept:
        left_out[leaf.name] = "a map without keys"


def _add(
    leaf: _Leaf, batch: pa.RecordBatch, series: list[pl.Series], left_out: dict[str, str], notes: dict[str, str]
) -> None:
    """Appends the column of a leaf, or the reason why there is none."""
    name = leaf.name
    path = resolve(batch.schema, name)
    if path is None or (path.column, *path.steps) != leaf.steps:
        left_out[name] = "another column has this name"
        return
    reason = _unusable(leaf.kind)
    if reason is not None:
        left_out[name] = reason
        return
    cells = path.take(batch)
    reason = _broken_vectors(cells)
    if reason is not None:
        left_out[name] = reason
        return
    if is_list(leaf.kind) and is_list(storage_type(leaf.kind.value_type)):
        notes[name] = LIST_OF_LISTS
    found = _series(name, cells)
    if is_fractional_list(found):
        left_out[name] = FRACTIONS
        return
    series.append(found)


def _unusable(kind: pa.DataType) -> str | None:
    """Returns why no column can be made of values of a type; None if one can."""
    plain = plain_list_type(kind)
    if pt.is_fixed_size_list(plain) and not plain.list_size:
        return "lists of no values"
    inner = _innermost(plain)
    if pt.is_dictionary(inner):
        inner = inner.value_type
    if pt.is_struct(inner):
        return "an object without fields" if not inner.num_fields else f"nested more than {MOST_DEPTH} levels deep"
    if pt.is_map(inner):
        return "maps in lists"
    if pt.is_nested(inner) or pt.is_interval(inner):
        return f"values of the type {inner}: write them as numbers or text"
    return None


def _broken_vectors(cells: pa.Array) -> str | None:
    if pt.is_fixed_size_list(cells.type) and not _is_vector(cells.type):
        return None
    if pt.is_fixed_size_list(cells.type) and cells.flatten().null_count:
        return "vectors with missing numbers: leave out whole vectors instead"
    return None


def _is_vector(kind: pa.DataType) -> bool:
    inner = kind.value_type
    return pt.is_integer(inner) or pt.is_floating(inner) or pt.is_decimal(inner)


def _series(name: str, cells: pa.Array) -> pl.Series:
    """Returns cells as a series of types that profiles know: numbers, text, times, lists and vectors of these."""
    if not is_list(cells.type):
        return _scalars(name, cells)
    elements = _scalars(name, cells.flatten())
    lengths = pc.list_value_length(cells)
    if pt.is_fixed_size_list(cells.type) and _is_vector(cells.type):
        return _vectors(name, cells, elements, cells.type.list_size)
    known = lengths.drop_null()
    length = known[0].as_py() if len(known) else 0
    constant = length > 1 and pc.all(pc.equal(known, length)).as_py()
    if constant and elements.dtype.is_float() and not elements.null_count() and not all_whole(elements):
        return _vectors(name, cells, elements, length)
    offsets = np.concatenate([[0], np.cumsum(lengths.fill_null(0).to_numpy(zero_copy_only=False))])
    absent = cells.is_null() if cells.null_count else None
    values = elements.to_arrow(compat_level=pl.CompatLevel.oldest())
    return pl.Series(name, pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values, mask=absent))


def _vectors(name: str, cells: pa.Array, elements: pl.Series, length: int) -> pl.Series:
    present = cells.is_valid().to_numpy(zero_copy_only=False)
    matrix = np.full((len(cells), length), np.nan)
    matrix[present] = elements.cast(pl.Float64).fill_null(np.nan).to_numpy().reshape(-1, length)
    whole = pl.Series(name, matrix.reshape(-1)).reshape((len(cells), length))
    return whole.set(pl.Series(~present), None) if not present.all() else whole


def is_fractional_list(series: pl.Series) -> bool:
    """Whether cells are lists of any length of numbers that are not all whole: neither ids nor vectors."""
    kind = series.dtype
    return isinstance(kind, pl.List) and bool(kind.inner.is_float()) and not all_whole(series.explode().drop_nulls())


def _scalars(name: str, cells: pa.Array) -> pl.Series:
    """Returns scalars as a series; whole numbers beyond int64 become text, and bytes text or hexadecimal digits.

    Decimals are read exactly where they are ids: those without a fraction by their type, or whole ones beyond 2^53.
    """
    if pt.is_dictionary(cells.type):
        cells = cells.dictionary_decode()
    kind = cells.type
    if pt.is_null(kind):
        return pl.Series(name, [None] * len(cells), dtype=pl.String)
    if pt.is_decimal(kind):
        cells = _exact_decimals(cells)
    elif pt.is_float16(kind):
        cells = cells.cast(pa.float64())
    elif pt.is_uint64(kind):
        beyond = pc.any(pc.greater(cells, pa.scalar(2**63 - 1, pa.uint64()))).as_py()
        cells = cells.cast(pa.string() if beyond else pa.int64())
    elif pt.is_timestamp(kind) and kind.tz is not None:
        cells = cells.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit))
    elif not (pt.is_primitive(kind) or pt.is_temporal(kind) or pt.is_boolean(kind)):
        cells = text_cells(cells)
    found = pl.from_arrow(cells)
    assert isinstance(found, pl.Series)
    return (found.set(found == "", None) if found.dtype == pl.String else found).alias(name)


def _exact_decimals(cells: pa.Array) -> pa.Array:
    """Returns decimals as int64 or text with all digits if their type has no fraction, else as float64.

    Whole numbers of a type with a fraction are int64 too where float64 would not hold all of them.
    """
    if cells.type.bit_width < 128:
        cells = cells.cast(pa.decimal128(38, cells.type.scale))  # pyarrow casts no decimal32 to int64
    floats = cells.cast(pa.float64())
    has_fraction = cells.type.scale > 0
    if has_fraction and pc.all(pc.less(pc.abs(floats), EXACT_FLOAT)).as_py() is not False:
        return floats
    try:
        return cells.cast(pa.int64())
    except pa.ArrowInvalid:
        return floats if has_fraction else cells.cast(pa.string())
