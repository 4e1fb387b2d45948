"""Draws texts as logs are found: tables in any form, JSON lines of any shape, and what damage makes of them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st

LABEL = "click"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A drawn file.

    Attributes:
        name: its name, with the suffix of its format.
        data: its bytes.
        columns: the names of its columns, if the text is intact and has a header.
    """

    name: str
    data: bytes
    columns: tuple[str, ...] = ()


_WORDS = st.text(st.sampled_from("abz ÄöñžЖ東カ한0 \t,;|:\\\"'#-_."), max_size=8)
_NAMES = st.lists(
    st.sampled_from(["user", "item_id", "price", "ts", "town", "user:token", "a b", "größe", "x", "tags", "rating"]),
    min_size=1, max_size=4, unique=True,
)  # fmt: skip
_CELLS = {
    "integer": st.integers(-5, 40).map(str),
    "large": st.integers(2**53, 2**64 + 5).map(str),
    "fraction": st.floats(-1e6, 1e6, allow_nan=False).map(lambda value: f"{value:.3f}"),
    "odd number": st.sampled_from(
        ["1.0", "1,5", "$3", "4%", "1e3", "NaN", "inf", "-inf", "007", "+1", "0x1F", "1_0", ""]
    ),
    "word": _WORDS,
    "time": st.sampled_from(
        ["2024-05-01", "2024-05-01 10:00:00", "01/02/2024", "31.12.2024 23:59", "24051013", "later"]
    ),
    "list": st.lists(st.integers(0, 9), max_size=4).map(lambda ids: "|".join(map(str, ids))),
    "brackets": st.lists(st.integers(0, 9), max_size=4).map(str),
    "empty": st.sampled_from(["", "NA", "\\N", "null", "?", " "]),
}
_DELIMITERS = [",", ",", ",", "\t", ";", "|", "::", "||", "\x01", ", ", " ", "   "]
_ENCODINGS = ["utf-8"] * 6 + ["utf-8-sig", "utf-16", "utf-16-le", "cp1252", "cp1251", "shift_jis", "gb18030", "koi8-r"]


@st.composite
def tables(draw: st.DrawFn) -> Drawn:
    """Draws delimited text."""
    names = [*draw(_NAMES), LABEL]
    kinds = [draw(st.sampled_from(sorted(_CELLS))) for _ in names[:-1]]
    count = draw(st.sampled_from([0, 1, 4, 6, 8, 12]))
    rows = [[*(draw(_CELLS[kind]) for kind in kinds), "01"[place % 2]] for place in range(count)]
    rows = rows * draw(st.sampled_from([1, 1, 5, 30]))
    delimiter, quoting = (
        draw(st.sampled_from(_DELIMITERS)),
        draw(st.sampled_from(["need", "need", "all", "none", "back"])),
    )
    header = draw(st.sampled_from([True, True, True, False]))
    lines = [_line(row, delimiter, quoting) for row in ([names] if header else []) + rows]
    lines = draw(
        st.sampled_from([_as_is, _as_is, _as_is, _with_end, _rows_with_end, _with_comments, _with_title])
    ).__call__(lines)
    text = draw(st.sampled_from(["\n", "\n", "\r\n", "\r"])).join([*lines, ""])
    encoding = draw(st.sampled_from(_ENCODINGS))
    data = text.encode(encoding, "replace")
    suffix = draw(st.sampled_from([".csv", ".csv", ".tsv", ".txt", ".data"]))
    return _stored(
        draw, Drawn(f"log{suffix}", data, tuple(names) if header and count and encoding.startswith("utf") else ())
    )


def _line(cells: list[str], delimiter: str, quoting: str) -> str:
    special = (delimiter, '"', "\n", "\r")
    match quoting:
        case "none":
            written = cells
        case "back":
            written = [
                cell.replace("\\", "\\\\").replace('"', '\\"').replace(delimiter, f"\\{delimiter}") for cell in cells
            ]
        case _:
            written = [
                '"' + cell.replace('"', '""') + '"'
                if quoting == "all" or any(mark in cell for mark in special)
                else cell
                for cell in cells
            ]
    return delimiter.join(written)


