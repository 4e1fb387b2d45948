"""What versions write is bounded by the day, spread over it, and leaves room for a table that must be written anew."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.versions_kit import STEPS, Opener, Trained, following, trained, versions_of
from ziggurat.core.errors import DataError
from ziggurat.serving.model.scorer import Scorer
from ziggurat.serving.versions import control, endurance, table_state
from ziggurat.serving.versions.endurance import DAY_S, WriteBudget
from ziggurat.serving.versions.updater import Updater

HOUR_S = 3_600.0


class Clock:
    """Seconds since 1970 that pass when they are told to."""

    def __init__(self) -> None:
        self.now = 1e9 - 1e9 % HOUR_S

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def run() -> Trained:
    return trained()


def test_half_is_free_and_the_rest_is_spread_over_the_day(tmp_path: Path) -> None:
    clock = Clock()
    budget = WriteBudget(tmp_path / "writes", 1_000, clock)
    assert budget.wait_s(500) == 0
    budget.add(500)
    assert budget.wait_s(100) == pytest.approx(0.1 * DAY_S)
    clock.now += 0.1 * DAY_S
    assert budget.wait_s(100) == 0
    assert budget.wait_s(1_001) == math.inf
    assert WriteBudget(tmp_path / "writes", 1_000, clock).spent == 500, "a restart forgets nothing"
    assert WriteBudget(tmp_path / "writes", None, clock).wait_s(10**12) == 0


def test_no_more_than_the_budget_is_written_in_any_day(tmp_path: Path) -> None:
    """Writes and tables are spread on their own, so both together would be twice the budget without this bound."""
    clock = Clock()
    budget = WriteBudget(tmp_path / "writes", 1_000, clock)
    budget.add(450)
    budget.add(500, is_table=True)
    clock.now += DAY_S / 2
    assert budget.spent == 950
    assert budget.wait_s(50) == 0
    waits_s = budget.wait_s(60)
    assert waits_s == pytest.approx(DAY_S / 2 + HOUR_S)
    clock.now += waits_s - 1
    assert budget.wait_s(60) > 0
    clock.now += 1.5
    assert budget.spent == 0
    assert budget.wait_s(60) == 0


def test_what_was_not_written_is_given_back(tmp_path: Path) -> None:
    clock = Clock()
    budget = WriteBudget(tmp_path / "writes", 1_000, clock)
    budget.add(100)
    clock.now += HOUR_S
    budget.add(300)
    budget.give_back(250)
    assert budget.spent == 150
    budget.give_back(100)  # more than the last hour has
    assert WriteBudget(tmp_path / "writes", 1_000, clock).spent == 50


@pytest.mark.parametrize("bytes_a_minute", [150e6, 250e6, 600e6])
def test_small_writes_that_come_all_the_time_do_not_starve_a_table(
    bytes_a_minute: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drive of a terabyte, a table of 300 GB, and a delta each minute, for five days."""
    monkeypatch.setattr(endurance, "write_sealed_json", lambda *_: None)
    clock, size, table = Clock(), int(bytes_a_minute), 300 * 10**9
    budget = WriteBudget(tmp_path / "writes", 10**12, clock)
    log = waiting = tables = 0
    writes = deque[tuple[float, int]]()
    longest_log, longest_pause, last = 0, 0.0, clock.now
    for _ in range(5 * 1_440):
        clock.now += 60
        waiting += size
        if not budget.wait_s(size):  # all that waits is merged into one write of the rows that differ
            budget.add(size)
            writes.append((clock.now, size))
            log += size
            waiting, last = 0, clock.now
        longest_pause = max(longest_pause, clock.now - last)
        budget.reserved = 0
        if log > table / 2:
            if budget.wait_s(table, is_table=True):
                budget.reserved = table
            else:
                budget.add(table, is_table=True)
                writes.append((clock.now, table))
                log, tables = 0, tables + 1
        while writes[0][0] < clock.now - DAY_S:
            writes.popleft()
        assert sum(each for _, each in writes) <= 10**12
        longest_log = max(longest_log, log)
    assert tables >= 3
    assert longest_log < 2.5 * table
    most_s = HOUR_S if bytes_a_minute < 500e6 else 0.75 * DAY_S  # the last is more than the drive bears
    assert longest_pause < most_s, "checkpoints are taken all the time"


