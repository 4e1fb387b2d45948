"""Measured cases are not measured again, unless the measured code has changed."""

from __future__ import annotations

import json
import operator
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from bench.provenance import commit as commit_of
from bench.resumable_cases import ResumableCases, measure_in_processes

ROOT = Path(__file__).resolve().parents[2]


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
    commit = commit_of(ROOT)
    assert commit is not None
    assert (
        again.commits == f"cases were measured at commit {json.loads(path.read_text().splitlines()[0])['commit']} (2)"
    )
    assert commit[:12] in again.commits
    assert len(ResumableCases(path, "sources 1")) == 3
    assert len(ResumableCases(path, "sources 2")) == 0
    again.forget()
    assert not path.exists()


def test_cases_are_measured_in_processes_and_kept_until_one_fails(tmp_path: Path) -> None:
    said: list[tuple[int, str, int]] = []
    cases = ResumableCases(tmp_path / "cases.jsonl", "sources 1")
    context = get_context("spawn")
    work = {"first": partial(operator.add, 1, 2), "second": partial(operator.mul, 3, 4)}
    measure_in_processes(cases, ProcessPoolExecutor(1, context), work, lambda *each: said.append(each))
    assert said == [(1, "first", 3), (2, "second", 12)]
    failing = {"third": partial(operator.add, 5, 6), "fourth": partial(operator.truediv, 1, 0)}
    with pytest.raises(ZeroDivisionError):
        measure_in_processes(cases, ProcessPoolExecutor(1, context), failing, lambda *each: said.append(each))
    again = ResumableCases(tmp_path / "cases.jsonl", "sources 1")
    assert [again.get(each, never) for each in ("first", "second", "third")] == [3, 12, 11]
    assert "fourth" not in again


def _long(path: Path) -> None:
    time.sleep(30)
    path.write_text("ended")


def test_an_error_does_not_wait_for_the_cases_that_have_begun(tmp_path: Path) -> None:
    cases = ResumableCases(tmp_path / "cases.jsonl", "sources 1")
    work = {"long": partial(_long, tmp_path / "long"), "failing": partial(operator.truediv, 1, 0)}
    with pytest.raises(ZeroDivisionError):
        measure_in_processes(cases, ProcessPoolExecutor(2, get_context("spawn")), work, lambda *_: None)
    assert not (tmp_path / "long").exists()
