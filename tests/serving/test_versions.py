"""Versions that are taken of checkpoints predict, to the bit, what exports of these checkpoints predict."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.versions_kit import (
    STEPS,
    Opener,
    Trained,
    following,
    on_disk,
    take_and_die,
    trained,
    uncompiled,
    versions_of,
)
from tests.small_disk import small_disk
from ziggurat.checkpoint.reader import folder_of
from ziggurat.core.errors import ConfigError, DataError, RunFolderError
from ziggurat.serving.artefact.row_codec import PRECISIONS, Precision
from ziggurat.serving.model.scorer import Scorer
from ziggurat.serving.versions import control, table_state
from ziggurat.serving.versions.failure_kinds import kind_of
from ziggurat.serving.versions.folder import VersionFolder
from ziggurat.serving.versions.record import FollowStatus, TableRecord
from ziggurat.serving.versions.updater import Updater


@pytest.fixture(scope="module")
def run() -> Trained:
    return trained()


class Events:
    """What an updater tells."""

    def __init__(self) -> None:
        self.found: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, event: str, **fields: Any) -> None:
        self.found.append((event, fields))

    def of(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self.found if event == name]


def started(
    run: Trained, tmp_path: Path, precision: Precision = "fp32", **options: Any
) -> tuple[VersionFolder, Path, Updater, Events]:
    """Returns a folder of versions, the empty place that is followed, an updater, and what it tells."""
    export, place, events = run.export(STEPS[0], precision), tmp_path / "checkpoints", Events()
    place.mkdir()
    folder = versions_of(export, tmp_path / "versions")
    return folder, place, Updater(folder, export, following(place, folder, **options), events), events


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_version_equals_the_export_of_its_checkpoint(run: Trained, precision: Precision, tmp_path: Path) -> None:
    folder, place, updater, _ = started(run, tmp_path, precision)
    export = run.export(STEPS[0], precision)
    openers = [Opener(folder, open_(export)) for open_ in (Scorer.open, on_disk, uncompiled)]
    steps = STEPS[: 4 if precision == "fp32" else 3]
    for step in steps:
        run.put(step, place)
        assert updater.step() == (step != STEPS[0])  # of that checkpoint the export was made
        record = folder.records()[-1]
        assert record.step == step
        for opener in openers:
            scorer = opener.open(record)
            expected = run.expected(step, precision)
            for _ in range(2):  # the second time from caches
                np.testing.assert_array_equal(run.predicted(scorer), expected)
    kinds = [json.loads((place / folder_of(step) / "manifest.json").read_text())["manifest"]["kind"] for step in steps]
    assert "delta" in kinds
    for record in folder.records():  # those before are what they were
        np.testing.assert_array_equal(run.predicted(openers[1].open(record)), run.expected(record.step, precision))
    assert updater.step() is False


def test_compaction_changes_no_prediction(run: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_state, "_LEAST_LOG_BYTES", 1)
    monkeypatch.setattr(table_state, "LOG_SHARE", 0.0)
    folder, place, updater, events = started(run, tmp_path)
    openers = [Opener(folder, open_(run.export(STEPS[0]))) for open_ in (Scorer.open, on_disk, uncompiled)]
    for step in STEPS[:4]:
        run.put(step, place)
        updater.step()
        for opener in openers:
            np.testing.assert_array_equal(run.predicted(opener.open(folder.records()[-1])), run.expected(step))
    assert len(events.of("table_compacted")) == updater.status.compacted > 3
    assert all(not table.log for table in folder.records()[-1].tables.values())
    assert [each["version"] for each in control.state(folder)["versions"]] == [each.short for each in folder.records()]
    assert not list(folder.root.glob("*.log"))


def test_old_versions_are_removed_but_never_the_one_that_is_served(run: Trained, tmp_path: Path) -> None:
    folder, place, updater, _ = started(run, tmp_path, keep=2)
    for step in STEPS[:3]:
        run.put(step, place)
        updater.step()
    assert [each.step for each in folder.records()] == list(STEPS[1:3])
    control.roll_back(folder)
    with pytest.raises(control.Conflict, match="there is no version before 6-"):
        control.roll_back(folder)
    run.put(STEPS[3], place)
    assert updater.step() is False  # pinned
    control.follow(folder)
    run.put(STEPS[4], place)
    assert updater.step() is True
    assert [each.step for each in folder.records()] == [STEPS[2], STEPS[4]]
    used = {each.dense for each in folder.records()}
    assert {path.name for path in folder.root.glob("dense.*")} == used
    with pytest.raises(control.NotKept, match="there is no version '3-00'"):
        control.pin(folder, "3-00")


def test_a_failure_between_two_tables_loses_no_row(
    run: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of the second table cannot be opened once: the next version has the rows of the first one, too."""
    folder, place, updater, _ = started(run, tmp_path)
    run.put(STEPS[0], place)
    assert updater.step() is False
    run.put(STEPS[1], place)
    opened = table_state.TableState.open
    calls = 0

    def fails_once(self: table_state.TableState, record: TableRecord) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(24, "Too many open files")
        opened(self, record)

    monkeypatch.setattr(table_state.TableState, "open", fails_once)
    with pytest.raises(OSError, match="Too many open files"):
        updater.step()
    assert updater.step() is True
    assert calls > 2
    scorer = Opener(folder, Scorer.open(run.export(STEPS[0]))).open(folder.records()[-1])
    np.testing.assert_array_equal(run.predicted(scorer), run.expected(STEPS[1]))


