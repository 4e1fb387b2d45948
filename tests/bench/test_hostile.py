"""The harness of ``hostile`` sees what it has to see, and its cases are many and distinct."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.system.hostile import GROUPS, Outcome
from bench.system.hostile_process import MEMORY_BYTES, Ended, Seen, watched
from bench.system.hostile_world import VERIFY, Case


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    for name in ("inside", "outside/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "outside" / "deep" / "file").write_text("secret")
    (tmp_path / "inside" / "file").write_text("own")
    os.mkfifo(tmp_path / "outside" / "pipe")
    os.mkfifo(tmp_path / "inside" / "pipe")
    return tmp_path / "outside"


def read_pipe(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.read(descriptor, 1)
    os.close(descriptor)


def rewrite(path: Path) -> None:
    path.write_bytes(b"secret")


@pytest.mark.parametrize(
    ("act", "changed", "read", "pipes"),
    [
        (lambda o: (o.parent / "inside" / "file").read_text(), [], [], []),
        (lambda o: (o.parent / "inside" / "new").write_text("x"), [], [], []),
        (lambda o: list(o.rglob("*")), [], [], []),
        (lambda o: (o / "deep" / "file").stat(), [], [], []),
        (lambda o: (o / "deep" / "file").read_text(), [], ["deep/file"], []),
        (lambda o: rewrite(o / "deep" / "file"), ["deep/file"], [], []),
        (lambda o: (o / "deep" / "new").touch(), ["deep", "deep/new"], [], []),
        (lambda o: (o / "deep" / "file").unlink(), ["deep", "deep/file"], [], []),
        (lambda o: (o / "deep" / "file").chmod(0o600), ["deep/file"], [], []),
        (lambda o: read_pipe(o / "pipe"), [], [], ["outside/pipe"]),
        (lambda o: read_pipe(o.parent / "inside" / "pipe"), [], [], ["inside/pipe"]),
    ],
)
def test_what_happens_outside_and_in_pipes_is_seen(
    outside: Path, act: Callable[[Path], object], changed: list[str], read: list[str], pipes: list[str]
) -> None:
    with watched(outside, outside.parent / "inside") as seen:
        act(outside)
    assert seen.changed == changed
    assert seen.read == [str(outside / name) for name in read]
    assert seen.pipes == [str(outside.parent / name) for name in pipes]


def test_there_are_many_distinct_cases() -> None:
    names = [case.name for make in GROUPS.values() for case in make()]
    assert len(set(names)) == len(names) >= 150


def ended(status: int = 1, output: str = "error: run/x: is damaged", memory: int = 0, late: bool = False) -> Ended:
    return Ended(status, output, 1.0, memory, late)


@pytest.mark.parametrize(
    ("result", "seen", "word", "expected"),
    [
        (ended(), Seen([], [], []), "run/x", []),
        (ended(0, ""), Seen([], [], []), "", []),
        (ended(0, ""), Seen([], [], []), "run/x", ["named"]),
        (ended(), Seen(["x"], [], []), "", ["contained"]),
        (ended(), Seen([], ["x"], []), "", ["contained"]),
        (ended(), Seen([], [], ["x"]), "", ["special_files_unread"]),
        (ended(-9, late=True), Seen([], [], []), "", ["bounded_time"]),
        (ended(-9), Seen([], [], []), "", ["bounded_memory"]),
        (ended(1, memory=MEMORY_BYTES), Seen([], [], []), "", ["bounded_memory"]),
        (ended(70), Seen([], [], []), "", ["no_traceback"]),
        (ended(-11), Seen([], [], []), "", ["no_traceback"]),
        (ended(1, "Traceback (most recent call last):\n  x"), Seen([], [], []), "", ["no_traceback"]),
    ],
)
def test_each_fault_counts_against_its_figure(result: Ended, seen: Seen, word: str, expected: list[str]) -> None:
    case = Case("x", lambda world: None, (VERIFY,), word)
    assert list(Outcome("links", case, (result,), seen).faults()) == expected
