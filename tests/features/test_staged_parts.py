"""Staged parts on disk: every column can be read individually and unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ziggurat.core.errors import DataError
from ziggurat.features.columns import Codes
from ziggurat.features.preparation.column_file import ColumnFile, write_columns
from ziggurat.features.preparation.parts import IdWriter, StagedPart, StagedParts, narrow, write_part


def test_columns_of_any_length_and_type_round_trip(tmp_path: Path) -> None:
    columns = {
        "ints": pa.array([1, None, 3]),
        "texts": pa.array(["a", "ünï", "", None] * 500),
        "lists": pa.array([[1], None, [], [2, 3]], pa.large_list(pa.uint8())),
        "slice": pa.array(list(range(100))).slice(40, 20),
        "none": pa.array([], pa.string()),
    }
    file = ColumnFile(tmp_path / "columns", write_columns(tmp_path / "columns", columns))
    for name in reversed(columns):
        assert file.read(name).equals(columns[name]), name


def test_reading_one_column_allocates_that_column_only(tmp_path: Path) -> None:
    columns = {f"c{i}": pa.array(np.arange(100_000)) for i in range(20)}
    file = ColumnFile(tmp_path / "columns", write_columns(tmp_path / "columns", columns))
    del columns
    before = pa.total_allocated_bytes()
    column = file.read("c7")
    assert pa.total_allocated_bytes() - before < 1_000_000
    assert column[99_999].as_py() == 99_999


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device without space")
def test_a_full_disk_is_an_error() -> None:
    with pytest.raises(DataError, match="no space left on the device"):
        write_columns(Path("/dev/full"), {"x": pa.array(np.arange(1_000_000))})


def test_parts_round_trip_and_empty_ones_are_left_out(tmp_path: Path) -> None:
    lists = Codes(np.array([0, 1, 300]), np.array([0, 2, 2, 3]), np.array([False, True, False]))
    part = StagedPart(
        {"x": np.array([1.5, np.nan, 0.1])},
        {"c": (pa.array(["a", "b"]), Codes(np.array([1, 2, 0], np.int32))), "b": (pa.array(range(300)), lists)},
        {"@split": np.array([0, 1, 2], np.uint8)},
    )
    parts = StagedParts(tmp_path, [(0, ""), (3, write_part(tmp_path, 1, part)), (0, "")])
    assert (len(parts), parts.rows, parts.starts.tolist()) == (1, [3], [0])
    np.testing.assert_array_equal(parts.numbers(0, "x"), [1.5, np.nan, 0.1])
    assert parts.codes(0, "c").codes.tolist() == [1, 2, 0]
    assert parts.codes(0, "c").codes.dtype == np.uint8
    assert parts.values(0, "c").to_pylist() == ["a", "b"]
    read = parts.codes(0, "b")
    assert read.offsets is not None
    assert read.missing is not None
    assert (read.codes.tolist(), read.offsets.tolist(), read.missing.tolist()) == (
        [0, 1, 300],
        [0, 2, 2, 3],
        [False, True, False],
    )
    assert parts.target(0, "@split").tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.0, 0.5, np.nan, -0.0, 2.0**24], np.float32),
        ([0.1], np.float64),
        ([2.0**24 + 1], np.float64),
        ([1e300], np.float64),
        ([], np.float32),
    ],
)
def test_numbers_are_narrowed_only_if_that_is_exact(values: list[float], kind: type) -> None:
    given = np.array(values, np.float64)
    narrowed = narrow(given)
    assert narrowed.dtype == kind
    read = narrowed.astype(np.float64)
    np.testing.assert_array_equal(read, given)
    np.testing.assert_array_equal(np.signbit(read), np.signbit(given))


def test_ids_are_read_part_by_part(tmp_path: Path) -> None:
    writer = IdWriter(tmp_path / "ids")
    for ids in ([3, 1, 0], [0], [7, 0]):
        writer.append(np.array(ids, np.int32))
    file = writer.close()
    assert [file.read(part).tolist() for part in (2, 0, 1)] == [[7, 0], [3, 1, 0], [0]]
    assert file.read(0).dtype == np.int32
