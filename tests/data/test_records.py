"""The ends of records, compared with a byte-by-byte reference."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.data.readers.csv.record_split import RecordSplitter
from ziggurat.data.readers.text.records import RecordRules, Records

FRAGMENTS = st.sampled_from([b",", b'"', b"\n", b"\r\n", b"\r", b"a", b"", b'""', b',"', b'",'])
TEXTS = st.lists(FRAGMENTS, max_size=40).map(b"".join)


def byte_by_byte(data: bytes, newlines_in_values: bool) -> tuple[list[int], bool]:
    """Returns the ends of records, and whether a quoted value is left open or contains a forbidden line end."""
    ends: list[int] = []
    field_start, quoted, held = True, False, False
    place = 0
    while place < len(data):
        byte = data[place : place + 1]
        place += 1
        if quoted:
            if byte == b'"' and data[place : place + 1] == b'"':
                place += 1
            elif byte == b'"':
                quoted = False
            held |= byte == b"\n" and quoted
            if byte == b"\n" and not newlines_in_values:
                ends.append(place)
        elif byte == b'"' and field_start:
            quoted, field_start = True, False
        else:
            field_start = byte in {b",", b"\n"}
            if byte == b"\n":
                ends.append(place)
    return ends, quoted or (held and not newlines_in_values)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_line_ends_inside_quotes_do_not_end_records_if_allowed_in_values(data: bytes) -> None:
    rules = RecordRules(b",", newlines_in_values=True)
    ends, _ = byte_by_byte(data, newlines_in_values=True)
    assert rules.ends(data).tolist() == ends
    assert rules.last_record_end(data) == (ends[-1] if ends else 0)


@settings(max_examples=300, deadline=None)
@given(TEXTS)
def test_every_line_end_ends_a_record_if_not_allowed_in_values(data: bytes) -> None:
    rules = RecordRules(b",")
    assert rules.ends(data).tolist() == [place + 1 for place in range(len(data)) if data[place] == 10]
    assert rules.last_record_end(data) == data.rfind(b"\n") + 1


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.booleans())
def test_open_quotes_are_detected(data: bytes, newlines_in_values: bool) -> None:
    _, trouble = byte_by_byte(data, newlines_in_values)
    assert RecordRules(b",", newlines_in_values).quotes_close(data) == (not trouble)


def test_lines_and_texts_of_records() -> None:
    records = Records.of(b'\na,"b\n\nc"\r\n\r\nd\ne\r', 10, RecordRules(b",", newlines_in_values=True))
    assert [records[row] for row in range(len(records))] == [b'a,"b\n\nc"', b"d", b"e"]
    assert records.lines.tolist() == [11, 15, 16]
    records = Records.of(b"\na\n\r\nb", 1, RecordRules())
    assert [records[row] for row in range(len(records))] == [b"a", b"b"]
    assert records.lines.tolist() == [2, 4]


def test_cells_of_a_record() -> None:
    split = RecordSplitter(b",")
    assert split(b"") == [b""]
    assert split(b"a,,b,") == [b"a", b"", b"b", b""]
    assert split(b'"a,b","","x""y",z"w"') == [b"a,b", b"", b'x"y', b'z"w"']
    assert split(b'"a"b"c,d') == [b'ab"c', b"d"]
    assert split(b'"a\n\r\xff"') == [b"a\n\r\xff"]
    assert isinstance(split(b'a,"b""'), str)
    assert RecordSplitter(b"|")(b'"a|b"|c,d') == [b"a|b", b"c,d"]
