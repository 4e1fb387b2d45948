"""Arrow types that few files have: read where that is sensible, else left out by ``init`` with the reason."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from format_kit import source, write
from reader_kit import INTEGER, many, read, schema

import ziggurat
from ziggurat.core.errors import DataError
from ziggurat.data.inference.nested import PERIODS, flatten
from ziggurat.data.readers.arrow.reader import open_arrow
from ziggurat.data.readers.blocks import Position, RawBlock
from ziggurat.data.readers.columnar.paths import plain_lists, take_steps
from ziggurat.data.readers.columnar.rows import ColumnarRows
from ziggurat.data.readers.frame.table import frame_table
from ziggurat.data.readers.parquet.reader import open_parquet
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.source_files import resolve_files

ROWS = 300
HALF = ROWS // 2
WORDS = pa.array([f"s{row}" for row in range(HALF)])
VIEWS = [pa.ListViewArray, pa.LargeListViewArray]


def view_of(kind: Any, values: pa.Array, starts: list[int], lengths: list[int], absent: list[bool] | None) -> Any:
    place = pa.int32() if kind is pa.ListViewArray else pa.int64()
    mask = None if absent is None else pa.array(absent, pa.bool_())
    return kind.from_arrays(pa.array(starts, place), pa.array(lengths, place), values, mask=mask)


def pairs(kind: Any) -> Any:
    values = pa.array([row % m for row in range(ROWS) for m in (5, 7)])
    return view_of(kind, values, list(range(0, 2 * ROWS, 2)), [2] * ROWS, None)


def dictionary(values: pa.Array) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([row % len(values) for row in range(ROWS)]), values)


def log(cells: pa.Array) -> pa.Table:
    return pa.table(
        {"user": [row % 20 for row in range(ROWS)], "col": cells, "click": [row % 3 % 2 for row in range(ROWS)]}
    )


@pytest.mark.parametrize("kind", VIEWS)
def test_views_of_lists_are_read_as_lists(tmp_path: Path, kind: Any) -> None:
    expected = [([row % 5, row % 7],) for row in range(ROWS)]
    write(tmp_path / "log.arrow", log(pairs(kind)), rows=77)
    columns = schema(col=many(INTEGER))
    assert read(open_source(source("log.arrow"), tmp_path, columns)).rows == expected
    text = ziggurat.draft_config([tmp_path / "log.arrow"], "click")
    assert "{name: col, kind: bag, type: integer" in text
    assert "7 different values, up to 2 a row" in text
    assert "{name: col, kind: bag, type: integer" in ziggurat.draft_config(log(pairs(kind)), "click")


@pytest.mark.parametrize("kind", VIEWS)
def test_views_may_overlap_leave_gaps_and_be_slices(kind: Any) -> None:
    draw = random.Random(3)
    for _ in range(300):
        rows, size = draw.randrange(1, 8), draw.randrange(10)
        values = pa.array([draw.choice([None, draw.randrange(9)]) for _ in range(size)], pa.int64())
        starts = [draw.randrange(size + 1) for _ in range(rows)]
        lengths = [draw.randrange(size - start + 1) for start in starts]
        absent = [draw.random() < 0.3 for _ in range(rows)] if draw.random() < 0.6 else None
        views = view_of(kind, values, starts, lengths, absent).slice(draw.randrange(rows))
        assert plain_lists(views).to_pylist() == views.to_pylist()
        batch = pa.RecordBatch.from_arrays([pa.ListArray.from_arrays(pa.array([0, len(views)]), views)], ["x"])
        flat = [value for each in views.to_pylist() for value in each or []]
        assert take_steps(batch, ("x",)).to_pylist() == [flat]


def test_fields_of_objects_in_views() -> None:
    objects = pa.array([{"a": row} for row in range(4)])
    batch = pa.RecordBatch.from_arrays([view_of(pa.ListViewArray, objects, [2, 0], [2, 3], None)], ["x"])
    assert take_steps(batch, ("x", "a")).to_pylist() == [[2, 3], [0, 1, 2]]


UNION_TYPES = pa.array([0, 1] * HALF, pa.int8())
TYPES: dict[str, tuple[Callable[[], pa.Array], str]] = {
    "dense union": (
        lambda: pa.UnionArray.from_dense(
            UNION_TYPES, pa.array([row // 2 for row in range(ROWS)], pa.int32()), [pa.array(range(HALF)), WORDS]
        ),
        "left out: values of the type dense_union<",
    ),
    "sparse union": (
        lambda: pa.UnionArray.from_sparse(UNION_TYPES, [pa.array(range(ROWS)), pa.array(["s"] * ROWS)]),
        "left out: values of the type sparse_union<",
    ),
    "tensor": (
        lambda: pa.FixedShapeTensorArray.from_numpy_ndarray(np.random.default_rng(0).normal(size=(ROWS, 2, 3))),
        "{name: col, kind: vector, length: 6,",
    ),
    "times": (
        lambda: dictionary(pa.array([86_400 * day for day in range(20)], pa.timestamp("s"))),
        "time_format: iso",
    ),
    "lists": (lambda: dictionary(pa.array([[1], [2, 3], None])), "{name: col, kind: bag, type: integer"),
    "objects": (
        lambda: dictionary(pa.array([{"a": 1}, {"a": 2}])),
        "{name: col_a, kind: categorical, column: col.a, type: integer",
    ),
    "no values": (lambda: pa.array([[]] * ROWS, pa.list_(pa.float32(), 0)), "left out: lists of no values"),
    "long vectors": (
        lambda: pa.array(list(np.random.default_rng(0).normal(size=(ROWS, 4_097))), pa.list_(pa.float64(), 4_097)),
        "left out: vectors of 4,097 numbers, of which 4,096 are allowed: shorten them",
    ),
}


@pytest.mark.parametrize("what", TYPES)
def test_init_reads_a_type_or_says_why_not_and_prepare_agrees(tmp_path: Path, what: str) -> None:
    make, expected = TYPES[what]
    table = log(make())
    for name in ("log.arrow", "log.parquet"):
        try:
            write(tmp_path / name, table)
        except pa.ArrowNotImplementedError:
            assert name == "log.parquet"  # which has neither unions nor dictionaries of nested values
            continue
        ziggurat.init([tmp_path / name], "click", out=tmp_path / "exp.yaml")
        assert expected in (tmp_path / "exp.yaml").read_text()
        assert ziggurat.prepare(tmp_path / "exp.yaml", folder=tmp_path / f"prepared {name}").split("train").rows
    assert expected in ziggurat.draft_config(table, "click")


def test_a_union_cannot_be_declared(tmp_path: Path) -> None:
    write(tmp_path / "log.arrow", log(TYPES["sparse union"][0]()))
    with pytest.raises(DataError, match=r"'col': holds values of several types \(.*\n  hint: write it as integer"):
        open_source(source("log.arrow"), tmp_path, schema(col=INTEGER))


def test_a_parquet_column_without_values_does_not_hide_the_others(tmp_path: Path) -> None:
    empty = pa.array([[]] * ROWS, pa.list_(pa.float32(), 0))
    write(tmp_path / "log.parquet", log(empty))
    reading = read(open_source(source("log.parquet"), tmp_path, schema(user=INTEGER, col=many(INTEGER))))
    assert reading.rows == [(row % 20, []) for row in range(ROWS)]
    rows = ColumnarRows(resolve_files(["log.parquet"], tmp_path, (".parquet",)), open_parquet, "Parquet")
    assert rows.schema.names == ["user", "col", "click"]


def test_rows_with_views_of_text_and_runs_are_passed_through(tmp_path: Path) -> None:
    views = pa.array([f"s{row}" for row in range(ROWS)], pa.string_view())
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([100, ROWS], pa.int32()), pa.array(["a", "b"]))
    inside = pa.StructArray.from_arrays([views], names=["x"])
    table = pa.table({"v": views, "r": runs, "s": inside, "l": pairs(pa.ListViewArray), "d": dictionary(inside[:3])})
    write(tmp_path / "log.arrow", table)
    (file,) = resolve_files(["log.arrow"], tmp_path, (".arrow",))
    rows = ColumnarRows([file], open_arrow, "Arrow IPC")
    block = RawBlock(table, np.arange(1, ROWS + 1), str(file.path), [], Position(1), 0)
    taken, texts = rows.take(block, np.array([0, 150]), np.array([3]))
    assert taken.to_pylist() == [row for k, row in enumerate(table.to_pylist()) if k in (0, 150)]
    assert texts == ['{"v": "s2", "r": "a", "s": {"x": "s2"}, "l": [2, 2], "d": {"x": "s2"}}']


def test_pandas_frames_are_read_as_they_are_meant(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    pd = pytest.importorskip("pandas", reason="pandas is not installed; ziggurat does not need it")
    months = pd.period_range("2024-01", periods=12, freq="M")
    frame = pd.DataFrame({"month": months, "range": pd.cut(range(12), [-1, 3, 7, 12]), 3: range(12)}, index=months)
    table = frame_table(frame).table
    assert not recwarn.list
    assert table.column_names[:3] == ["month", "range", "3"]
    for column in (table.column(0), table.column(3)):
        assert pa.types.is_timestamp(column.type)
        assert column[1].as_py().isoformat() == "2024-02-01T00:00:00"
    flat = flatten(table)
    assert flat.frame["range.left"].to_list() == [-1] * 4 + [3] * 4 + [7] * 4
    assert not flat.left_out
    for names in (["a", "b", "a"], ["a", 1, "1"]):
        repeated = names[-1]
        with pytest.raises(DataError, match=f"frame: holds column '{repeated}' more than once"):
            frame_table(pd.DataFrame([[1, 2, 3]], columns=names))
    stored = pd.DataFrame({"month": months, "n": range(12)})
    stored.to_parquet(tmp_path / "log.parquet")
    assert flatten(pa.Table.from_pandas(stored)).left_out == {"month": PERIODS}
    assert flatten(pq.read_table(tmp_path / "log.parquet")).left_out == {"month": PERIODS}


def test_vectors_are_not_read_from_text(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("watch,click\n1 2,0\n3 4,1\n")
    vector = ziggurat.Experiment.model_validate(
        {
            "name": "text",
            "data": {
                "folder": str(tmp_path),
                "source": {"name": "csv", "files": ["log.csv"]},
                "labels": [{"name": "click"}],
            },
            "features": [{"name": "watch", "kind": "vector", "length": 2}],
        }
    )
    with pytest.raises(
        DataError, match=r"log\.csv, column 'watch': is declared `kind: vector`.*not read from text"
    ) as told:
        ziggurat.prepare(vector, folder=tmp_path / "prepared")
    assert "Parquet, Arrow, ORC or JSON" in told.value.hint


def test_lists_of_numbers_in_a_typed_header(tmp_path: Path) -> None:
    rows = "".join(f"{row % 9}\t{row / 7} {row / 3}\t{row % 2}\n" for row in range(100))
    (tmp_path / "log.inter").write_text("user_id:token\temb:float_seq\tlabel:float\n" + rows)
    text = ziggurat.draft_config([tmp_path / "log.inter"], "label:float")
    assert "`kind: vector` reads lists of one length, but none that are text" in text
