"""Logs that ``init`` refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from ziggurat.core.errors import DataError
from ziggurat.data.inference.roles import infer
from ziggurat.data.readers.source_files import resolve_files


@pytest.mark.parametrize("content", [b"\0" * 10**6, ",".join(f"c{number}" for number in range(10**5)).encode()])
def test_a_first_line_that_is_no_header_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.csv").write_bytes(content)
    with pytest.raises(
        DataError,
        match=r"log\.csv: the (first lines cannot be read as CSV|file holds a header but no rows)",
    ):
        infer(resolve_files(["log.csv"], tmp_path, [".csv"]), None)


@pytest.mark.parametrize("head", ['user,"price\nin euro",click', '"user\r\nname",price,click'])
def test_a_header_with_a_line_break_in_quotes_is_named(tmp_path: Path, head: str) -> None:
    (tmp_path / "log.csv").write_bytes((head + "\n" + "u1,2.5,1\nu2,3.5,0\n" * 50).encode())
    with pytest.raises(DataError, match=r"log\.csv, line 1: a quote is opened and not closed in the line") as told:
        infer(resolve_files(["log.csv"], tmp_path, [".csv"]), None)
    assert "no line break within quotes" in told.value.problem
    assert "write the first line without line breaks" in told.value.hint
