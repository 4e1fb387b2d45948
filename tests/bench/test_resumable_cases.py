"""Measured cases are not measured again, unless the measured code has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.resumable_cases import ResumableCases


def never() -> None:
    pytest.fail("measured again")


def test_an_interrupted_benchmark_resumes(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    interrupted = ResumableCases(path, "sources 1")
    interrupted.get("first", lambda: {"a": [1.5, 2.0]})
    interrupted.get("second", lambda: 2)
    with path.open("a") as file:
        file.write('{"case": "third", "sour')  # killed during the write
    again = ResumableCases(path, "sources 1")
    assert len(again) == 2
    assert again.get("first", never) == {"a": [1.5, 2.0]}
    assert again.get("third", lambda: 3) == 3
    assert len(ResumableCases(path, "sources 1")) == 3
    assert len(ResumableCases(path, "sources 2")) == 0
    again.forget()
    assert not path.exists()