def test_another_updater_goes_on_where_one_ended(run: Trained, tmp_path: Path) -> None:
    folder, place, updater, _ = started(run, tmp_path)
    for step in STEPS[:3]:
        run.put(step, place)
        updater.step()
    log = next(folder.root.glob("*.log"))
    with log.open("ab") as file:
        file.write(b"rows of a version that never came to be")
    other = Updater(folder, run.export(STEPS[0]), following(place, folder))
    assert other.step() is False  # nothing differs
    run.put(STEPS[3], place)
    assert other.step() is True
    assert other.status.taken == 3
    scorer = Opener(folder, Scorer.open(run.export(STEPS[0]))).open(folder.records()[-1])
    np.testing.assert_array_equal(run.predicted(scorer), run.expected(STEPS[3]))


def test_a_row_that_was_damaged_on_the_disk_is_written_again(run: Trained, tmp_path: Path) -> None:
    folder, place, updater, events = started(run, tmp_path)
    for step in STEPS[:4]:
        run.put(step, place)
        updater.step()
    record = folder.records()[-1]
    user = record.tables["user"]
    assert user.tail_rows < user.log_rows
    ids = np.fromfile(folder.root / f"{user.log}.ids", "<u4")
    row = next(at for at, each in enumerate(ids[: -user.tail_rows]) if each not in ids[at + 1 :])
    log = folder.root / f"{user.log}.log"
    content = bytearray(log.read_bytes())
    content[row * len(content) // len(ids)] ^= 0x10
    log.write_bytes(bytes(content))
    assert Updater(folder, run.export(STEPS[0]), following(place, folder), events).step() is True
    assert events.of("version_taken")[-1]["rows"] == 1
    scorer = Opener(folder, Scorer.open(run.export(STEPS[0]))).open(folder.records()[-1])
    np.testing.assert_array_equal(run.predicted(scorer), run.expected(STEPS[3]))


def test_the_budget_merges_what_would_be_written_too_often(run: Trained, tmp_path: Path) -> None:
    now = [1_000_000.0]
    export, place, events = run.export(STEPS[0]), tmp_path / "checkpoints", Events()
    folder = versions_of(export, tmp_path / "versions")
    run.put(STEPS[0], place)
    run.put(STEPS[1], place)
    free = Updater(folder, export, following(place, folder), now=lambda: now[0])
    free.step()
    size = folder.records()[-1].bytes
    limited = following(place, folder, bytes_per_day=3 * size)
    updater = Updater(folder, export, limited, events, now=lambda: now[0])
    for step in STEPS[2:4]:
        run.put(step, place)
        updater.step()
    assert [each.step for each in folder.records()] == list(STEPS[:2])
    assert len(events.of("updates_merged")) == 1
    shown = control.state(folder)["updates"]
    assert shown["waits_for_budget_until"] > now[0]
    assert shown["bytes_written_24h"] == size
    assert shown["budget_bytes_24h"] == 3 * size
    now[0] += 86_400 / 2
    assert updater.step() is True
    assert [each.step for each in folder.records()] == [*STEPS[:2], STEPS[3]]
    assert updater.status.merged == 1
    scorer = Opener(folder, Scorer.open(export)).open(folder.records()[-1])
    np.testing.assert_array_equal(run.predicted(scorer), run.expected(STEPS[3]))


def test_damage_is_told_and_the_version_stays(run: Trained, tmp_path: Path) -> None:
    folder, place, updater, events = started(run, tmp_path)
    run.put(STEPS[0], place)
    updater.step()
    run.put(STEPS[1], place)
    file = max((place / folder_of(STEPS[1])).glob("*.safetensors"), key=lambda path: path.stat().st_size)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(RunFolderError, match=file.name) as raised:
        updater.step()
    updater.failed(raised.value)
    assert kind_of(raised.value) == "damaged"
    assert folder.records()[-1].number == 0
    assert file.name in control.state(folder)["updates"]["problem"]
    assert folder.status().failures == {"damaged": 1}
    file.write_bytes(content)
    assert updater.step() is True
    updater.succeeded()
    assert folder.records()[-1].step == STEPS[1]
    assert [event for event, _ in events.found][-1] == "follow_recovered"
    shutil.copytree(run.run / "checkpoints" / folder_of(STEPS[2]), place / folder_of(STEPS[2]))
    (place / folder_of(STEPS[2]) / "manifest.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"step-00000009/manifest\.json"):
        updater.step()
    run.put(STEPS[3], place)  # a newer one does not need it, or is tried again once it is whole
    shutil.rmtree(place / folder_of(STEPS[2]))
    run.put(STEPS[2], place)
    assert updater.step() is True
    assert folder.records()[-1].step == STEPS[3]


def test_runs_that_are_not_the_exports_are_refused(run: Trained, tmp_path: Path) -> None:
    export = run.export(STEPS[0])
    folder = versions_of(export, tmp_path / "versions")
    place = tmp_path / "run" / "checkpoints"
    place.parent.mkdir()
    run.put(STEPS[0], place)
    (place.parent / "environment.json").write_text(json.dumps({"run_id": "0" * 16}))
    with pytest.raises(ConfigError, match=r"is run '0000000000000000'; .* was made of another run"):
        Updater(folder, export, following(place.parent, folder)).step()
    (place.parent / "environment.json").unlink()
    shutil.copytree(run.run / "encoders", place.parent / "encoders")
    transform = place.parent / "encoders" / "transform.json"
    transform.write_text(transform.read_text().replace("0", "1", 1))
    with pytest.raises(ConfigError, match="has other features or encoders"):
        Updater(folder, export, following(place.parent, folder)).step()
    with pytest.raises(RunFolderError, match="there is no such folder"):
        Updater(folder, export, following(tmp_path / "none", folder)).step()


def test_versions_of_another_export_are_refused(run: Trained, tmp_path: Path) -> None:
    versions_of(run.export(STEPS[0]), tmp_path / "versions")
    with pytest.raises(DataError, match="holds the versions of another export"):
        versions_of(run.export(STEPS[1]), tmp_path / "versions")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ConfigError, match="is no folder of versions"):
        versions_of(run.export(STEPS[0]), tmp_path / "other")


def test_a_damaged_version_is_named(run: Trained, tmp_path: Path) -> None:
    folder, place, updater, _ = started(run, tmp_path)
    for step in STEPS[:2]:
        run.put(step, place)
        updater.step()
    record, opener = folder.records()[-1], Opener(folder, Scorer.open(run.export(STEPS[0])))
    for name in (record.dense, f"{record.tables['item'].log}.log", f"{record.tables['item'].log}.ids"):
        path = folder.root / name
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(DataError, match=name.rpartition(".")[0]):  # a log stands for its ids
            opener.open(record)
        path.write_bytes(content[:-1])
        with pytest.raises(DataError, match=name):
            opener.open(record)
        path.write_bytes(content)
    opener.open(record)


def test_an_updater_that_is_killed_at_any_time_leaves_a_version_whole(run: Trained, tmp_path: Path) -> None:
    export, place = run.export(STEPS[0]), tmp_path / "checkpoints"
    folder = versions_of(export, tmp_path / "versions")
    run.put(STEPS[0], place)
    run.put(STEPS[1], place)
    Updater(folder, export, following(place, folder)).step()
    run.put(STEPS[2], place)
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.serving.versions_kit"])
    opener = Opener(folder, Scorer.open(export))
    found: list[int] = []
    killed = 0
    at = 1
    while True:
        process = context.Process(target=take_and_die, args=(place, folder.root, export, at))
        process.start()
        process.join(60)
        record = folder.record(folder.pointer().number)
        np.testing.assert_array_equal(run.predicted(opener.open(record)), run.expected(record.step))
        found.append(record.step)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        killed += 1
        at += 4
    assert killed >= 8
    assert found[0] == STEPS[1]
    assert found[-1] == STEPS[2]
    assert found == sorted(found)


def test_a_full_disk_is_told_on_that_disk(run: Trained, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 96) as disk:
        folder = versions_of(run.export(STEPS[0]), disk / "versions")
        folder.tell(FollowStatus(problem="a" * 100))
        with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        for problem in ("b" * 100, "c" * 20):  # no block is free for another file, nor for a longer one
            folder.tell(FollowStatus(problem=problem, failures={"disk_full": 1}))
            assert (folder.status().problem, folder.status().failures) == (problem, {"disk_full": 1})
