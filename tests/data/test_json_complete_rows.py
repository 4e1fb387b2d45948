"""Complete rows of JSON lines: msgspec's way and that of Python's parser make the same columns, or the second one."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ziggurat.core.errors import DataError
from ziggurat.core.schema import RawColumn, RawSchema, ValueType
from ziggurat.data.readers.blocks import RawBlock
from ziggurat.data.readers.json_lines.rows import JsonRows

NUMBERS = [RawColumn("n", ValueType.FLOAT), RawColumn("i", ValueType.INTEGER)]
TYPED = RawSchema((RawColumn("unused", ValueType.TEXT),))


def rows_of(typed: bool = False) -> JsonRows:
    names = {"log": ("a", "b", "n", "i")}
    found = JsonRows([], names, {"a": "|"}, TYPED if typed else None, NUMBERS)
    if typed:  # only the numbers matter here; the typed column would be taken from the block
        found._typed.clear()
    return found


def both(lines: list[bytes], typed: bool = False) -> tuple[pa.Table | None, pa.Table]:
    rows = rows_of(typed)
    block = RawBlock(pa.table({}), np.arange(1, len(lines) + 1), "log")
    kept, records = np.arange(len(lines)), pa.array(lines, pa.binary())
    return rows._by_values(block, kept, records), rows._by_rows(block, kept, records)


@pytest.mark.parametrize(
    "line",
    [
        '{"a":"x","b":null,"n":1.50,"i":12345678901234567890123}',
        '{ "a" : [1, 2.50, "three", null, true] , "b" : [1, 2.50, "three", null, true] }',
        '{"a":[],"b":{}}',
        '{"a":["with [ bracket", "quote \\" and \\u00e9"],"b":"line\\nend"}',
        '{"a":[[1],[2]],"b":{"c":{"d":[1e5,-0.0]}}}',
        '{"a":[{"k":1}],"b":" spaces "}',
        '{"a":true,"b":false}',
        '{"a":"null","b":"[1]"}',
        '{"a":"first","a":"second","b":1E400}',
        '{"a":"ünïcode","b":["",""]}',
        "{}",
    ],
)
def test_both_ways_make_the_same_texts(line: str) -> None:
    fast, slow = both([line.encode()])
    assert fast is not None
    assert fast.equals(slow), (fast.to_pylist(), slow.to_pylist())


def test_digits_stay_as_they_are_written() -> None:
    fast, _ = both([b'{"a":1.10,"b":1e2,"n":-0,"i":00.5}'.replace(b"00.5", b"0.50")])
    assert fast is not None
    assert fast.to_pylist() == [{"a": "1.10", "b": "1e2", "n": "-0", "i": "0.50"}]


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "n", "i"]), values), max_size=5), st.booleans())
def test_both_ways_agree_on_any_rows(rows: list[dict[str, Any]], ascii_only: bool) -> None:
    lines = [json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass") for row in rows]
    try:
        fast, slow = both(lines)
    except DataError:
        return
    assert fast is None or fast.equals(slow), (fast.to_pylist(), slow.to_pylist())


def test_numbers_are_typed_by_both_ways() -> None:
    fast, slow = both([b'{"n":0.1,"i":9223372036854775807}', b'{"n":null}', b'{"n":1e308,"i":-3}'], typed=True)
    assert fast is not None
    assert fast.equals(slow)
    assert fast.column("n").to_pylist() == [0.1, None, 1e308]
    assert fast.column("i").to_pylist() == [2**63 - 1, None, -3]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"i":9223372036854775808}', "received '9223372036854775808', the first rows hold int64"),
        (b'{"i":1.0}', "received '1.0'"),
        (b'{"i":1e3}', "received '1e3'"),
        (b'{"n":"0.5x"}', "received '0.5x', the first rows hold double"),
        (b'{"n":true}', "received 'True'"),
        (b'{"zzz":1}', "key 'zzz' is not in the first rows"),
        (b'{"a":"\xff"}', "not UTF-8"),
    ],
)
def test_rows_at_fault_are_named(line: bytes, message: str) -> None:
    rows = rows_of(typed=True)
    block = RawBlock(pa.table({}), np.array([7]), "log")
    records = pa.array([line], pa.binary())
    assert rows._by_values(block, np.array([0]), records) is None
    with pytest.raises(DataError, match="line 7") as raised:
        rows._by_rows(block, np.array([0]), records)
    assert message in str(raised.value)


def test_what_is_no_strict_json_is_read_by_pythons_parser() -> None:
    fast, slow = both([b'{"a":NaN,"b":"\\ud800"}'])
    assert fast is None
    assert slow.to_pylist()[0]["a"] == "NaN"
