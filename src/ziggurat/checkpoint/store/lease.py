"""One writer at a time in an object store, which has no locks that end with a process.

Who writes makes an object that must not be there yet, ``writer-00000001.json``, and beats: writes it anew every few
seconds. Who finds it and sees no beat for as long as its lease makes ``writer-00000002.json``. The writer is who has
the highest number, and of those who try to make the same one the store lets one through. Clocks are not compared.

Before a manifest the writer beats, and then looks for a higher number; its successor makes that, and then looks for a
beat, for which it withdraws. So either one sees the other, and one that slept while it was succeeded stops there. What
remains is one that sleeps for a whole lease between its look and the arrival of the manifest, its next request. What it
then leaves is whole in itself, but may replace its successor's checkpoint of the same step.
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

BEATS = 6
"""In a lease, so that some may fail."""
LOOKS = 15
"""In a lease, by one who waits for its end."""
TRIES = 10
"""To become the writer, where others try at the same time."""

_FILE = re.compile(r"writer-(\d{8,})\.json")


class Lease:
    """Of this process; see :func:`leased`."""

    def __init__(self, store: ObjectStore, number: int, writer: WriterIdentity) -> None:
        self._store, self._number, self._writer = store, number, writer
        self._turn, self._ends, self._lost = threading.Lock(), threading.Event(), False
        self._thread = threading.Thread(target=self._beat_on, name="lease", daemon=True)

    def check(self) -> None:
        """Begin the lease anew; whoever watches it then waits for all of it.

        Raises:
            RunFolderError: another process has become the writer.
            DataError: the store cannot be written.
        """
        self._beat()
        number, other = _highest(self._store)
        if number <= self._number:
            return
        self._lost = True
        self._ends.set()
        raise RunFolderError(
            f"{self._store.url}: this process is not the writer of these checkpoints any more: it gave no sign for "
            f"{self._writer.lease_s:g} s, and was succeeded by {other}",
            "let the other one go on, or end it and start this training again",
        )

    def begin(self) -> None:
        """Beat from now on."""
        self._thread.start()

    def end(self) -> None:
        """Let go, so that the next writer need not wait."""
        self._ends.set()
        self._thread.join()
        # Where the store is not reached, the lease ends by itself.
        with contextlib.suppress(ZigguratError):
            if self._lost:
                self._store.delete("", _name(self._number))
            else:
                self._beat(ended=True)

    def _beat_on(self) -> None:
        while not self._ends.wait(self._writer.lease_s / BEATS):
            # One that fails is made up for by the next; `check` says what has become of it.
            with contextlib.suppress(ZigguratError):
                self._beat()

    def _beat(self, *, ended: bool = False) -> None:
        with self._turn:
            self._writer = self._writer.beaten(ended=ended)
            self._store.write("", _name(self._number), self._writer.to_bytes())


@contextlib.contextmanager
def leased(store: ObjectStore, owner: Owner, lease_s: float, note: Callable[[str], None]) -> Generator[Lease]:
    """Be the writer, once another one's lease has ended where there is one that does not beat.

    Args:
        store: where the checkpoints lie.
        owner: whose they are.
        lease_s: of this writer.
        note: told why it takes long.

    Raises:
        RunFolderError: another process is the writer, or another run the owner.
        DataError: the store cannot be written, or knows no conditional writes.
    """
    lease = Lease(store, *_become_writer(store, owner, lease_s, note))
    lease.begin()
    try:
        yield lease
    finally:
        lease.end()


def _become_writer(
    store: ObjectStore, owner: Owner, lease_s: float, note: Callable[[str], None]
) -> tuple[int, WriterIdentity]:
    for _ in range(TRIES):
        number, found = _highest(store)
        if found is not None:
            found.check_owner(owner, store.url)
            _outwait(store, number, found, note)
        mine = WriterIdentity.here(owner, lease_s)
        if not store.create("", _name(number + 1), mine.to_bytes()):
            continue
        numbers = _numbers(store)
        if max(numbers, default=0) == number + 1 and not _has_beaten(store, number, found):
            for old in numbers:
                if old <= number:
                    store.delete("", _name(old))
            return number + 1, mine
        store.delete("", _name(number + 1))
    raise RunFolderError(f"{store.url}: others become writers here all the time", "see that one training writes here")


def _outwait(store: ObjectStore, number: int, found: WriterIdentity, note: Callable[[str], None]) -> None:
    """Return when this writer has ended, or has not beaten for its lease.

    Raises:
        RunFolderError: it lives.
    """
    if found.ended or found.is_dead():
        return
    note(f"{store.url}: {found}; waiting up to {found.lease_s:g} s for a sign of it")
    until = time.monotonic() + found.lease_s
    while time.monotonic() < until:
        time.sleep(found.lease_s / LOOKS)
        at, now = _highest(store)
        if now is not None and (at, now) != (number, found) and not now.ended:
            raise RunFolderError(
                f"{store.url}: another process writes checkpoints here: {now}",
                "wait for it, end it, or name another place in checkpoints.store",
            )
        if now is None or now.ended:
            return


def _has_beaten(store: ObjectStore, number: int, found: WriterIdentity | None) -> bool:
    """Whether a writer that was given up for dead has given a sign since."""
    if found is None or _name(number) not in store.files():
        return False
    now = _read(store, number)
    return now != found and not now.ended


def _highest(store: ObjectStore) -> tuple[int, WriterIdentity | None]:
    """The writer and its number; 0 and None where there never was one."""
    while numbers := _numbers(store):
        try:
            return max(numbers), _read(store, max(numbers))
        except RunFolderError:
            if max(numbers) in _numbers(store):  # else a successor has just taken it away
                raise
    return 0, None


def _read(store: ObjectStore, number: int) -> WriterIdentity:
    name = _name(number)
    return WriterIdentity.from_bytes(store.read("", name), store.where("", name))


def _numbers(store: ObjectStore) -> list[int]:
    return [int(match[1]) for name in store.files() if (match := _FILE.fullmatch(name))]


def _name(number: int) -> str:
    return f"writer-{number:08d}.json"
