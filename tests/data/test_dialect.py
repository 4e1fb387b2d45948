"""Text of any dialect is rewritten for the fast parser; the splitting of single records is the reference."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ziggurat.data.readers.csv.dialect import Dialect
from ziggurat.data.readers.csv.reader import parse_options
from ziggurat.data.readers.text.records import Records

FRAGMENTS = st.sampled_from(
    [b",", b"::", b" | ", b"|", b"\t", b" ", b'"', b'""', b"\\", b"\\N", b"a", b"7", b"#", b"\n", b"\r\n", b"\x1f"]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=30).map(b"".join)
DIALECTS = st.builds(
    Dialect,
    delimiter=st.sampled_from([b",", b"::", b" | ", b"\t", b"", b"\x01"]),
    newlines_in_values=st.booleans(),
    quotes=st.booleans(),
    escape=st.sampled_from([b"", b"\\"]),
    skip_blanks=st.booleans(),
    comment=st.sampled_from([b"", b"#"]),
).filter(lambda dialect: dialect.quotes or dialect.escape or not dialect.newlines_in_values)


@settings(max_examples=600, deadline=None)
@given(DIALECTS, TEXTS)
@example(Dialect(delimiter=b",", newlines_in_values=True, skip_blanks=True), b'"\r\n",')
def test_rewritten_text_has_the_cells_of_the_reference(dialect: Dialect, data: bytes) -> None:
    records = Records.of(data, 1, dialect)
    split = [dialect.split(records[row]) for row in range(len(records))]
    rewritten = dialect.rewritten(data)
    if any(isinstance(cells, str) for cells in split):
        assert rewritten is None or not dialect.quotes_close(rewritten)
        return
    if rewritten is None or not dialect.quotes_close(rewritten):
        return  # the reader then takes the reference itself
    widths = {len(cells) for cells in split}
    if len(widths) != 1 or widths == {1}:  # pyarrow takes an empty cell alone in its line for an empty line
        return
    names = [str(place) for place in range(widths.pop())]
    table = pacsv.read_csv(
        pa.BufferReader(rewritten),
        pacsv.ReadOptions(column_names=names, use_threads=False),
        parse_options(dialect),
        pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.binary()), strings_can_be_null=False),
    )
    assert [list(row.values()) for row in table.to_pylist()] == split


@settings(max_examples=300, deadline=None)
@given(DIALECTS, TEXTS, st.integers(0, 40))
def test_records_are_the_same_wherever_the_text_is_cut(dialect: Dialect, data: bytes, place: int) -> None:
    cut = dialect.last_record_end(data[:place])
    whole = Records.of(data, 1, dialect)
    head, tail = Records.of(data[:cut], 1, dialect), Records.of(data[cut:], 1 + data.count(b"\n", 0, cut), dialect)
    parts = [*((int(line), part[row]) for part in (head, tail) for row, line in enumerate(part.lines))]
    assert parts == [(int(line), whole[row]) for row, line in enumerate(whole.lines)]


@pytest.mark.parametrize(
    ("settings", "record", "cells"),
    [
        ({"delimiter": b"::"}, b"1::a:b::", [b"1", b"a:b", b""]),
        ({"delimiter": b"::"}, b'"x::y"::2', [b"x::y", b"2"]),
        ({"delimiter": b""}, b"  1 \t 2\t3  ", [b"1", b"2", b"3"]),
        ({"skip_blanks": True}, b' 1 , "a, b" ,c d ', [b"1", b"a, b", b"c d"]),
        ({"delimiter": b"\t", "skip_blanks": True}, b" a \t\t b", [b"a", b"", b"b"]),
        ({"quotes": False}, b'"a,5" x', [b'"a', b'5" x']),
        ({"escape": b"\\"}, rb'"say \"hi\"",a\,b,\N,c:\new,\\', [b'say "hi"', b"a,b", rb"\N", rb"c:\new", b"\\"]),
        ({"escape": b"\\", "newlines_in_values": True}, b"a\\\nb,c", [b"a\nb", b"c"]),
        ({"escape": b"\\"}, b"a,b\\", [b"a", b"b\\"]),
    ],
)
def test_cells_of_a_record(settings: dict[str, Any], record: bytes, cells: list[bytes]) -> None:
    assert Dialect(**settings).split(record) == cells
