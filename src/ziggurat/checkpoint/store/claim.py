"""The exclusive right to write checkpoints into a store: one process at a time, and only ever one run.

In: the store and the run. Out: a claim, which the writer checks before each manifest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Protocol

from ziggurat.checkpoint.store.lease import current_writer, leased
from ziggurat.checkpoint.store.object_store import ObjectStore
from ziggurat.checkpoint.store.store import LocalStore, Store
from ziggurat.checkpoint.store.writer_identity import Owner, WriterIdentity
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import FolderInUse, locked_folder

LEASE_S = 300.0
"""How long a writer in an object store may give no sign before another one may succeed it. It is longer than all
attempts of one request take together, so that the last write of a writer that was succeeded does not arrive after its
successor's."""
WRITER_FILE = "writer.json"
"""Names the writer in a folder; in object stores the file is numbered (:mod:`~ziggurat.checkpoint.store.lease`)."""


class Claim(Protocol):
    """The right to write checkpoints into a store."""

    def check(self) -> None:
        """Checks that this process still holds it.

        Raises:
            RunFolderError: another process holds it now.
            DataError: the object store cannot be written.
        """
        ...


@contextlib.contextmanager
def claimed(
    store: Store, owner: Owner, *, lease_s: float = LEASE_S, note: Callable[[str], None] = lambda _: None
) -> Generator[Claim]:
    """Holds the claim to a store. Only the first rank acquires it, for all ranks.

    In a folder the claim is a lock, which ends with the process, however it ends. In an object store it is a lease:
    after a writer was killed, the next one starts when the lease has expired, or at once on the same machine.

    Args:
        store: the store of the checkpoints.
        owner: the run that the checkpoints belong to.
        lease_s: duration of the lease in an object store.
        note: receives a message that explains why acquiring takes long.

    Raises:
        RunFolderError: another process writes there, or the checkpoints there belong to another run.
        DataError: the store cannot be written, or is an object store without conditional writes.
    """
    if isinstance(store, LocalStore):
        with _lock_folder(store, owner) as claim:
            yield claim
        return
    assert isinstance(store, ObjectStore), type(store)
    with leased(store, owner, lease_s, note) as lease:
        yield lease


class _FolderClaim:
    """The claim to a folder whose lock this process holds."""

    def __init__(self, store: LocalStore, writer: WriterIdentity) -> None:
        self._store, self._writer = store, writer

    def check(self) -> None:
        """Checks the writer file: a file system that does not share locks between hosts still shares files."""
        current = _writer(self._store)
        if current is None:
            raise RunFolderError(
                f"{self._store.root}: was deleted, moved or emptied while this training runs: the file {WRITER_FILE}, "
                "which it has written there, is gone",
                "put the folder back if you have it, and start this training again: it resumes from the newest "
                "checkpoint in there, or else from the start",
            )
        if current.token != self._writer.token:
            raise RunFolderError(
                f"{self._store.root}: this process is no longer the writer of these checkpoints; now the writer is "
                f"{current}",
                "make sure that only one training writes here, and start it again",
            )


@contextlib.contextmanager
def _lock_folder(store: LocalStore, owner: Owner) -> Generator[_FolderClaim]:
    with contextlib.ExitStack() as stack:
        previous = _writer(store)  # before anything is written there: it may be the folder of another run
        if previous is not None:
            previous.check_owner(owner, str(store.root))
        try:
            stack.enter_context(locked_folder(store.root, "writing checkpoints"))
        except FolderInUse:
            raise RunFolderError(
                f"{store.root}: another process writes checkpoints here: {_writer(store) or 'it is not recorded'}",
                "wait for it, end it, or name another place in checkpoints.store",
            ) from None
        previous = _writer(store)
        if previous is not None:
            previous.check_owner(owner, str(store.root))
        this = WriterIdentity.of_this_process(owner, LEASE_S)
        store.write("", WRITER_FILE, this.to_bytes())
        yield _FolderClaim(store, this)


def recorded_writer(store: Store) -> WriterIdentity | None:
    """Returns the process that writes to a store or was the last to do so; None if none is recorded.

    Raises:
        RunFolderError: the file that names it is damaged.
    """
    if isinstance(store, LocalStore):
        return _writer(store)
    assert isinstance(store, ObjectStore), type(store)
    return current_writer(store)


def _writer(store: LocalStore) -> WriterIdentity | None:
    """Returns the writer that the folder's writer file names; None if there is no such file."""
    if WRITER_FILE not in store.files():
        return None
    return WriterIdentity.from_bytes(store.read("", WRITER_FILE), store.where("", WRITER_FILE))