def test_a_table_waits_for_the_budget_is_told_and_is_written_alone(
    run: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_state, "_LEAST_LOG_BYTES", 1)
    monkeypatch.setattr(table_state, "LOG_SHARE", 0.0)
    clock, told = Clock(), list[tuple[str, dict[str, Any]]]()
    export, place = run.export(STEPS[0]), tmp_path / "checkpoints"
    folder = versions_of(export, tmp_path / "versions")
    run.put(STEPS[0], place)
    run.put(STEPS[1], place)
    updater = Updater(
        folder, export, following(place, folder), lambda event, **fields: told.append((event, fields)), clock
    )
    states = updater._tables  # pyright: ignore[reportPrivateUsage]
    tables = sorted(state.layout.bytes for state in states.values())
    updater._budget = WriteBudget(folder.root / "writes.json", 2 * tables[-1], clock)  # pyright: ignore[reportPrivateUsage]
    assert updater.step() is True
    anew = [fields for event, fields in told if event == "table_compacted"]
    waits = [fields for event, fields in told if event == "table_waits"]
    assert anew, "those that the budget bears are written"
    assert len(waits) == 1, "it is told once"
    assert updater._budget.reserved == waits[0]["bytes"]  # pyright: ignore[reportPrivateUsage]
    assert all(set(each) == {"version", "table", "bytes"} for each in anew)
    assert updater.status.compacted == len(anew) < len(states)
    (taken,) = (fields for event, fields in told if event == "version_taken")
    assert updater.status.bytes == taken["bytes"] + sum(each["bytes"] for each in anew)
    updater.tell_status(always=True)
    shown = control.state(folder)["updates"]
    assert shown["table_waits_for_budget_until"] > clock.now
    assert shown["bytes_written_24h"] == shown["bytes_written"], "tables count"
    for _ in range(4 * len(states)):  # no checkpoint comes, and the others are written all the same
        clock.now += DAY_S / 2
        assert updater.step() is False
    assert updater.status.compacted == len(states)
    updater.tell_status(always=True)
    assert control.state(folder)["updates"]["table_waits_for_budget_until"] is None
    assert all(table.base and not table.log for table in folder.records()[-1].tables.values())
    scorer = Opener(folder, Scorer.open(export)).open(folder.records()[-1])
    np.testing.assert_array_equal(run.predicted(scorer), run.expected(STEPS[1]))


@pytest.mark.parametrize("fails", ["append", "dense", "table"])
def test_writes_that_fail_do_not_use_up_the_budget(
    run: Trained, fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, place = run.export(STEPS[0]), tmp_path / "checkpoints"
    folder = versions_of(export, tmp_path / "versions")
    run.put(STEPS[0], place)
    run.put(STEPS[1], place)
    Updater(folder, export, following(place, folder)).step()
    run.put(STEPS[2], place)
    size = folder.records()[-1].bytes
    updater = Updater(folder, export, following(place, folder, bytes_per_day=100 * size))

    def full(*_: Any) -> Any:
        raise OSError(122, "Disk quota exceeded")

    with monkeypatch.context() as patch:
        if fails == "append":
            patch.setattr("ziggurat.serving.versions.table_state.os.pwrite", full)
        elif fails == "dense":
            patch.setattr("ziggurat.serving.versions.updater.save_file", full)
        else:
            patch.setattr(table_state, "_LEAST_LOG_BYTES", 1)
            patch.setattr(table_state, "LOG_SHARE", 0.0)
            patch.setattr(table_state, "sync", full)
        before = updater._budget.spent  # pyright: ignore[reportPrivateUsage]
        for _ in range(5):
            with pytest.raises((OSError, DataError), match=r"quota|no space left"):
                updater.step()
        noted = updater._budget.spent - before  # pyright: ignore[reportPrivateUsage]
    handed = sum(state.written for state in updater._tables.values())  # pyright: ignore[reportPrivateUsage]
    if fails == "append":
        assert noted == handed == 0
    else:  # what reached the disk counts, though it is removed again
        assert noted >= handed > 0
    updater.step()
    assert folder.records()[-1].step == STEPS[2]


def test_a_version_that_is_pinned_while_it_is_written_anew_is_followed_again(
    run: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_state, "_LEAST_LOG_BYTES", 1)
    monkeypatch.setattr(table_state, "LOG_SHARE", 0.0)
    export, place = run.export(STEPS[0]), tmp_path / "checkpoints"
    folder = versions_of(export, tmp_path / "versions")
    updater = Updater(folder, export, following(place, folder, keep=1))
    opener, compact = Opener(folder, Scorer.open(export)), table_state.TableState.compact

    def pinned(self: table_state.TableState, version: int) -> Any:
        if folder.pointer().mode == "following":
            control.pin(folder, folder.record(folder.pointer().number).short)
        return compact(self, version)

    run.put(STEPS[0], place)
    run.put(STEPS[1], place)
    monkeypatch.setattr(table_state.TableState, "compact", pinned)
    updater.step()
    monkeypatch.undo()
    assert folder.pointer().mode == "pinned"
    assert {folder.pointer().number, folder.next_number() - 1} <= {each.number for each in folder.records()}
    run.put(STEPS[2], place)
    assert updater.step() is False
    control.follow(folder)
    assert updater.step() is True
    assert folder.record(folder.pointer().number).step == STEPS[2]
    np.testing.assert_array_equal(run.predicted(opener.open(folder.records()[-1])), run.expected(STEPS[2]))
