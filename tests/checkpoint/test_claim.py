"""A store admits one writer at a time and one run only: in folders, in memory and on an S3 server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from checkpoint_kit import Table, saver

from tests.s3_kit import Proxy
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.store.claim import claimed
from ziggurat.checkpoint.store.lease import Lease, _become_writer, leased
from ziggurat.checkpoint.store.object_store import ObjectStore, open_store
from ziggurat.checkpoint.store.writer_identity import Owner, WriterIdentity
from ziggurat.core.errors import DataError, RunFolderError

RUN, OTHER = Owner("runs/one", "1111"), Owner("runs/two", "2222")
LEASE_S = 2.0
CHILD = """
import sys
from ziggurat.checkpoint.store.claim import claimed
from ziggurat.checkpoint.store.object_store import open_store
from ziggurat.checkpoint.store.writer_identity import Owner
from ziggurat.core.errors import RunFolderError

with claimed(open_store(sys.argv[1]), Owner("runs/one", "1111"), lease_s=float(sys.argv[2])) as claim:
    print("writing", flush=True)
    sys.stdin.readline()
    try:
        claim.check()
        print("still", flush=True)
    except RunFolderError as error:
        print(error, flush=True)
"""


@pytest.fixture(params=["local", "s3", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return f"memory://claims/{tmp_path.name}"
    return str(tmp_path / "run") if request.param == "local" else str(request.getfixturevalue("s3"))


@contextlib.contextmanager
def another_process(place: str, lease_s: float = LEASE_S) -> Generator[subprocess.Popen[str]]:
    """Yields another process that holds the claim to ``place``."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, place, str(lease_s)], stdin=pipe, stdout=pipe, text=True
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "writing\n"
            yield child
        finally:
            child.kill()


def test_writers_may_follow_one_another(place: str) -> None:
    for _ in range(2):
        with claimed(open_store(place), RUN) as claim:
            claim.check()


def test_a_second_writer_is_refused_and_the_first_is_named(place: str) -> None:
    with claimed(open_store(place), RUN, lease_s=3) as claim:
        with (
            pytest.raises(RunFolderError, match="another process writes checkpoints here") as caught,
            claimed(open_store(place), RUN),
        ):
            pass
        for part in (place, f"process {os.getpid()}", f"host {socket.gethostname()}", "runs/one since 20"):
            assert part in caught.value.problem
        assert "checkpoints.store" in caught.value.hint
        claim.check()


def test_another_run_is_refused_even_after_the_writer_ended(place: str) -> None:
    with claimed(open_store(place), RUN):
        pass
    with (
        pytest.raises(RunFolderError, match=r"another run, runs/one \(id 1111\); this is runs/two \(id 2222\)"),
        claimed(open_store(place), OTHER),
    ):
        pass
    with claimed(open_store(place), Owner("moved/one", "1111")) as claim:
        claim.check()


def test_a_failing_writer_releases_the_claim(place: str) -> None:
    with pytest.raises(KeyboardInterrupt), claimed(open_store(place), RUN):
        raise KeyboardInterrupt
    notes: list[str] = []
    with claimed(open_store(place), RUN, note=notes.append):
        assert notes == []


def test_a_damaged_writer_file_is_named(place: str) -> None:
    store = open_store(place)
    with claimed(store, RUN):
        name = next(name for name in store.files() if name.startswith("writer"))
    for damaged in (b"{}", b"\xff", json.dumps(dict.fromkeys(WriterIdentity.__slots__, "x")).encode()):
        store.write("", name, damaged)
        says = rf"{name}: (does not say who writes|is not valid JSON)"
        with pytest.raises(RunFolderError, match=says), claimed(store, RUN):
            pass
    store.delete("", name)
    with claimed(store, RUN) as claim:
        claim.check()


def test_a_folder_is_released_when_its_writer_is_killed(tmp_path: Path) -> None:
    place = str(tmp_path / "run")
    with another_process(place) as child:
        with pytest.raises(RunFolderError, match=f"process {child.pid} on"), claimed(open_store(place), RUN):
            pass
        child.kill()
        child.wait()
        with claimed(open_store(place), RUN) as claim:
            claim.check()


