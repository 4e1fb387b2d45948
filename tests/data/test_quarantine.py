"""Rejected rows: an error under one policy, a file that survives interruptions under the other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reader_kit import as_nobody

from ziggurat.core.errors import DataError
from ziggurat.data.readers.blocks import BadRow
from ziggurat.data.readers.quarantine import Quarantine
from ziggurat.data.readers.rejection_reasons import reason_kind, rejection_reason, split_hint


def row(line: int, column: str | None = "price", received: str = "'x'") -> BadRow:
    return BadRow(
        "log.csv", line, column, rejection_reason("not a number", f"received {received}", "fix it"), f"1,x,{line}"
    )


def test_a_reason_holds_its_kind_and_its_hint() -> None:
    reason = rejection_reason("not a number", "received 'a: b — c'", "declare it text")
    assert reason_kind(reason) == "not a number"
    assert split_hint(reason) == ("not a number: received 'a: b — c'", "declare it text")
    assert split_hint("label out of range") == ("label out of range", "")


def test_policy_fail_names_the_first_row(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "bad.jsonl", "fail")
    quarantine.add([])
    with pytest.raises(DataError) as caught:
        quarantine.add([row(7), row(8)])
    assert caught.value.problem == "log.csv, line 7, column 'price': not a number: received 'x'"
    assert caught.value.hint == "fix it; or set `on_bad_row: quarantine` to set such rows aside and go on"
    with pytest.raises(DataError, match=r"^log\.csv, line 9: not a number"):
        quarantine.add([row(9, None)])
    assert not (tmp_path / "bad.jsonl").exists()


def test_rows_are_recorded_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bad.jsonl"
    with Quarantine(path, "quarantine") as quarantine:
        assert not path.exists()
        quarantine.add([row(7), row(8, received="'ü\n'")])
        quarantine.add([row(9, None), row(10, "label")])
        quarantine.sync()
    assert quarantine.total == 4
    assert quarantine.counts == {("price", "not a number"): 2, (None, "not a number"): 1, ("label", "not a number"): 1}
    assert quarantine.summary() == [
        "price: not a number: 2 rows",
        "whole row: not a number: 1 row",
        "label: not a number: 1 row",
    ]
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["line"] for entry in written] == [7, 8, 9, 10]
    assert written[2] == {
        "file": "log.csv",
        "line": 9,
        "column": None,
        "reason": "not a number: received 'x' — fix it",
        "text": "1,x,9",
    }


def test_without_a_file_rows_are_only_counted() -> None:
    quarantine = Quarantine(None, "quarantine")
    quarantine.add([row(7), row(8)])
    assert quarantine.total == 2
    quarantine.truncate_to(0)
    assert quarantine.total == 0
    assert not quarantine.counts


def test_an_interrupted_preparation_records_no_row_twice(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    first = Quarantine(path, "quarantine")
    first.add([row(1), row(2, "label")])
    saved = first.total
    first.add([row(3), row(4)])
    first.close()
    with path.open("ab") as stream:
        stream.write(b'{"file": "log.csv", "li')  # the process died while it wrote
    again = Quarantine(path, "quarantine")
    assert again.total == 4
    again.truncate_to(saved)
    assert again.counts == {("price", "not a number"): 1, ("label", "not a number"): 1}
    again.add([row(3), row(4)])
    again.add([row(5)])
    again.close()
    assert [json.loads(line)["line"] for line in path.read_text().splitlines()] == [1, 2, 3, 4, 5]
    assert Quarantine(path, "quarantine").total == 5


def test_a_file_with_fewer_rows_than_counted_is_an_error(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "bad.jsonl", "quarantine")
    with pytest.raises(DataError, match=r"bad\.jsonl: holds 0 rejected rows, 3 were counted"):
        quarantine.truncate_to(3)


@pytest.mark.parametrize("content", [b"user,item\n1,2\n", b"no line end", b'{"line": 3}\n', b"[]\n"])
def test_another_file_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"log\.csv, line 1: not a row of a quarantine file"):
        Quarantine(path, "quarantine")
    assert path.read_bytes() == content


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk(tmp_path: Path) -> None:
    quarantine = Quarantine(tmp_path / "bad.jsonl", "quarantine")
    (tmp_path / "bad.jsonl").symlink_to("/dev/full")
    with pytest.raises(DataError, match=r"bad\.jsonl: no space left on the device"):
        quarantine.add([row(1)])
    assert quarantine.total == 0
    quarantine.close()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with (
        as_nobody(tmp_path),
        pytest.raises(DataError, match=r"bad\.jsonl: no permission to write: the folder .*locked belongs to"),
    ):
        Quarantine(tmp_path / "locked" / "bad.jsonl", "quarantine").add([row(1)])
