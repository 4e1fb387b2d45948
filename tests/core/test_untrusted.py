"""Nothing that is read is trusted: links, pipes, devices, sizes, depth, names and damage become named errors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from ziggurat.core.errors import DataError
from ziggurat.core.untrusted import (
    Damage,
    array,
    arrow_errors,
    child,
    opened,
    parse_json,
    parse_yaml,
    read_bytes,
    read_json_object,
    read_opened,
    read_tensors,
    tensor_metadata,
)

DAMAGE = Damage(DataError, "restore the file")


def fault(action: Callable[[], Any]) -> str:
    with pytest.raises(DataError) as caught:
        action()
    assert caught.value.hint == "restore the file"
    return caught.value.problem


def problem_of(action: Callable[[], Any]) -> str | None:
    """Returns the problem of the named error that ``action`` raises, None if it raises nothing; others are raised."""
    try:
        action()
    except DataError as error:
        return error.problem
    return None


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real.json", tmp_path / "link.json", tmp_path / "pipe.json"
    real.write_text("{}")
    link.symlink_to(real)
    os.mkfifo(pipe)
    assert fault(lambda: read_bytes(link, DAMAGE)) == f"{link}: is a symbolic link, which is not followed"
    assert read_bytes(link, DAMAGE, follow=True) == b"{}"
    assert fault(lambda: read_bytes(pipe, DAMAGE)) == f"{pipe}: is a named pipe, not a file"
    assert fault(lambda: read_bytes(tmp_path, DAMAGE)) == f"{tmp_path}: is a folder, not a file"
    assert fault(lambda: read_bytes(Path("/dev/zero"), DAMAGE)) == "/dev/zero: is a device, not a file"
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "missing", DAMAGE)


def test_a_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(b"")
    os.truncate(path, 10**12)  # sparse: reading it would take the machine's memory
    assert fault(lambda: read_bytes(path, DAMAGE)).endswith("has 1,000,000,000,000 bytes; at most 268,435,456 are read")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"[" * 100_000, "is nested deeper than 100 levels"),
        (b"[" * 150 + b"]" * 150, "is nested deeper than 100 levels"),
        (b'{"a": 1, "a": 2}', "is not valid JSON: the key 'a' occurs twice"),
        (b"\xff", "is not valid JSON: 'utf-8' codec"),
        (b"", "is not valid JSON: Expecting value"),
        (b"9" * 5000, "is not valid JSON: a whole number has more digits than the 4,300 that are allowed"),
    ],
)
def test_json_that_cannot_be_read_is_named(data: bytes, expected: str) -> None:
    assert fault(lambda: parse_json(data, "x.json", DAMAGE)).startswith(f"x.json: {expected}")


def test_an_object_is_expected(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text("[1]")
    assert fault(lambda: read_json_object(path, DAMAGE)) == f"{path}: expected a JSON object, received [1]"


def test_yaml_has_bounds_and_makes_plain_data_only() -> None:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    bomb = "\n".join(lines).encode()
    assert "more than 2,000,000 values" in fault(lambda: parse_yaml(bomb, "x.yaml", DAMAGE))
    assert "nested deeper" in fault(lambda: parse_yaml(b"a: &a [*a]", "x.yaml", DAMAGE))
    assert "nested deeper" in fault(lambda: parse_yaml(b"[" * 300, "x.yaml", DAMAGE))
    assert "not valid YAML" in fault(lambda: parse_yaml(b"!!python/object/apply:os.system [ls]", "x.yaml", DAMAGE))
    assert parse_yaml(b"a: &a {b: 1}\nc: *a", "x.yaml", DAMAGE) == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"[" * 5000, "is nested deeper than 100 levels"),
        (b"{a: " * 5000, "is nested deeper than 100 levels"),
        (b"- " * 5000, "is nested deeper than 100 levels"),
        (b"? " * 5000, "is nested deeper than 100 levels"),
        (b"a: &a {<<: *a}", "is nested deeper than 100 levels"),
        (b"a: 0x" + b"f" * 100_000, "is not valid YAML: a number has more than 400 characters"),
        (b"%YAML 1.1\n---\na: 1" + b":59" * 100_000, "is not valid YAML: a number has more than 400 characters"),
        (b'a: "\\ud800"', "has text with half a character"),
        (b'a: "\\U0000dfff"', "has text with half a character"),
        (b"a: 1\na: 2", "is not valid YAML: while constructing a mapping"),
    ],
)
def test_yaml_that_grows_or_cannot_be_stored_is_named(data: bytes, expected: str) -> None:
    assert fault(lambda: parse_yaml(data, "x.yaml", DAMAGE)).startswith(f"x.yaml: {expected}")


def test_merged_keys_of_yaml_are_counted_before_they_are_merged() -> None:
    lines = [f"a{new}: &a{new} {{<<: [{', '.join([f'*a{new - 1}'] * 10)}], k{new}: 1}}" for new in range(1, 9)]
    bomb = "\n".join(["a0: &a0 {x: 1, y: 2}", *lines]).encode()
    assert "more than 100,000 keys are merged" in fault(lambda: parse_yaml(bomb, "x.yaml", DAMAGE))
    merged = parse_yaml(b"a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: {<<: [*a, {z: 4}]}", "x.yaml", DAMAGE)
    assert merged == {"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 3}, "c": {"x": 1, "y": 2, "z": 4}}


def test_numbers_of_yaml_are_those_of_its_standard() -> None:
    data = b"[0x10, 0o17, 12, 1_000, -5, 1e3, .5, .inf, 1e400, true, null, 1:30]"
    expected = [16, 15, 12, 1000, -5, 1000.0, 0.5, float("inf"), float("inf"), True, None, "1:30"]
    assert parse_yaml(data, "x.yaml", DAMAGE) == expected


def test_half_a_character_in_json_is_named() -> None:
    assert "half a character" in fault(lambda: parse_json(b'{"a": "\\ud800"}', "x.json", DAMAGE))
    assert parse_json('{"a": "\\ud83d\\ude00", "b": "é"}'.encode(), "x.json", DAMAGE) == {"a": "😀", "b": "é"}


def test_a_key_that_occurs_twice_is_found_among_many() -> None:
    keys = ",".join(f'"{number}":1' for number in range(200_000))
    assert "the key '199999' occurs twice" in fault(lambda: parse_json(f'{{{keys},"199999":1}}'.encode(), "x", DAMAGE))


def test_a_file_is_found_in_an_opened_folder(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_text("1")
    folder = os.open(tmp_path / "here", os.O_RDONLY)
    (tmp_path / "here").rename(tmp_path / "there")
    (tmp_path / "here").symlink_to("/etc")  # what the path leads to now plays no part
    try:
        with opened(tmp_path / "here" / "file", DAMAGE, folder=folder) as file:
            assert file.read() == b"1"
    finally:
        os.close(folder)


def test_a_file_larger_than_the_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.touch()
    os.truncate(path, 10**13)
    with opened(path, DAMAGE) as file:
        assert "has 10,000,000,000,000 bytes; this process may" in fault(lambda: read_opened(file, path, DAMAGE))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_value_or_a_named_error(data: bytes) -> None:
    for parse in (parse_json, parse_yaml):
        found = problem_of(lambda parse=parse: parse(data, "x", DAMAGE))
        assert found is None or found.startswith("x: ")


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/b", "", ".", "..", "a\nb", "a\0b", "a\u202eb", 3, None, "x" * 300]
)
def test_a_name_that_leaves_its_folder_is_refused(name: Any) -> None:
    assert fault(lambda: child(Path("runs"), name, "m.json", DAMAGE)).startswith("m.json: names the file ")


def test_a_plain_name_stays_in_its_folder() -> None:
    assert child(Path("runs"), "00000.arrow", "m.json", DAMAGE) == Path("runs/00000.arrow")


def test_damaged_tensors_are_named_wherever_the_damage_is(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_file({"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 3))}, path, {"k": "v"})
    whole = path.read_bytes()
    assert tensor_metadata(path, DAMAGE) == {"k": "v"}
    header = int.from_bytes(whole[:8], "little") + 8
    for position in range(header):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        found = problem_of(lambda: read_tensors(path, DAMAGE))
        assert found is None or str(path) in found
    for size in (0, 4, 8, 20, header, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "safetensors" in fault(lambda: read_tensors(path, DAMAGE))


def test_arrays_are_checked_against_what_is_declared() -> None:
    arrays = {"a": np.zeros(3, np.int64)}
    assert array(arrays, "a", np.int64, 1, "x", DAMAGE) is arrays["a"]
    assert fault(lambda: array(arrays, "b", np.int64, 1, "x", DAMAGE)) == "x: has no array 'b'; it has a"
    expected = "x: array 'a' is int64 with 1 dimensions, expected float32 with 2 dimensions"
    assert fault(lambda: array(arrays, "a", np.float32, 2, "x", DAMAGE)) == expected


def test_errors_of_arrow_are_named() -> None:
    def read() -> None:
        with arrow_errors("x.arrow", DAMAGE):
            pa.ipc.open_file(pa.py_buffer(b"no Arrow"))

    assert fault(read).startswith("x.arrow: is damaged: ")


def test_an_opened_file_is_the_one_that_was_checked(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"a": 1}))
    with opened(path, DAMAGE, limit=100) as file:
        path.unlink()
        path.symlink_to("/dev/zero")
        assert json.load(file) == {"a": 1}
