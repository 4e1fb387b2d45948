"""JSON arrays and Python literals are read as JSON lines are, element by element."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
from reader_kit import INTEGER, TEXT, many, read, schema

from ziggurat.cli.init import draft_config
from ziggurat.core.errors import DataError
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.text import elements
from ziggurat.data.readers.text.elements import ArrayElements, json_of_literal
from ziggurat.training.api import load_experiment, predict_files, prepare, train

COLUMNS = schema(**{"user.id": INTEGER, "text": TEXT, "tags": many(TEXT)})
ROWS = [
    {"user": {"id": k}, "text": f'a "q" [{{,\\ \n{k}', "tags": ["x,y", "]"][: k % 3]} for k in range(500)
]  # fmt: skip
EXPECTED = [(row["user"]["id"], row["text"], row["tags"]) for row in ROWS]  # type: ignore[index]


class Chunks:
    """A stream that is read in pieces of ``size`` bytes, whatever is asked for."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, nbytes: int) -> bytes:
        piece, self._data = self._data[:nbytes], self._data[nbytes:]
        return piece


def write_array(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.mark.parametrize("name", ["log.json", "log.json.gz"])
@pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}])
def test_arrays_are_read_as_lines(tmp_path: Path, name: str, layout: dict[str, Any]) -> None:
    write_array(tmp_path / name, "\ufeff\n " + json.dumps(ROWS, **layout) + "\n\n")
    config = JsonLinesSource(files=[name], records="array")
    source = open_source(config, tmp_path, COLUMNS, block_bytes=4_000)
    whole = read(source)
    assert whole.rows == EXPECTED
    assert whole.lines == list(range(1, 501))
    assert len(whole.ends) > 5
    for end in whole.ends[:-1:3]:
        assert read(source, end).rows == EXPECTED[end.line - 1 :]
    assert [row for each in source.file_ranges() for row in read(source, each.start, each.end).rows] == EXPECTED


def test_malformed_elements_are_rejected_with_their_number(tmp_path: Path) -> None:
    good = '{"user": {"id": 1}, "text": "t", "tags": []}'
    text = f'[{good}, {{"user": oops}}, {good}, 7, {good}, {{"text": "a\nb"}}] trailing'
    (tmp_path / "log.json").write_text(text)
    reading = read(open_source(JsonLinesSource(files=["log.json"], records="array"), tmp_path, COLUMNS))
    assert reading.lines == [1, 3, 5]
    assert reading.kinds() == [(number, None, "malformed JSON") for number in (2, 4, 6, 7)]


def test_arrays_that_are_not_closed_or_no_arrays(tmp_path: Path) -> None:
    config = JsonLinesSource(files=["log.json"], records="array")
    whole = json.dumps(ROWS)
    for cut in range(1, len(whole) - 1, 997):
        (tmp_path / "log.json").write_text(whole[:cut])
        with pytest.raises(DataError, match=r"log\.json: the JSON array is not closed"):
            read(open_source(config, tmp_path, COLUMNS))
    (tmp_path / "log.json").write_text('{"user": {"id": 1}, "text": "t", "tags": []}\n')
    with pytest.raises(DataError, match=r"is no JSON array, as it does not begin with \["):
        open_source(config, tmp_path, COLUMNS)
    (tmp_path / "log.json").write_text(whole)
    with pytest.raises(DataError, match=r"holds a JSON array, not JSON lines\n  hint: set `records: array`"):
        open_source(JsonLinesSource(files=["log.json"]), tmp_path, COLUMNS)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(['"', "\\", "[", "},{", '\\"']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(values=st.lists(JSON, max_size=6), size=st.integers(1, 9), indent=st.sampled_from([None, 0, 2]))
def test_any_array_is_cut_into_its_elements(values: list[Any], size: int, indent: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "_READ_BYTES", size)
        text = json.dumps(values, indent=indent, ensure_ascii=False).encode("utf-8", "surrogatepass")
        stream = ArrayElements(Chunks(text), "x")
        found = b""
        while piece := stream.read(7):
            found += piece
        assert [json.loads(line) for line in found.split(b"\n") if line.strip()] == values


@hypothesis.settings(deadline=None, max_examples=200)
@hypothesis.given(value=st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_python_literals_become_json(value: dict[str, Any]) -> None:
    try:
        line = repr(value).encode("utf-8")
    except UnicodeEncodeError:
        hypothesis.reject()
    assert json.loads(json_of_literal(line)) == value


def test_literals_that_are_none_stay_as_they_are() -> None:
    for line in (b"{'a': open('x')}", b"{'a': 1", b"[" * 5_000, b"{'a': {1: {2, 'x'}}}", b"", b"\xff'", b"{'a': 1j}"):
        assert json_of_literal(line) == line
    assert json_of_literal(b"{u'a': (1, None), 'b': {3, 1}, 'c': b'd'}") == b'{"a": [1, null], "b": [1, 3], "c": "d"}'


@pytest.mark.parametrize("records", ["array", "python"])
def test_init_finds_them_and_predict_reads_them(tmp_path: Path, records: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(1)
    rows = [
        {"reviewerID": f"A{draw.randrange(30)}", "helpful": [k % 4, 3], "says": "it's \"fine\"", "click": k % 2 == 0}
        for k in range(300)
    ]  # fmt: skip
    text = json.dumps(rows) if records == "array" else "".join(f"{row!r}\n" for row in rows)
    Path("log.json").write_text(text)
    config = draft_config("log.json", "click")
    assert f"\n    records: {records}  # " in config
    assert "# 300 rows, all examined" in config
    Path("exp.yaml").write_text(config)
    experiment = load_experiment("exp.yaml", ["training.epochs=1", "model={name: dnn}"])
    assert sum(prepare(experiment).split(name).rows for name in ("train", "validation", "test")) == 300
    run = train(experiment, "run").run
    for suffix in (".jsonl", ".csv", ".parquet"):
        assert predict_files(run, "log.json", f"out{suffix}").rows == 300
    objects = [json.loads(line) for line in Path("out.jsonl").read_text().splitlines()]
    assert [{key: each[key] for key in rows[0]} for each in objects] == rows
