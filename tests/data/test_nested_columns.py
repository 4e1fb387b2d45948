"""Nested columns by path and vectors, alike in every format that has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from format_kit import COLUMNAR, FORMATS, source, write
from reader_kit import FLOAT, INTEGER, TEXT, Reading, many, read, schema

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawColumn, RawSchema, VectorElement
from ziggurat.data.readers.columnar.paths import resolve
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.table_reader import read_table

NESTED = pa.table(
    {
        "geo": pa.array([{"at": {"lat": 1.5, "lon": 2}}, {"at": None}, None, {"at": {"lat": None, "lon": 3}}]),
        "basket": pa.array(
            [[{"id": 7, "tags": ["a"]}, {"id": None, "tags": []}], [], None, [{"id": 8, "tags": ["b", "c"]}]]
        ),
        "lists": pa.array([[[1, 2], [3]], [[]], None, [None, [4]]]),
        "geo.at.lon": [10, 20, 30, 40],
    }
)
WANTED = schema(
    **{
        "geo.at.lat": FLOAT,
        "geo.at.lon": INTEGER,
        "basket.id": many(INTEGER),
        "basket.tags": many(TEXT),
        "lists": many(INTEGER),
    }
)
ROWS = [
    (1.5, 10, [7], ["a"], [1, 2, 3]),
    (None, 20, [], [], []),
    (None, 30, [], [], []),
    (None, 40, [8], ["b", "c"], [4]),
]


def read_as(folder: Path, name: str, table: pa.Table, columns: RawSchema, **settings: Any) -> Reading:
    write(folder / name, table)
    return read(open_source(source(name, **settings), folder, columns))


def vector(length: int, name: str = "emb") -> RawSchema:
    elements = [VectorElement(name, index, length) for index in range(length)]
    return RawSchema(tuple(RawColumn(f"{name}[{each.index}]", FLOAT, vector=each) for each in elements))


@pytest.mark.parametrize("name", FORMATS)
def test_values_inside_columns_are_found_by_path(tmp_path: Path, name: str) -> None:
    reading = read_as(tmp_path, name, NESTED, WANTED)
    assert reading.rows == ROWS
    assert reading.bad == []


def test_rows_in_memory_have_the_same_paths() -> None:
    block = read_table(NESTED, WANTED)
    assert list(zip(*block.table.to_pydict().values(), strict=True)) == ROWS


def test_slow_json_finds_the_same_values(tmp_path: Path) -> None:
    write(tmp_path / "log.jsonl", NESTED)
    text = (tmp_path / "log.jsonl").read_text()
    (tmp_path / "log.jsonl").write_text(text + '{"geo": 5, "basket": [1], "lists": [1, [2]], "geo.at.lon": 1}\n')
    reading = read(open_source(source("log.jsonl"), tmp_path, WANTED))
    assert reading.rows == ROWS
    (bad,) = reading.bad
    assert (bad.line, bad.column) == (5, "geo.at.lat")
    assert bad.reason.startswith("wrong JSON type: received 5, an object with the key 'at' is declared")


def test_keys_of_maps(tmp_path: Path) -> None:
    maps = pa.array([[("red", 1), ("blue", 2)], None, [("blue", 3)], []], pa.map_(pa.string(), pa.int64()))
    deep = pa.array([[("x", {"n": 1})]] * 4, pa.map_(pa.string(), pa.struct([("n", pa.int64())])))
    table = pa.table({"m": maps, "deep": deep})
    columns = schema(**{"m.blue": INTEGER, "m.red": INTEGER, "deep.x.n": INTEGER})
    for name in COLUMNAR:
        assert read_as(tmp_path, name, table, columns).rows == [
            (2, 1, 1),
            (None, None, 1),
            (3, None, 1),
            (None, None, 1),
        ]


def test_a_name_that_exists_as_a_whole_takes_precedence() -> None:
    kind = pa.struct([("b.c", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
    found = resolve(pa.schema([("a", kind), ("a.b", pa.struct([("c", pa.bool_())]))]), "a.b.c")
    assert found is not None
    assert (found.column, found.steps, found.type) == ("a.b", ("c",), pa.bool_())
    inner = resolve(pa.schema([("a", kind)]), "a.b.c")
    assert inner is not None
    assert (inner.steps, inner.type) == (("b.c",), pa.int64())
    assert resolve(pa.schema([("a", kind)]), "a.b.d") is None


def test_nested_columns_are_read_in_blocks_that_resume_anywhere(tmp_path: Path) -> None:
    rows = 1_000
    table = pa.table(
        {"s": pa.array([{"n": n, "m": str(n)} for n in range(rows)]), "l": [[{"i": n}] for n in range(rows)]}
    )
    columns = schema(**{"s.n": INTEGER, "l.i": many(INTEGER)})
    expected = [(n, [n]) for n in range(rows)]
    for name in FORMATS:
        write(tmp_path / name, table, rows=300)
        reader = open_source(source(name), tmp_path, columns, block_bytes=2_000)
        whole = read(reader)
        assert whole.rows == expected, name
        assert len(whole.ends) > 3, name
        for end in whole.ends[:-1:5]:
            assert read(reader, end).rows == expected[whole.lines.index(end.line) :] if name == "log.jsonl" else True
            if name != "log.jsonl":
                assert read(reader, end).rows == expected[end.offset :], name
        joined = [row for each in reader.file_ranges() for row in read(reader, each.start, each.end).rows]
        assert joined == expected, name
        block = next(iter(reader.blocks(whole.ends[1])))
        assert reader.read_block(whole.ends[1], block.end).table.equals(block.table), name


@pytest.mark.parametrize("name", FORMATS)
def test_vectors_become_columns_and_broken_ones_bad_rows(tmp_path: Path, name: str) -> None:
    emb = pa.array([[1.5, 2.0, 3.0], None, [1.0, 2.0], [1.0, None, 2.5], [4.0, 5.0, float("nan")]])
    reading = read_as(tmp_path, name, pa.table({"emb": emb}), vector(3))
    assert reading.rows == [(1.5, 2.0, 3.0), (None, None, None)]
    assert reading.kinds() == [
        (3, "emb[0]", "not a vector of the declared length"),
        (4, "emb[0]", "a missing number in a vector"),
        (5, "emb[0]", "NaN or infinity"),
    ]
    assert "received 2 numbers, 3 are declared" in reading.bad[0].reason
    assert "number 2 of 3 is null" in reading.bad[1].reason
    assert "element 3 received nan" in reading.bad[2].reason
    missing = read_as(tmp_path, name, pa.table({"emb": emb}), vector(3), nan_is_missing=True)
    assert missing.rows[-1] == (4.0, 5.0, None)


def test_vectors_of_fixed_size(tmp_path: Path) -> None:
    table = pa.table({"emb": pa.array([[1, 2], None], pa.list_(pa.float16(), 2)), "n": pa.array([[[1, 2]], [[3]]])})
    for name in ("log.parquet", "log.arrow"):
        assert read_as(tmp_path, name, table, vector(2)).rows == [(1.0, 2.0), (None, None)]
        with pytest.raises(
            DataError, match=r"'emb': holds vectors of 2 numbers, vectors of 3 .*\n  hint: set `length: 2`"
        ):
            open_source(source(name), tmp_path, vector(3))
    with pytest.raises(DataError, match=r"column 'log': holds string, vectors of 2 numbers are declared"):
        read_as(tmp_path, "log.parquet", pa.table({"log": ["a"]}), vector(2, "log"))


def test_infinities_are_missing_where_the_source_says_so(tmp_path: Path) -> None:
    table = pa.table(
        {"f": [float("inf"), 1.5, float("-inf")], "i": [1.0, float("inf"), 3.0], "t": ["1e999", "inf", "2"]}
    )
    columns = schema(f=FLOAT, i=INTEGER, t=FLOAT)
    for name in ("log.parquet", "log.jsonl"):
        bad = read_as(tmp_path, name, table, columns)
        assert [row.line for row in bad.bad] == [1, 2, 3]
        assert "set `infinity_is_missing: true` on the source" in bad.bad[0].reason
        good = read_as(tmp_path, name, table, columns, infinity_is_missing=True)
        assert good.rows == [(None, 1, None), (1.5, None, None), (None, 3, 2.0)]


def test_deep_json_neither_crashes_nor_hides_rows(tmp_path: Path) -> None:
    deep = "[" * 900 + "1" + "]" * 900
    (tmp_path / "log.jsonl").write_text(f'{{"x": [1]}}\n{{"x": {deep}}}\n{{"x": [2]}}\n')
    reading = read(open_source(JsonLinesSource(files=["log.jsonl"]), tmp_path, schema(x=many(INTEGER))))
    assert reading.rows == [([1],), ([1],), ([2],)]
    (tmp_path / "log.jsonl").write_text(f'{{"x": [1]}}\n{{"x": {"[" * 10**5}}}\n')
    reading = read(open_source(JsonLinesSource(files=["log.jsonl"]), tmp_path, schema(x=many(INTEGER))))
    assert reading.kinds() == [(2, None, "malformed JSON")]
