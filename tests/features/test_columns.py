"""Raw columns as codes: every type of column, missing values, selection and truncation of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.features.columns import Codes, encode_column, numbers

CELL = st.none() | st.integers(-3, 3)
LIST = st.none() | st.lists(CELL, max_size=4)


def decoded(values: pa.Array, codes: Codes) -> list[Any]:
    """Returns the values of the codes; None for missing lists."""
    lookup = [*values.to_pylist(), None]
    flat = [lookup[code] for code in codes.codes]
    if codes.offsets is None:
        return flat
    rows = [flat[codes.offsets[i] : codes.offsets[i + 1]] for i in range(codes.rows)]
    missing = np.zeros(codes.rows, np.bool_) if codes.missing is None else codes.missing
    return [None if is_missing else row for row, is_missing in zip(rows, missing, strict=True)]


def chunked(cells: list[Any], kind: pa.DataType, cuts: int) -> pa.ChunkedArray:
    size = max(1, len(cells) // cuts)
    chunks = [cells[i : i + size] for i in range(0, len(cells), size)]
    return pa.chunked_array([pa.array(chunk, kind) for chunk in chunks], kind)


@settings(max_examples=80, deadline=None)
@given(st.lists(CELL, max_size=20), st.integers(1, 3), st.booleans(), st.booleans())
def test_single_values_round_trip(cells: list[int | None], cuts: int, text: bool, dictionary: bool) -> None:
    given_cells = [None if cell is None else str(cell) if text else cell for cell in cells]
    column = chunked(given_cells, pa.string() if text else pa.int64(), cuts)
    column = column.dictionary_encode() if dictionary else column
    values, codes = encode_column(column)
    assert values.type == (pa.string() if text else pa.int64())
    assert values.null_count == 0
    assert len(set(values.to_pylist())) == len(values)
    assert decoded(values, codes) == given_cells


@settings(max_examples=80, deadline=None)
@given(st.lists(LIST, max_size=12), st.integers(1, 3))
def test_lists_round_trip_with_missing_and_empty_ones(cells: list[list[int | None] | None], cuts: int) -> None:
    values, codes = encode_column(chunked(cells, pa.list_(pa.int64()), cuts))
    assert decoded(values, codes) == cells


def test_chunks_may_have_different_dictionaries_with_null_entries() -> None:
    first = pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.int32()), pa.array(["a", "b"]))
    second = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["b", None]))
    values, codes = encode_column(pa.chunked_array([first, second]))
    assert decoded(values, codes) == ["a", "b", None, "b", None]


def test_unused_dictionary_values_are_dropped() -> None:
    given = pa.DictionaryArray.from_arrays(pa.array([3, 1, None, 3], pa.int32()), pa.array(["a", "b", "c", "d"]))
    values, codes = encode_column(pa.chunked_array([given]))
    assert values.to_pylist() == ["b", "d"]
    assert decoded(values, codes) == ["d", "b", None, "d"]


def test_values_of_missing_lists_are_dropped() -> None:
    hidden = pa.ListArray.from_arrays(pa.array([0, 2, 3]), pa.array([1, 2, 3]), mask=pa.array([True, False]))
    values, codes = encode_column(pa.chunked_array([hidden]))
    assert values.to_pylist() == [3]
    assert decoded(values, codes) == [None, [3]]


@settings(max_examples=60, deadline=None)
@given(st.lists(LIST, min_size=1, max_size=12), st.data(), st.integers(1, 3))
def test_rows_are_selected_and_cut(cells: list[list[int | None] | None], data: st.DataObject, length: int) -> None:
    values, codes = encode_column(chunked(cells, pa.list_(pa.int64()), 1))
    rows = data.draw(st.lists(st.integers(0, len(cells) - 1), max_size=10))
    picked = [cells[row] for row in rows]
    taken = codes.take(np.array(rows, np.int64))
    assert decoded(values, taken) == picked
    assert decoded(values, taken.first(length)) == [None if cell is None else cell[:length] for cell in picked]
    assert decoded(values, taken.last(length)) == [None if cell is None else cell[-length:] for cell in picked]


@pytest.mark.parametrize("kind", [pa.float64(), pa.int64()])
def test_numbers_are_float64_with_nan_for_missing(kind: pa.DataType) -> None:
    found = numbers(chunked([1, None, -3], kind, 2))
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [1, np.nan, -3])
    assert numbers(pa.chunked_array([], kind)).tolist() == []
    assert numbers(pa.chunked_array([pa.array([2**53 + 1])])).tolist() == [2.0**53]
