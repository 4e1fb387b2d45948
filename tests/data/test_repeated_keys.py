"""A key twice in one JSON object: its row is rejected where a column is read from it, and init says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reader_kit import INTEGER, many, read, schema

from ziggurat.data.inference.roles import Inference, infer
from ziggurat.data.inference.sample import read_sample
from ziggurat.data.readers.json_lines.reader import JsonLinesSource
from ziggurat.data.readers.json_lines.repeated_keys import RepeatedKey, load_json, repeated_paths
from ziggurat.data.readers.source import open_source
from ziggurat.data.readers.source_files import resolve_files

COLUMNS = schema(**{"user": INTEGER, "geo.lat": INTEGER, "basket.id": many(INTEGER)})
GOOD = '{"user": 1, "geo": {"lat": 2}, "basket": [{"id": 3}, {"id": 4}], "note": "x"}'


def test_repeated_keys_are_found_at_every_depth() -> None:
    keys: list[str] = []
    value = load_json('{"a": 1, "a": 2, "b": {"c": [{"d": 1, "d": 1, "e": 5}]}}', keys)
    assert value == {"a": RepeatedKey("a"), "b": {"c": [{"d": RepeatedKey("d"), "e": 5}]}}
    assert (keys, [*repeated_paths(value)]) == (["d", "a"], ["a", "b.c.d"])
    assert load_json('{"a": [1, {"b": null}]}', keys) == {"a": [1, {"b": None}]}


@pytest.mark.parametrize(
    ("line", "column"),
    [
        (GOOD.replace('"user": 1', '"user": 1, "user": 1'), "user"),
        (GOOD.replace('"user": 1', '"user": null, "user": 1'), "user"),
        (GOOD.replace('"lat": 2', '"lat": 2, "lat": 3'), "geo.lat"),
        (GOOD.replace('"note": "x"', '"geo": {"lon": 5}'), "geo.lat"),
        (GOOD.replace('"id": 3', '"id": 3, "id": 4'), "basket.id"),
        (GOOD.replace('"note": "x"', '"note": "x", "note": "y"'), None),  # no column is read from it
        (GOOD.replace('"lat": 2', '"lat": 2, "lon": 3, "lon": 4'), None),
    ],
)
@pytest.mark.parametrize("records", ["lines", "array"])
@pytest.mark.parametrize("slow", [False, True])
def test_the_row_is_rejected_where_a_column_needs_the_key(
    tmp_path: Path, line: str, column: str | None, records: str, slow: bool
) -> None:
    rows = [GOOD, line, GOOD.replace('"user": 1', '"user": "1"') if slow else GOOD]
    text = f"[{', '.join(rows)}]" if records == "array" else "\n".join(rows)
    (tmp_path / "log.json").write_text(text)
    config = JsonLinesSource.model_validate({"files": ["log.json"], "records": records})
    reading = read(open_source(config, tmp_path, COLUMNS))
    assert reading.kinds() == ([] if column is None else [(2, column, "repeated key")])
    assert reading.rows == [(1, 2, [3, 4])] * (3 if column is None else 2)
    for bad in reading.bad:
        assert "more than once in an object — keep one of its values" in bad.reason


def inferred(folder: Path, share: float) -> Inference:
    rows = [json.dumps({"user": k % 9, "geo": {"shop": k % 5}, "item": k % 7, "click": k % 2}) for k in range(200)]
    for k in range(int(200 * share)):
        rows[k] = rows[k].replace('"shop": ', '"shop": 1, "shop": ')
    (folder / "log.jsonl").write_text("\n".join(rows) + "\n")
    return infer(resolve_files(["log.jsonl"], folder, [".jsonl"]))


def test_init_sets_few_such_rows_aside(tmp_path: Path) -> None:
    found = inferred(tmp_path, 0.02)
    assert (found.sample.unreadable.count, found.sample.frame.height) == (4, 196)
    assert found.sample.unreadable.first == "line 1 has the key 'shop' more than once"
    assert "geo.shop" in {each.profile.name for each in found.features}


def test_init_leaves_out_a_key_that_many_rows_repeat(tmp_path: Path) -> None:
    found = inferred(tmp_path, 0.5)
    assert (found.sample.unreadable.count, found.sample.frame.height) == (0, 200)
    reason = "its key stands more than once in 100 objects: keep one of its values"
    assert found.sample.left_out == {"geo.shop": reason}
    assert "geo.shop" not in {each.profile.name for each in found.features}


def test_an_object_that_many_rows_repeat_takes_its_values_along(tmp_path: Path) -> None:
    row = '{"user": %d, "geo": {"shop": 1}, "click": %d%s}\n'
    rows = [row % (k % 9, k % 2, ', "geo": {"town": 2}' if k % 2 else "") for k in range(200)]
    (tmp_path / "log.jsonl").write_text("".join(rows))
    sample = read_sample(resolve_files(["log.jsonl"], tmp_path, [".jsonl"]))
    assert sample.frame.columns == ["user", "click"]
    assert [*sample.left_out] == ["geo"]
