"""Cases that were measured are not measured again, unless what is measured has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.resumable_cases import ResumableCases


def never() -> None:
    pytest.fail("measured again")


def test_a_benchmark_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    begun = ResumableCases(path, "sources 1")
    begun.get("first", lambda: {"a": [1.5, 2.0]})
    begun.get("second", lambda: 2)
    with path.open("a") as file:
        file.write('{"case": "third", "sour')  # killed while it wrote
    again = ResumableCases(path, "sources 1")
    assert len(again) == 2
    assert again.get("first", never) == {"a": [1.5, 2.0]}
    assert again.get("third", lambda: 3) == 3
    assert len(ResumableCases(path, "sources 1")) == 3
    assert len(ResumableCases(path, "sources 2")) == 0
    again.forget()
    assert not path.exists()
