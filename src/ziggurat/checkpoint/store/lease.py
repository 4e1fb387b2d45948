"""A lease that admits one writer at a time into an object store, which has no locks that end with a process.

A writer creates an object ``writer-00000001.json``, which must not exist yet, and sends heartbeats: it rewrites the
object every few seconds. A process that finds it and sees no heartbeat for the duration of the lease creates
``writer-00000002.json``. The process with the highest number is the writer. If several try to create the same number,
the store admits one. Clocks are not compared.

Before a manifest the writer sends a heartbeat, and then looks for a higher number. Its successor creates the higher
number, and then looks for a heartbeat, in which case it withdraws. So at least one of the two sees the other, and a
writer that slept while it was succeeded stops there. One case remains: a writer that sleeps for a whole lease between
that look and the arrival of the manifest, its next request. The checkpoint that it then writes is complete in itself,
but may replace its successor's checkpoint of the same step.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Generator

from ziggurat.checkpoint.store.object_store import ObjectStore
from ziggurat.checkpoint.store.writer_identity import Owner, WriterIdentity
from ziggurat.core.errors import RunFolderError, ZigguratError

BEATS_PER_LEASE = 6
"""Heartbeats for the duration of a lease; several, so that some may fail."""
POLLS_PER_LEASE = 15
"""How often a process that waits for the end of a lease looks for a heartbeat."""
ATTEMPTS = 10
"""How often a process tries to become the writer while others try at the same time."""

_FILE = re.compile(r"writer-([0-9]{8,18})\.json")


class Lease:
    """The lease of this process; see :func:`leased`."""

    def __init__(self, store: ObjectStore, number: int, writer: WriterIdentity) -> None:
        self._store, self._number, self._writer = store, number, writer
        self._write_lock, self._stop, self._lost = threading.Lock(), threading.Event(), False
        self._thread = threading.Thread(target=self._beat_until_stopped, name="lease", daemon=True)

    def check(self) -> None:
        """Renews the lease, and checks that this process still is the writer.

        Raises:
            RunFolderError: another process has become the writer.
            DataError: the store cannot be written.
        """
        self._beat()
        number, other = _highest(self._store)
        if number <= self._number:
            return
        self._lost = True
        self._stop.set()
        raise RunFolderError(
            f"{self._store.url}: this process is no longer the writer of these checkpoints: it gave no sign for "
            f"{self._writer.lease_s:g} s, and was succeeded by {other}",
            "let the other one go on, or end it and start this training again",
        )

    def start(self) -> None:
        """Starts the thread that sends heartbeats."""
        self._thread.start()

    def end(self) -> None:
        """Releases the lease, so that the next writer need not wait."""
        self._stop.set()
        self._thread.join()
        # If the store cannot be reached, the lease expires by itself.
        with contextlib.suppress(ZigguratError):
            if self._lost:
                self._store.delete("", _name(self._number))
            else:
                self._beat(ended=True)

    def _beat_until_stopped(self) -> None:
        while not self._stop.wait(self._writer.lease_s / BEATS_PER_LEASE):
            # The next heartbeat makes up for one that fails; `check` reports a store that cannot be written.
            with contextlib.suppress(ZigguratError):
                self._beat()

    def _beat(self, *, ended: bool = False) -> None:
        with self._write_lock:
            self._writer = self._writer.next_beat(ended=ended)
            self._store.write("", _name(self._number), self._writer.to_bytes())


@contextlib.contextmanager
def leased(store: ObjectStore, owner: Owner, lease_s: float, note: Callable[[str], None]) -> Generator[Lease]:
    """Holds the lease on a store. Waits until another writer's lease has expired if that one sends no heartbeats.

    Args:
        store: the store of the checkpoints.
        owner: the run that the checkpoints belong to.
        lease_s: duration of the lease.
        note: receives a message that explains why acquiring takes long.

    Raises:
        RunFolderError: another process is the writer, or another run the owner.
        DataError: the store cannot be written, or does not support conditional writes.
    """
    lease = Lease(store, *_become_writer(store, owner, lease_s, note))
    lease.start()
    try:
        yield lease
    finally:
        lease.end()


def _become_writer(
    store: ObjectStore, owner: Owner, lease_s: float, note: Callable[[str], None]
) -> tuple[int, WriterIdentity]:
    for _ in range(ATTEMPTS):
        number, found = _highest(store)
        if found is not None:
            found.check_owner(owner, store.url)
            _wait_for_end(store, number, found, note)
        this = WriterIdentity.of_this_process(owner, lease_s)
        if not store.create("", _name(number + 1), this.to_bytes()):
            continue
        numbers = _numbers(store)
        if max(numbers, default=0) == number + 1 and not _has_beaten(store, number, found):
            for old in numbers:
                if old <= number:
                    store.delete("", _name(old))
            return number + 1, this
        store.delete("", _name(number + 1))
    raise RunFolderError(
        f"{store.url}: in {ATTEMPTS} attempts to become the writer, another process always was faster",
        "make sure that only one training writes here",
    )


def _wait_for_end(store: ObjectStore, number: int, found: WriterIdentity, note: Callable[[str], None]) -> None:
    """Returns when a writer has ended, or has sent no heartbeat for the duration of its lease.

    Raises:
        RunFolderError: the writer sent a heartbeat.
    """
    if found.ended or found.is_dead():
        return
    note(f"{store.url}: {found}; waiting up to {found.lease_s:g} s for a sign of it")
    deadline = time.monotonic() + found.lease_s
    while time.monotonic() < deadline:
        time.sleep(found.lease_s / POLLS_PER_LEASE)
        current_number, current = _highest(store)
        if current is not None and (current_number, current) != (number, found) and not current.ended:
            raise RunFolderError(
                f"{store.url}: another process writes checkpoints here: {current}",
                "wait for it, end it, or name another place in checkpoints.store",
            )
        if current is None or current.ended:
            return


def _has_beaten(store: ObjectStore, number: int, found: WriterIdentity | None) -> bool:
    """Returns whether a writer that was taken for dead has sent a heartbeat since it was read as ``found``."""
    if found is None or _name(number) not in store.files():
        return False
    current = _read(store, number)
    return current != found and not current.ended


def current_writer(store: ObjectStore) -> WriterIdentity | None:
    """Returns the writer with the highest number, the present one or the last; None if there never was one."""
    return _highest(store)[1]


def _highest(store: ObjectStore) -> tuple[int, WriterIdentity | None]:
    """Returns the writer's number and identity; 0 and None if there never was a writer."""
    while numbers := _numbers(store):
        try:
            return max(numbers), _read(store, max(numbers))
        except RunFolderError:
            if max(numbers) in _numbers(store):  # otherwise a successor has just deleted it
                raise
    return 0, None


def _read(store: ObjectStore, number: int) -> WriterIdentity:
    name = _name(number)
    return WriterIdentity.from_bytes(store.read("", name), store.where("", name))


def _numbers(store: ObjectStore) -> list[int]:
    return [int(match[1]) for name in store.files() if (match := _FILE.fullmatch(name))]


def _name(number: int) -> str:
    return f"writer-{number:08d}.json"