def _as_is(lines: list[str]) -> list[str]:
    return lines


def _with_end(lines: list[str]) -> list[str]:
    return [f"{line}," for line in lines]


def _rows_with_end(lines: list[str]) -> list[str]:
    return [*lines[:1], *(f"{line}," for line in lines[1:])]


def _with_comments(lines: list[str]) -> list[str]:
    return ["# made by hand", *lines[:3], "# more", *lines[3:]]


def _with_title(lines: list[str]) -> list[str]:
    return ["A report", "", *lines]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats() | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "c.d", "é"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def json_lines(draw: st.DrawFn) -> Drawn:
    """Draws JSON lines, of one shape or of any."""
    if draw(st.booleans()):
        kinds = {name: draw(st.sampled_from(sorted(_CELLS))) for name in draw(_NAMES)}
        rows: list[Any] = [
            {name: draw(_CELLS[kind]) for name, kind in kinds.items()} | {LABEL: place % 2}
            for place in range(draw(st.integers(1, 10)))
        ]
    else:
        rows = [{"a": draw(_JSON), LABEL: place % 2} for place in range(draw(st.integers(1, 8)))]
        rows += draw(st.lists(_JSON, max_size=2))
    text = "".join(
        json.dumps(row, ensure_ascii=draw(st.booleans())) + "\n" for row in rows * draw(st.sampled_from([1, 9]))
    )
    encoding = draw(st.sampled_from(["utf-8"] * 5 + ["utf-16"]))
    return _stored(draw, Drawn("log.jsonl", text.encode(encoding, "replace")))


@st.composite
def junk(draw: st.DrawFn) -> Drawn:
    """Draws bytes with the marks of delimited text among them."""
    marks = [
        b",",
        b'"',
        b"\n",
        b"\r",
        b"\t",
        b"a",
        b"1",
        b"0",
        b"\\",
        b"::",
        b"#",
        b"\xff",
        b"\x00",
        b"\xc3\xa9",
        b" ",
        b"{",
    ]
    data = b"".join(draw(st.lists(st.sampled_from(marks), min_size=1, max_size=80)))
    return Drawn(f"log{draw(st.sampled_from(['.csv', '.tsv', '.jsonl', '.txt', '.libsvm']))}", data)


EXAMPLES = st.one_of(tables(), tables(), tables(), json_lines(), junk())


def _stored(draw: st.DrawFn, drawn: Drawn) -> Drawn:
    """Damages some files, and compresses some."""
    if draw(st.integers(0, 4)) == 0 and drawn.data:
        drawn = Drawn(drawn.name, damaged(draw, drawn.data))
    kind = draw(st.sampled_from([""] * 10 + [".gz", ".bz2", ".xz", ".zip"]))
    data = compressed(drawn.data, kind)
    if kind and draw(st.integers(0, 5)) == 0:
        return Drawn(drawn.name + kind, damaged(draw, data))
    return Drawn(drawn.name + kind, data, drawn.columns)


def compressed(data: bytes, suffix: str) -> bytes:
    """Returns the content of a file with this suffix."""
    match suffix:
        case ".gz":
            return gzip.compress(data)
        case ".bz2":
            return bz2.compress(data)
        case ".xz":
            return lzma.compress(data)
        case ".zip":
            sink = io.BytesIO()
            with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("log.csv", data)
            return sink.getvalue()
        case _:
            return data


def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Returns ``data`` cut, overwritten, with a part missing, doubled or in another place."""
    start = draw(st.integers(0, max(0, len(data) - 1)))
    length = draw(st.sampled_from([1, 1, 2, 4, 16, 64, 1000]))
    part, rest = data[start : start + length], data[start + length :]
    return draw(
        st.sampled_from(
            [
                data[:start],
                data[:start] + bytes(len(part)) + rest,
                data[:start] + bytes(255 - byte for byte in part) + rest,
                data[:start] + rest,
                data[:start] + part + part + rest,
                rest + data[:start],
                part + data,
                data + part,
            ]
        )
    )
