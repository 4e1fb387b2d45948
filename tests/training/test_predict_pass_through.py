"""Rows pass through prediction without loss; from text to text, their text is unchanged."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import DataError
from ziggurat.training import api

HEAD = ["user", "item", "age", "tags", "history", "click", "note", "more"]
ODD_ROWS = [
    ["u1", "007", "20", "1|2", "5", "NULL", "plain", "0.10"],
    ["u2", "7.0", "1e1", "NULL", "", "\\N", 'a "quoted" text, with comma', " spaces "],
    ["u3", " 7 ", "NULL", "01||2", "1|2", "2", "", "é"],
    ["NULL", "0x1F", "+5.50", "", "NULL", "x", "tab\there", "-0"],
    ["", "", "", "", "", "", "", ""],
]


def write_rows(path: Path, rows: list[list[str]], delimiter: str = ",") -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        out.writerow(HEAD)
        out.writerows(rows)


def read_rows(path: Path, delimiter: str = ",") -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.reader(file, delimiter=delimiter))


@pytest.fixture
def run(make_experiment: MakeExperiment) -> Path:
    experiment = make_experiment(data__source__null_values=["NULL", "\\N"], training__epochs=1)
    return api.train(experiment, "run").run.folder


def expected_probabilities(run: Path) -> np.ndarray[Any, Any]:
    rows = {
        "user": ["u1", "u2", "u3", None, None],
        "item": [7, 7, 7, 31, None],
        "age": [20.0, 10.0, None, 5.5, None],
        "tags": [[1, 2], [], [1, 2], [], []],
        "history": [[5], [], [1, 2], [], []],
    }
    return api.predict(run, rows)[:, 0]


def test_csv_lines_are_copied_byte_for_byte(run: Path) -> None:
    write_rows(Path("in.csv"), ODD_ROWS)
    raw = Path("in.csv").read_bytes().replace(b"u1,007", b'"u1","007"').replace(b"plain", b"latin \xe9")
    Path("in.csv").write_bytes(raw)
    assert api.predict_files(run, ["in.csv"], Path("out.csv")).rows == len(ODD_ROWS)
    lines = Path("out.csv").read_bytes().splitlines()
    assert [line.rpartition(b",")[0] for line in lines] == raw.splitlines()
    probabilities = np.array([float(line.rpartition(b",")[2]) for line in lines[1:]], np.float32)
    np.testing.assert_array_equal(probabilities, expected_probabilities(run))


@pytest.mark.parametrize("suffix", ["tsv", "jsonl"])
def test_other_text_formats_copy_the_text_of_csv_cells(run: Path, suffix: str) -> None:
    write_rows(Path("in.csv"), ODD_ROWS)
    out = Path(f"out.{suffix}")
    api.predict_files(run, ["in.csv"], out)
    if suffix == "tsv":
        head, *rows = read_rows(out, "\t")
        assert head == [*HEAD, "probability"]
        probabilities = [float(row.pop()) for row in rows]
    else:
        objects = [json.loads(line) for line in out.read_text().splitlines()]
        probabilities = [row.pop("probability") for row in objects]
        assert all(list(row) == HEAD for row in objects)
        rows = [list(row.values()) for row in objects]
    assert rows == ODD_ROWS
    np.testing.assert_array_equal(np.array(probabilities, np.float32), expected_probabilities(run))


def test_csv_to_parquet_types_the_features_and_keeps_other_cells_as_text(run: Path) -> None:
    write_rows(Path("in.csv"), ODD_ROWS)
    api.predict_files(run, ["in.csv"], Path("out.parquet"))
    frame = pl.read_parquet("out.parquet")
    assert frame.columns == [*HEAD, "probability"]
    assert frame["item"].to_list() == [7, 7, 7, 31, None]
    assert frame["tags"].to_list() == [[1, 2], [], [1, 2], [], []]
    assert frame["more"].to_list() == ["0.10", " spaces ", "é", "-0", None]
    np.testing.assert_array_equal(frame["probability"].to_numpy(), expected_probabilities(run))


def test_files_of_different_columns_keep_all_columns(run: Path) -> None:
    write_rows(Path("1.csv"), ODD_ROWS[:2])
    Path("2.csv").write_text("extra,history,tags,age,item,user\n007,5,1,20,3,u1\n")
    api.predict_files(run, ["1.csv", "2.csv"], Path("out.csv"))
    head, *rows = read_rows(Path("out.csv"))
    assert head == [*HEAD, "extra", "probability"]
    assert [row[:-1] for row in rows] == [
        *([*row, ""] for row in ODD_ROWS[:2]),
        ["u1", "3", "20", "1", "5", "", "", "", "007"],
    ]


@pytest.mark.parametrize(("delimiter", "suffix"), [("\t", "tsv"), (";", "csv")])
def test_other_delimiters(make_experiment: MakeExperiment, delimiter: str, suffix: str) -> None:
    log = read_rows(Path("log.csv"))
    with Path("log.txt").open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(log)
    source = {"name": "csv", "files": ["log.txt"], "delimiter": delimiter}
    run = api.train(make_experiment(data__source=source, training__epochs=1), "run").run.folder
    api.predict_files(run, ["log.txt"], Path(f"out.{suffix}"))
    scored = read_rows(Path(f"out.{suffix}"), "\t" if suffix == "tsv" else ",")
    assert [row[:-1] for row in scored] == log


def test_several_files_with_a_glob_and_compression(run: Path) -> None:
    write_rows(Path("a.csv"), ODD_ROWS[:2])
    write_rows(Path("b.csv"), ODD_ROWS[2:])
    with gzip.open("b.csv.gz", "wb") as file:
        file.write(b"\xef\xbb\xbf" + Path("b.csv").read_bytes())
    Path("b.csv").unlink()
    api.predict_files(run, ["[ab].csv*"], Path("out.csv"))
    assert [row[:-1] for row in read_rows(Path("out.csv"))] == [HEAD, *ODD_ROWS]


def test_cells_that_are_not_utf8_are_refused_if_the_output_must_be(run: Path) -> None:
    write_rows(Path("in.csv"), ODD_ROWS)
    Path("in.csv").write_bytes(Path("in.csv").read_bytes().replace(b"plain", b"latin \xe9"))
    with pytest.raises(DataError, match=r"in.csv, line 2, column 'note': not UTF-8: received b'latin \\xe9'"):
        api.predict_files(run, ["in.csv"], Path("out.jsonl"))
    assert not list(Path().glob("*out.jsonl*"))


JSON_LINES = [
    '{"user": "u1", "item": 7, "age": 20.50, "tags": [1, 2], "history": [5], "note": "a", "big": 12345678901234567890}',
    '{"when":1.0e3,  "user":"u2","item":7,"deep":{"x":[1.10,null],"é":"é"},"tags":[],"history":[],"age":1e1 }  ',
    '{"user": null, "list": ["a", 1], "item": 31, "age": null, "tags": [1], "history": [],"note": "\\"probability\\""}',
]


@pytest.fixture
def json_run(make_experiment: MakeExperiment) -> Path:
    log = pl.read_csv("log.csv", schema_overrides={"tags": pl.String, "history": pl.String}).with_columns(
        pl.col(name).fill_null("").str.split("|").list.eval(pl.element().filter(pl.element() != "").cast(pl.Int64))
        for name in ("tags", "history")
    )
    log.write_ndjson("log.jsonl")
    source = {"name": "jsonl", "files": ["log.jsonl"]}
    return api.train(make_experiment(data__source=source, training__epochs=1), "run").run.folder


def test_json_lines_are_copied_with_the_probability_appended(json_run: Path) -> None:
    Path("in.jsonl").write_text("\n".join(JSON_LINES))
    api.predict_files(json_run, ["in.jsonl"], Path("out.jsonl"))
    lines = Path("out.jsonl").read_text().splitlines()
    for before, after in zip(JSON_LINES, lines, strict=True):
        assert after.startswith(before.rstrip().rstrip("}").rstrip() + ',"probability":0.')
        assert {key: value for key, value in json.loads(after).items() if key != "probability"} == json.loads(before)
    Path("in.jsonl").write_text("\n".join([*JSON_LINES, lines[0]]))
    with pytest.raises(DataError, match="column 'probability' already"):
        api.predict_files(json_run, ["in.jsonl"], Path("again.jsonl"))


def test_json_lines_keep_digits_and_nesting_as_cells(json_run: Path) -> None:
    Path("in.jsonl").write_text("\n".join(JSON_LINES))
    api.predict_files(json_run, ["in.jsonl"], Path("out.csv"))
    with Path("out.csv").open(newline="") as file:
        first, second, third = csv.DictReader(file)
    assert (first["age"], first["tags"], first["big"], first["when"]) == ("20.50", "1|2", "12345678901234567890", "")
    assert (second["when"], second["deep"], second["age"]) == ("1.0e3", '{"x":[1.10,null],"é":"é"}', "1e1")
    assert (third["list"], third["user"], third["note"]) == ('["a",1]', "", '"probability"')


def test_json_lines_to_parquet(json_run: Path) -> None:
    Path("in.jsonl").write_text("\n".join(JSON_LINES[1:]))
    api.predict_files(json_run, ["in.jsonl"], Path("out.parquet"))
    frame = pl.read_parquet("out.parquet")
    assert frame["when"].to_list() == [1000.0, None]
    assert frame["deep"].to_list() == ['{"x":[1.10,null],"é":"é"}', None]
    assert frame["tags"].to_list() == [[], [1]]


def test_a_key_that_only_later_rows_have_is_reported(json_run: Path) -> None:
    filler = ['{"user": "u1", "item": 1, "age": 1, "tags": [], "history": []' + " " * 1_000 + "}"] * 1_100
    late = '{"user": "u1", "item": 1, "age": 1, "tags": [], "history": [], "late": 1}'
    Path("in.jsonl").write_text("\n".join([*filler, late]))
    with pytest.raises(DataError, match=r"in.jsonl, line 1101: key 'late' is not in the first rows[\s\S]*write .jsonl"):
        api.predict_files(json_run, ["in.jsonl"], Path("out.csv"))
    assert api.predict_files(json_run, ["in.jsonl"], Path("out.jsonl")).rows == 1_101


def test_libsvm_rows_keep_their_label_and_fields(make_experiment: MakeExperiment) -> None:
    draw = np.random.default_rng(0)
    lines = [f"{i % 2} {draw.integers(9)}:1 {draw.integers(9)}:1 {i}:1" for i in range(300)]
    Path("log.svm").write_text("\n".join(lines) + "\n")
    experiment = make_experiment(
        data__source={"name": "libsvm", "files": ["log.svm"], "columns": ["a", "b", "row"]},
        data__labels=[{"name": "label"}],
        data__group=None,
        features=[{"name": name, "kind": "categorical", "type": "integer"} for name in ("a", "b")],
        evaluation__slices=[],
        training__epochs=1,
    )
    run = api.train(experiment, "run").run.folder
    api.predict_files(run, ["log.svm"], Path("out.csv"))
    head, *rows = read_rows(Path("out.csv"))
    assert head == ["label", "a", "b", "row", "probability"]
    parts = [line.replace(":1", "").split() for line in lines]
    assert [[row[0].removesuffix(".0"), *row[1:4]] for row in rows] == parts


def test_bytes_are_written_as_they_are_read(make_experiment: MakeExperiment) -> None:
    """As text where they are UTF-8, and as hexadecimal digits where not; a run predicts its own output alike."""
    log = pl.read_csv("log.csv", schema_overrides={"tags": pl.String, "history": pl.String})
    key = pl.col("item").map_elements(lambda item: bytes([item, 0xFF]), pl.Binary)
    log.with_columns(key=key).write_parquet("log.parquet")
    source = {"name": "parquet", "files": ["log.parquet"]}
    features = [{"name": "user", "kind": "categorical"}, {"name": "key", "kind": "categorical"}]
    run = api.train(make_experiment(data__source=source, features=features, training__epochs=1), "run").run.folder
    table = pq.read_table("log.parquet").slice(0, 3)
    table = table.append_column("blob", pa.array([b"ab", b"\xff,", None]))
    pq.write_table(table.append_column("blobs", pa.array([[b"ab", b"\xfe"], [], None])), "bytes.parquet")
    api.predict_files(run, ["bytes.parquet"], Path("out.csv"))
    api.predict_files(run, ["bytes.parquet"], Path("out.jsonl"))
    rows = pl.read_csv("out.csv", schema_overrides={"blob": pl.String, "key": pl.String})
    assert rows["blob"].to_list() == ["ab", "ff2c", None]
    assert rows["blobs"].to_list() == ['["ab","fe"]', "[]", None]
    assert rows["key"].to_list() == [f"{each:02x}ff" for each in table["item"].to_pylist()]
    objects = [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [each["blob"] for each in objects] == ["ab", "ff2c", None]
    assert [each["blobs"] for each in objects] == [["ab", "fe"], [], None]
    expected = api.predict(run, table)
    for written in (rows.select("user", "key"), pl.DataFrame(objects).select("user", "key")):
        np.testing.assert_array_equal(api.predict(run, written), expected)


def test_parquet_columns_that_text_cannot_hold_are_refused(make_experiment: MakeExperiment) -> None:
    log = pl.read_csv("log.csv", schema_overrides={"tags": pl.String, "history": pl.String})
    log.write_parquet("log.parquet")
    source = {"name": "parquet", "files": ["log.parquet"]}
    run = api.train(make_experiment(data__source=source, training__epochs=1), "run").run.folder
    table = pq.read_table("log.parquet").slice(0, 2)
    pq.write_table(table.append_column("blob", pa.array([b"ab", b"\xff"])), "bytes.parquet")
    pq.write_table(table.append_column("blobs", pa.array([[[b"ab"]], []])), "nested.parquet")
    for suffix in ("csv", "jsonl"):
        out = Path(f"out.{suffix}")
        with pytest.raises(DataError, match="column 'blobs' holds list<element: list<element: binary>>, bytes inside"):
            api.predict_files(run, ["nested.parquet"], out)
    assert not list(Path().glob("*out.*"))
    api.predict_files(run, ["bytes.parquet", "nested.parquet"], Path("out.parquet"))
    assert pq.read_table("out.parquet")["blob"].to_pylist() == [b"ab", b"\xff", None, None]
    assert pq.read_table("out.parquet")["blobs"].to_pylist() == [None, None, [[b"ab"]], []]