def test_a_file_system_without_locks_is_noticed(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with claimed(store, RUN) as claim:
        theirs = json.loads(store.read("", "writer.json")) | {"token": "of another", "pid": 7, "host": "far"}
        store.write("", "writer.json", json.dumps(theirs).encode())
        with pytest.raises(
            RunFolderError, match="no longer the writer of these checkpoints; now the writer is process 7 on host far"
        ):
            claim.check()


def test_a_killed_writer_is_succeeded_when_its_lease_expires(s3: str) -> None:
    store, notes = ObjectStore(s3), list[str]()
    with another_process(s3) as child:
        child.kill()  # without wait(): its process id stays taken, so that it looks alive, as on another host
        with claimed(store, RUN, note=notes.append) as claim:
            claim.check()
            assert store.files() == ["writer-00000002.json"]
    assert f"process {child.pid} on host" in notes[0]
    assert f"waiting up to {LEASE_S:g} s" in notes[0]


def test_nobody_waits_for_a_writer_known_to_be_dead(s3: str) -> None:
    notes: list[str] = []
    with another_process(s3, 60.0) as child:
        child.kill()
        child.wait()
        with claimed(ObjectStore(s3), RUN, note=notes.append) as claim:
            claim.check()
    assert notes == []


def test_a_writer_that_was_succeeded_while_it_slept_stops(s3: str) -> None:
    store = ObjectStore(s3)
    with another_process(s3) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.send_signal(signal.SIGSTOP)
        with claimed(store, RUN) as claim:
            child.send_signal(signal.SIGCONT)
            child.stdin.write("\n")
            child.stdin.flush()
            assert "no longer the writer of these checkpoints" in child.stdout.readline()
            child.wait(120)
            claim.check()
            assert store.files() == ["writer-00000002.json"]  # the first writer's file was deleted


def silent_writer(store: ObjectStore, lease_s: float = LEASE_S) -> Lease:
    """Returns the lease of a writer that sends no heartbeats."""
    return Lease(store, *_become_writer(store, RUN, lease_s, print))


def test_a_succeeded_writer_writes_no_manifest(s3: str) -> None:
    folder, table = CheckpointFolder(ObjectStore(s3)), Table()
    slept = silent_writer(ObjectStore(s3))
    with saver(folder, table, check=slept.check) as saving:
        saving.save(1, {}, {})
        saving.finish()
        saving.save(2, {}, {})
        saving.finish()
        with claimed(ObjectStore(s3), RUN):
            saving.save(3, {}, {})
            with pytest.raises(RunFolderError, match="was succeeded by process"):
                saving.finish()
    assert folder.steps() == [1, 2]
    folder.load(2).verify()


def test_a_heartbeat_at_the_last_moment_prevents_succession(s3: str) -> None:
    slept = silent_writer(ObjectStore(s3))

    class Late(ObjectStore):
        def create(self, folder: str, name: str, data: bytes) -> bool:
            slept.check()  # after the successor has looked for a heartbeat for the last time
            slept.start()
            return super().create(folder, name, data)

    with pytest.raises(RunFolderError, match="another process writes checkpoints here"), claimed(Late(s3), RUN):
        pass
    slept.check()
    slept.end()


def run_concurrently(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("previous", ["none", "dead"])
def test_exactly_one_of_several_concurrent_processes_becomes_the_writer(s3: str, proxy: Proxy, previous: str) -> None:
    if previous == "dead":
        silent_writer(ObjectStore(s3))
    start, ready, ends = threading.Barrier(3, timeout=120), threading.Barrier(3, timeout=120), threading.Event()
    held, refused = list[int](), list[str]()

    def work(number: int) -> None:
        store = ObjectStore(s3)
        start.wait()
        try:
            with claimed(store, RUN, lease_s=3) as claim:
                held.append(number)
                ends.wait(60)
                claim.check()
        except RunFolderError as error:
            refused.append(str(error))
            if len(refused) == 2:
                ends.set()
        ready.wait()

    run_concurrently(3, work)
    assert len(held) == 1
    assert len(refused) == 2
    assert all("another process writes checkpoints here" in each for each in refused)


def test_a_creation_whose_response_was_lost_succeeds_when_repeated(s3: str, proxy: Proxy) -> None:
    proxy.faults.append("lost")
    with claimed(ObjectStore(s3), RUN) as claim:
        claim.check()
        assert open_store(s3).files() == ["writer-00000001.json"]


@pytest.mark.parametrize("kind", ["ignored", "501"])
def test_a_store_without_conditional_writes_is_refused(s3: str, proxy: Proxy, kind: str) -> None:
    proxy.ignore_conditions = kind == "ignored"
    proxy.faults.extend(["501"] if kind == "501" else [])
    with (
        pytest.raises(DataError, match=rf"{s3}/writer-00000001\.json: .* not support conditional writes") as caught,
        claimed(ObjectStore(s3), RUN),
    ):
        pass
    assert "use a store that supports them" in caught.value.hint


def test_later_heartbeats_make_up_for_failed_ones(s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with leased(ObjectStore(s3), RUN, 3.0, print):
        proxy.faults.extend(["500", "cut"])
        with (
            pytest.raises(RunFolderError, match="another process writes checkpoints here"),
            claimed(ObjectStore(s3), RUN),
        ):
            pass
        assert not proxy.faults
