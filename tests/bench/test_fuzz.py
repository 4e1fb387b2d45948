"""Drawn texts and damaged files end in rows or in named errors; `bench run fuzz` takes many more."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings

from bench.system.fuzz_files import ROWS, harmed, intact
from bench.system.fuzz_texts import EXAMPLES, LABEL, Drawn
from bench.system.fuzz_worker import examine


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(EXAMPLES)
@example(Drawn("log.csv", b"\x00ating,click\n" + b"a,1\nb,0\n" * 5))
@example(Drawn("log.csv", "us\x8c\u2028er,town\x85,click\n".encode() + b"7,a,1\n8,b,0\n7,b,1\n9,a,0\n" * 5))
@example(Drawn("log.csv", b',user,click\n"[0, 4]",1,1\n"[]",2,0\n'))
def test_drawn_texts_end_in_rows_or_named_errors(tmp_path: Path, drawn: Drawn) -> None:
    assert examine(drawn, tmp_path / "case").faults == ()


FORMATS = {drawn.name: drawn for drawn in intact()}


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_of_every_format_is_taken_through_and_damaged_ones_end_in_named_errors(
    tmp_path: Path, name: str
) -> None:
    drawn = FORMATS[name]
    taken = examine(drawn, tmp_path / "case")
    assert (taken.stage, taken.refused, taken.faults, taken.rows) == ("predict", "", (), ROWS)
    for seed in range(8):
        damaged = Drawn(name, harmed(drawn.data, seed))
        assert damaged.data != drawn.data
        assert examine(damaged, tmp_path / "case").faults == (), seed


def test_the_steps_see_what_they_have_to_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Drawn("log.csv", b"user,click\n" + b"7,1\n8,0\n" * 20, ("user", LABEL, "lost"))
    assert examine(drawn, tmp_path / "case").faults == ("init lost column 'lost'",)
    monkeypatch.setattr("bench.system.fuzz_steps._records", lambda *_: 41)
    assert "41 records, 40 rows and 0 quarantined" in examine(drawn, tmp_path / "case").faults
    monkeypatch.setattr("bench.system.fuzz_steps.draft_config", lambda *_: 1 / 0)
    (fault,) = examine(drawn, tmp_path / "case").faults
    assert fault.startswith("ZeroDivisionError")
