"""Rows that cannot be read: ``init`` counts them, names the first, and proposes to set them aside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ziggurat.cli.init import draft_config
from ziggurat.training.api import prepare
from ziggurat.training.experiment import load_experiment

ROWS = [f"{k % 40},shop {k % 7},{k % 2}" for k in range(600)]
HEADER = "user,shop,click"


def proposed(folder: Path, content: str | bytes, name: str = "log.csv") -> tuple[str, str]:
    """Returns what the config says of the source and of bad rows."""
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    text = draft_config(folder / name)
    (folder / "exp.yaml").write_text(text)
    lines = text.splitlines()
    return (
        next(line for line in lines if line.startswith("  source:")),
        next(line for line in lines if line.startswith("  on_bad_row:")),
    )


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("1,2,3,4", "has 4 cells, the header 3"),
        ("1,2", "has 2 cells, the header 3"),
        ("7", "has 1 cell, the header 3"),
        ('7,"a shop,1', "cannot be split into cells (quoted value is not closed)"),
        (b"7,a sh\xf6p,1", "holds bytes that are no text in this encoding"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, row: str | bytes, problem: str) -> None:
    good = "\n".join([HEADER, *ROWS, ""])
    bad = row if isinstance(row, bytes) else row.encode()
    lines = [*[line.encode() for line in good.splitlines()[:501]], bad, *[b"5,shop \xc3\xa9,1"] * 30]
    source, policy = proposed(tmp_path, b"\n".join(lines) + b"\n")
    assert source == f"  source:  # 531 rows, all examined; 1 cannot be read: line 502 {problem}"
    reason = "1 of 531 rows cannot be read: such rows go to quarantine.jsonl"
    assert policy == f"  on_bad_row: quarantine  # {reason}"
    prepare(load_experiment(tmp_path / "exp.yaml"), tmp_path / "prepared")
    rejected = (tmp_path / "prepared/quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in rejected] == [502]


def test_rows_of_every_form_are_counted(tmp_path: Path) -> None:
    titled = ["Export of May", "user|shop|click", *[row.replace(",", "|") for row in ROWS]]
    titled[100], titled[200] = "1|2", "1|2|3|4"
    source, _ = proposed(tmp_path, "\n".join(titled) + "\n")
    assert source.endswith("# 600 rows, all examined; 2 cannot be read: line 101 has 2 cells, the header 3")
    source, _ = proposed(tmp_path, "\n".join([*ROWS[:300], "1,2", *ROWS[300:]]) + "\n")
    assert source.endswith("# 601 rows, all examined; 1 cannot be read: line 301 has 2 cells, most others 3")
    quoted = [f'{k % 40},"shop\n{k % 7}",{k % 2}' for k in range(300)]
    quoted[250] = "1,2"
    source, _ = proposed(tmp_path, "\n".join([HEADER, *quoted]) + "\n")
    assert source.endswith("# 300 rows, all examined; 1 cannot be read: line 502 has 2 cells, the header 3")


def test_lines_that_are_no_json_are_counted(tmp_path: Path) -> None:
    rows = [f'{{"user": {k % 40}, "shop": "s{k % 7}", "click": {k % 2}}}' for k in range(300)]
    rows[100], rows[200] = '{"user": 1, "shop', "[1, 2]"
    source, policy = proposed(tmp_path, "\n".join(rows) + "\n", "log.jsonl")
    assert source.endswith("# 300 rows, all examined; 2 cannot be read: line 101 is no JSON")
    assert policy.startswith("  on_bad_row: quarantine  # 2 of 300 rows cannot be read")


def test_a_file_whose_rows_can_all_be_read_is_no_reason(tmp_path: Path) -> None:
    rows = [HEADER, *ROWS, '7,"a ""b"", c",1', "8,\ufffd,0"]
    source, policy = proposed(tmp_path, "\n".join(rows) + "\n")
    assert source == "  source:  # 602 rows, all examined"
    assert policy.startswith("  on_bad_row: fail")
