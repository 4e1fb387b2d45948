"""Interleaved rounds, the peak memory of child processes, and the protocol with a measured process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.contestant import Contestant
from bench.measure import interleave, ratios, repeat, run_child
from ziggurat.core.errors import EnvironmentMismatch

MIB = 2**20


def test_repeat_discards_the_warm_up() -> None:
    values = iter([9.0, 8.0, 1.0, 2.0, 3.0])
    assert repeat(lambda: next(values), warmups=2, repeats=3) == (1.0, 2.0, 3.0)


def test_rounds_rotate_and_samples_of_a_round_stay_together() -> None:
    calls: list[str] = []
    counts = {"a": 0, "b": 0, "c": 0}

    def measured(name: str) -> Callable[[], float]:
        def once() -> float:
            calls.append(name)
            counts[name] += 1
            return float(counts[name])

        return once

    samples = interleave({name: measured(name) for name in counts}, warmups=1, repeats=2)
    assert "".join(calls) == "abcbcacab"
    assert samples == dict.fromkeys(counts, (2.0, 3.0))


def test_a_disturbance_of_whole_rounds_cancels_in_the_ratios() -> None:
    disturbance = (1.0, 0.1, 0.5)
    ours = tuple(300 * factor for factor in disturbance)
    theirs = tuple(100 * factor for factor in disturbance)
    assert ratios(ours, theirs) == pytest.approx((3.0, 3.0, 3.0))


def test_peak_memory_is_the_childs_own_not_its_parents() -> None:
    ballast = bytearray(300 * MIB)  # a large parent: Linux carries its high-water mark over fork and exec
    small = run_child([sys.executable, "-S", "-c", "pass"])
    large = run_child([sys.executable, "-S", "-c", f"x = bytearray({128 * MIB})"])
    assert len(ballast) == 300 * MIB
    assert small.peak_bytes < 64 * MIB
    assert 120 * MIB < large.peak_bytes - small.peak_bytes < 140 * MIB


def test_a_childs_children_count_towards_its_peak() -> None:
    grandchild = f"x = bytearray({128 * MIB})"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {grandchild!r}])"
    assert run_child([sys.executable, "-S", "-c", code]).peak_bytes > 128 * MIB


def test_times_of_a_child() -> None:
    idle = run_child([sys.executable, "-S", "-c", "import time; time.sleep(0.2)"])
    assert idle.seconds >= 0.2
    assert idle.cpu_seconds < idle.seconds


def test_a_failing_child_is_quoted() -> None:
    with pytest.raises(EnvironmentMismatch, match=r"ended with status 3:\nout of luck"):
        run_child([sys.executable, "-S", "-c", "import sys; print('out of luck', file=sys.stderr); sys.exit(3)"])


DRIVER = """
import sys
sys.path.insert(0, {root!r})
from bench.peers.protocol import Rounds
rounds = Rounds()
print("a library that prints on standard output")
rounds.ready(2, {{"thing": "1"}})
for epoch in range(2):
    rounds.begin()
    rounds.end(rows=100 * (epoch + 1), loss=0.5 / (epoch + 1))
rounds.begin()
raise RuntimeError("the third epoch breaks")
"""


@pytest.fixture
def driver(tmp_path: Path) -> list[str]:
    path = tmp_path / "driver.py"
    path.write_text(DRIVER.format(root=str(Path(__file__).resolve().parents[2])))
    return [sys.executable, str(path)]


def test_a_contestant_takes_turns_and_ends_with_its_input(driver: list[str]) -> None:
    with Contestant("the driver", driver).start() as contestant:
        assert (contestant.threads, contestant.versions) == (2, {"thing": "1"})
        assert contestant.epoch() > 0
        assert contestant.epoch() > 0
        assert contestant.losses == [0.5, 0.25]


def test_a_contestant_that_breaks_is_quoted(driver: list[str]) -> None:
    with Contestant("the driver", driver).start() as contestant:
        contestant.epoch()
        contestant.epoch()
        with pytest.raises(EnvironmentMismatch, match=r"(?s)the driver ended with status 1:.*the third epoch breaks"):
            contestant.epoch()


def test_a_contestant_that_never_starts_is_quoted() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no data')"]
    with Contestant("nobody", command) as contestant, pytest.raises(EnvironmentMismatch, match=r"(?s)nobody.*no data"):
        contestant.start()
