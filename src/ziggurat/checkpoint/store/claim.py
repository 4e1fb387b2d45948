"""Who may write checkpoints in a place: one process at a time, and one run for good.

In: the store and the run. Out: a claim that is asked before each manifest whether it still holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Protocol

from ziggurat.checkpoint.store.lease import leased
from ziggurat.checkpoint.store.object_store import ObjectStore
from ziggurat.checkpoint.store.store import LocalStore, Store
from ziggurat.checkpoint.store.writer_identity import Owner, WriterIdentity
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import locked_folder

LEASE_S = 300.0
"""For so long a writer in an object store may give no sign until another succeeds it: longer than all tries of a
request take together, so that the last words of one who is succeeded do not come behind the other's."""
WRITER_FILE = "writer.json"
"""In a folder; object stores have it by numbers (:mod:`~ziggurat.checkpoint.store.lease`)."""


class Claim(Protocol):
    """The right to write."""

    def check(self) -> None:
        """Make sure of it.

        Raises:
            RunFolderError: another process has it now.
            DataError: an object store that cannot be written.
        """
        ...


@contextlib.contextmanager
def claimed(
    store: Store, owner: Owner, *, lease_s: float = LEASE_S, note: Callable[[str], None] = lambda _: None
) -> Generator[Claim]:
    """Be the one who writes checkpoints there; the first rank alone asks for it, for all.

    Of a folder it is a lock, which ends with the process, however it ends. Of an object store it is a lease: after a
    writer that was killed the next one starts once its lease is over; at once, on the same machine.

    Args:
        store: where the checkpoints lie.
        owner: the run that they are of.
        lease_s: in an object store.
        note: told why it takes long.

    Raises:
        RunFolderError: another process writes there, or what is there is another run's.
        DataError: it cannot be written, or is an object store without conditional writes.
    """
    if isinstance(store, LocalStore):
        with _locked(store, owner) as claim:
            yield claim
        return
    assert isinstance(store, ObjectStore), type(store)
    with leased(store, owner, lease_s, note) as lease:
        yield lease


class _Locked:
    """A folder whose lock this process has."""

    def __init__(self, store: LocalStore, writer: WriterIdentity) -> None:
        self._store, self._writer = store, writer

    def check(self) -> None:
        """A file system that does not tell other hosts of locks still tells them of files."""
        now = _writer(self._store)
        if now is None or now.token != self._writer.token:
            other = now or "none that says so"
            raise RunFolderError(
                f"{self._store.root}: this process is not the writer of these checkpoints any more, but {other}",
                "see that one training writes here, and start it again",
            )


@contextlib.contextmanager
def _locked(store: LocalStore, owner: Owner) -> Generator[_Locked]:
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked_folder(store.root, "writing checkpoints"))
        except RunFolderError:
            raise RunFolderError(
                f"{store.root}: another process writes checkpoints here: {_writer(store) or 'it has not said which'}",
                "wait for it, end it, or name another place in checkpoints.store",
            ) from None
        before = _writer(store)
        if before is not None:
            before.check_owner(owner, str(store.root))
        mine = WriterIdentity.here(owner, LEASE_S)
        store.write("", WRITER_FILE, mine.to_bytes())
        yield _Locked(store, mine)


def _writer(store: LocalStore) -> WriterIdentity | None:
    if WRITER_FILE not in store.files():
        return None
    return WriterIdentity.from_bytes(store.read("", WRITER_FILE), store.where("", WRITER_FILE))
