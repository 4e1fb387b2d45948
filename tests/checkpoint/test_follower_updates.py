"""Servers that follow a running training: temporary errors, locks, caches, a training in another process."""

from __future__ import annotations

import hashlib
import multiprocessing
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_kit import Table, saver
from follower_kit import POLICIES, assert_holds, dense, read_only
from torch import Tensor

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.follow.follower import Follower, Update
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.saver import Saver
from ziggurat.checkpoint.store.object_store import open_store
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.core.errors import RunFolderError

EXAMPLE = Path(__file__).parents[2] / "docs" / "following.md"


@pytest.fixture
def folder(tmp_path: Path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "checkpoints", keep=100)


class RecordedWaits(threading.Event):
    """An event that records the requested waiting times and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        return self.is_set()


PROBLEMS = (OSError("the mount is gone"), RunFolderError("cannot be read", "wait"))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_updates_continue_after_errors_until_stopped(folder: CheckpointFolder, problem: Exception) -> None:
    table, store, stop = Table(), read_only(folder), RecordedWaits()
    errors: list[Exception] = []
    failures = 6

    def hiccup(read: str, name: str) -> None:
        nonlocal failures
        if name.endswith("tensors") and failures:
            failures -= 1
            raise problem

    store.before = hiccup
    follower = Follower(store)
    with saver(folder, table) as saving:
        saving.save(1, dense(1), {})
        saving.finish()
        seen: list[tuple[int | None, int]] = []
        for update in follower.updates(0.5, stop=stop, on_error=errors.append):
            seen.append((update.from_step, update.to_step))
            if update.to_step == 4:
                stop.set()
                continue
            failures = 1
            table.change(5)
            saving.save(update.to_step + 1, dense(1), {})
            saving.finish()
    assert seen == [(None, 1), (1, 2), (2, 3), (3, 4)]
    assert errors == [problem] * (6 + 3)
    assert stop.seconds == [0.5, 1, 2, 4, 4, 4] + [0.5] * 3
    assert list(follower.updates(stop=stop)) == []


@pytest.mark.parametrize("problem", PROBLEMS)
def test_manifests_that_cannot_be_read_for_a_while(folder: CheckpointFolder, problem: Exception) -> None:
    table, store, stop = Table(), read_only(folder), RecordedWaits()
    failures = 0

    def hiccup(read: str, name: str) -> None:
        nonlocal failures
        if name == "manifest.json" and failures:
            failures -= 1
            raise problem

    store.before = hiccup
    follower = Follower(store)
    with saver(folder, table, policy="consecutive") as saving:
        for step in range(1, 8):
            saving.save(step, dense(step), {})
            saving.finish()
            failures = step
            next(follower.updates(stop=stop, on_error=lambda _: None))
            assert_holds(follower, folder, step)
            table.change(5)


def test_updates_wait_for_the_first_checkpoint_and_log_errors(
    folder: CheckpointFolder, caplog: pytest.LogCaptureFixture
) -> None:
    stop, table = threading.Event(), Table()
    seen: list[Update] = []
    server = threading.Thread(
        target=lambda: seen.extend(Follower(read_only(folder)).updates(0.001, stop=stop)), daemon=True
    )
    server.start()
    with saver(folder, table, policy="one_shot") as saving:
        saving.save(1, dense(1), {})
    torn = Path(folder.where) / folder_of(2) / "manifest.json"
    torn.parent.mkdir()
    torn.write_text("{")
    while not caplog.records or not seen:
        server.join(0.005)
        assert server.is_alive()
    stop.set()
    server.join(60)
    assert not server.is_alive()
    assert [update.to_step for update in seen] == [1]
    assert "step-00000002/manifest.json" in caplog.text


def test_readers_with_the_lock_see_one_step_and_caches_are_invalidated_in_time(folder: CheckpointFolder) -> None:
    table, lock, ending = Table(rows=2000), threading.Lock(), threading.Event()
    cache: dict[int, Tensor] = {}
    problems: list[str] = []

    def forget(update: Update) -> None:
        assert lock.locked()
        for row in update.rows["item"].tolist():
            cache.pop(row, None)

    follower = Follower(read_only(folder), lock=lock, on_change=forget)

    def serve() -> None:
        draw = torch.Generator().manual_seed(0)
        while not ending.is_set():
            with lock:
                for row in torch.randint(2000, (50,), generator=draw).tolist():
                    if not torch.equal(cache.setdefault(row, follower.tables["item"][row].clone()), shown(row)):
                        problems.append(f"row {row}")

    def shown(row: int) -> Tensor:
        """Returns the expected row: even rows have the step as their value, which is in the dense part as well."""
        number = float(follower.dense["dense/w"][0, 0]) if row % 2 == 0 else 1.0
        return torch.full((7,), number)

    server = threading.Thread(target=serve, daemon=True)
    with saver(folder, table, policy="one_shot") as saving:
        for step in range(1, 15):
            ids = torch.arange(0, 2000, 1 if step == 1 else 2)
            table.dirty.touch(ids)
            table.weight_RD[ids] = float(step)
            saving.save(step, dense(step), {})
            saving.finish()
            follower.advance()
            if step == 1:
                server.start()
    ending.set()
    server.join(60)
    assert not server.is_alive()
    assert follower.step == 14
    assert not problems


class WrittenWhileListed(LocalStore):
    """A local store in which a checkpoint is written between the listing of the folders and of their files."""

    write: Callable[[], None] | None = None

    def files(self, folder: str = "") -> list[str]:
        write, self.write = self.write, None
        if folder and write is not None:
            write()
        return super().files(folder)


def test_a_checkpoint_that_replaces_another_while_folders_are_listed_is_found(tmp_path: Path) -> None:
    folder, table, store = CheckpointFolder(tmp_path, keep=1), Table(), WrittenWhileListed(tmp_path)
    follower = Follower(store)
    with saver(folder, table, policy="one_shot") as saving:

        def save(step: int) -> None:
            table.change(5)
            saving.save(step, dense(step), {})
            saving.finish()

        for step in (1, 2):
            save(step)
            follower.advance()
        assert folder.steps() == [1, 2]
        store.write = partial(save, 3)  # and step 2 is deleted; without the new one, step 1 would be the newest
        follower.advance()
        assert follower.step == 3
    assert_holds(follower, folder, 3)


def test_an_object_store_is_followed(s3: str) -> None:
    folder, table = CheckpointFolder(open_store(s3), keep=1), Table()
    follower = Follower(open_store(s3))
    assert follower.advance() is None
    with saver(folder, table, policy="one_shot", bits=4) as saving:
        for step in range(1, 5):
            saving.save(step, dense(step), {})
            saving.finish()
            update = follower.advance()
            assert update is not None
            assert update.full == (step == 1)
            assert_holds(follower, folder, step)
            table.change(10)
    follower.verify()


def digest(weight_RD: Tensor) -> Tensor:
    return torch.tensor(list(hashlib.sha256(weight_RD.numpy().tobytes()).digest()), dtype=torch.uint8)


def train_in_process(root: Path) -> None:
    """Trains in another process. Every checkpoint has the digest of its rows in its dense part."""
    table, step = Table(rows=3000), 0

    def save(saving: Saver) -> None:
        saving.save(step, {"dense/digest": digest(table.weight_RD)}, {})
        table.change(40)

    for policy in POLICIES:
        with saver(CheckpointFolder(root, keep=1), table, policy=policy, consecutive_deltas=4) as saving:
            if step:
                save(saving)  # the same step again
            for _ in range(10):
                step += 1
                save(saving)


def test_a_training_in_another_process_is_followed(tmp_path: Path) -> None:
    training = multiprocessing.get_context("spawn").Process(target=train_in_process, args=(tmp_path,))
    stop, seen = threading.Event(), list[int]()
    giving_up = threading.Timer(240, stop.set)
    giving_up.daemon = True
    follower = Follower(read_only(CheckpointFolder(tmp_path)))
    training.start()
    giving_up.start()
    for update in follower.updates(0.002, stop=stop):
        assert torch.equal(digest(follower.tables["item"]), follower.dense["dense/digest"]), update
        seen.append(update.to_step)
        if update.to_step == 10 * len(POLICIES):
            stop.set()
    giving_up.cancel()
    training.join(120)
    assert training.exitcode == 0
    assert seen == sorted(seen)
    assert seen[-1:] == [40]
    assert len(seen) > 1
    follower.verify()


def test_the_example_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = EXAMPLE.read_text(encoding="utf-8").splitlines()
    code = "\n".join(line.removeprefix("    ") for line in lines if line.startswith("    "))
    monkeypatch.chdir(tmp_path)
    folder, table = CheckpointFolder(Path("runs/shop/checkpoints").absolute()), Table("item_id")
    names: dict[str, Any] = {}
    server = threading.Thread(target=lambda: exec(code, names), daemon=True)
    with saver(folder, table) as saving:
        for step in (1, 2):
            saving.save(step, dense(step), {})
            saving.finish()
            if step == 1:
                server.start()
            table.change(10)
        while "follower" not in names or names["follower"].step != 2:
            server.join(0.01)
            assert server.is_alive()
    names["stop"].set()
    server.join(60)
    assert not server.is_alive()
    assert_holds(names["follower"], folder, 2)
