"""Keeps a server's tables at the newest checkpoint of a training that is still running.

An update is completely read, verified and decoded before the first row changes, and then applied at once.
:mod:`ziggurat.checkpoint.follow.incremental_update` decides what is read. ``docs/following.md`` states what a server
can rely on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ziggurat.checkpoint.block_reader import BlockCheckpointReader
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.follow.changed_rows import differing, ids_by_table, put, same_bits
from ziggurat.checkpoint.follow.incremental_update import (
    RECOVERABLE,
    HeldVersions,
    IncrementalReader,
    IncrementalUpdate,
    RecoverableError,
)
from ziggurat.checkpoint.format.manifest import Reference
from ziggurat.checkpoint.reader import TABLES, folder_of
from ziggurat.checkpoint.store.store import Store
from ziggurat.core.errors import RunFolderError
from ziggurat.parallel.tensor_slices import TensorSlice

LONGEST_WAIT = 8
"""After each failure in a row :meth:`Follower.updates` waits twice as long, up to this many times ``poll_s``."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Update:
    """An update that a follower has applied.

    Attributes:
        from_step: step that the follower held before; None: nothing.
        to_step: step that it holds now.
        full: whether it has read a full checkpoint, not only deltas.
        rows: table -> ids of the rows written, int64, ascending. If ``full``, only rows that differ from what was held
            are written. Tables without written rows are left out.
        bytes: size of the files read, without manifests.
        seconds: time from the start of the check for a newer checkpoint until all rows were in place.
        skipped: errors of newer checkpoints that could not be read, the newest first; each names its file.
    """

    from_step: int | None
    to_step: int
    full: bool
    rows: dict[str, Tensor]
    bytes: int
    seconds: float
    skipped: tuple[RecoverableError, ...] = ()

    @property
    def whole(self) -> bool:
        """The former name of ``full``."""
        return self.full


class Follower:
    """Holds the weights of one checkpoint, without optimizer states, and advances to newer ones. Not thread-safe.

    Args:
        folder: the checkpoints; those of a run are in ``runs/NAME/checkpoints``. A follower never writes there.
        tables: name -> tensor (rows, dim) to fill, on any device and of any floating dtype; or names of tables, which
            are then created here on the CPU, in float32. None: all tables, created here.
        groups: the groups of other tensors to hold. A training with ``weight_average`` has the weights to serve in the
            group ``average``, tables included, complete in each checkpoint.
        lock: held while an update is applied; readers should hold it as well.
        on_change: called with each update while the lock is held, so that caches can drop its rows.

    Raises:
        RunFolderError: ``folder`` is a run, not its checkpoints.

    Attributes:
        tables: name -> tensor; the tensors are never replaced.
        dense: ``GROUP/NAME`` -> tensor, on the CPU; a new mapping after each update.
    """

    def __init__(
        self,
        folder: CheckpointFolder | str | Path | Store,
        tables: Mapping[str, Tensor] | Collection[str] | None = None,
        *,
        groups: Collection[str] = ("dense",),
        lock: AbstractContextManager[Any] | None = None,
        on_change: Callable[[Update], None] | None = None,
    ) -> None:
        _refuse_run(folder)
        self._folder = folder if isinstance(folder, CheckpointFolder) else CheckpointFolder(folder)
        self._reader = IncrementalReader(self._folder, tables, groups)
        self._groups = tuple(groups)
        self._lock: AbstractContextManager[Any] = nullcontext() if lock is None else lock
        self._on_change = on_change
        given = tables if isinstance(tables, Mapping) else {}
        self._held = HeldVersions({name: tensor.detach() for name, tensor in given.items()})
        self.dense: dict[str, Tensor] = {}

    @property
    def tables(self) -> dict[str, Tensor]:
        return self._held.tables

    @property
    def step(self) -> int | None:
        """Step of the checkpoint held; None: nothing yet, or an update was interrupted while it was applied."""
        return None if self.reference is None else self.reference.step

    @property
    def reference(self) -> Reference | None:
        """Step and id of the checkpoint held; None as for :attr:`step`."""
        return self._held.reference

    def latest(self) -> int | None:
        """Returns the newest checkpoint's step, or None."""
        return self._folder.last()

    def advance(self) -> Update | None:
        """Advances to the newest complete checkpoint.

        Returns:
            The update; None if that checkpoint is held already, or there is none at all.

        Raises:
            RunFolderError: all checkpoints newer than the one held are damaged; the message names the newest one's
                file. Nothing has changed.
            ConfigError: a table is not in the checkpoint, or of another shape. Nothing has changed.
        """
        started = time.perf_counter()
        update = self._reader.fetch(self._held)
        return None if update is None else self._apply(update, started)

    def updates(
        self,
        poll_s: float = 5.0,
        *,
        stop: threading.Event | None = None,
        on_error: Callable[[RecoverableError], None] | None = None,
    ) -> Generator[Update]:
        """Yields every update from now on, until ``stop`` is set.

        Args:
            poll_s: seconds between two checks while there is no newer checkpoint.
            stop: ends the generator at once while it waits; otherwise after the update being read was applied.
            on_error: called with each error, after which the generator continues; the default logs a warning.

        Raises:
            ConfigError: as :meth:`advance`.
        """
        stop = threading.Event() if stop is None else stop
        on_error = _warn if on_error is None else on_error
        failures = 0
        while not stop.is_set():
            started, update = time.perf_counter(), None
            try:
                update = self._reader.fetch(self._held)
                failures = 0
            except RECOVERABLE as error:
                failures += 1
                on_error(error)
            if update is None:
                stop.wait(poll_s * min(2 ** max(0, failures - 1), LONGEST_WAIT))
                continue
            for error in update.skipped:
                on_error(error)
            yield self._apply(update, started)

    def verify(self) -> None:
        """Compares all weights held with the same checkpoint, read anew. Needs memory for a copy of the largest table.

        Raises:
            RunFolderError: the weights differ, and where; or the checkpoint is damaged, replaced, or no longer exists.
        """
        if self.reference is None:
            raise RunFolderError(f"{self._folder.where}: no checkpoint of it is held yet", "call advance() first")
        checkpoint = self._folder.load(self.reference.step)
        place = self._folder.store.where(folder_of(self.reference.step))
        if not isinstance(checkpoint, BlockCheckpointReader) or checkpoint.manifest.reference != self.reference:
            raise RunFolderError(f"{place}: was written again since it was read", "call advance() first")
        hint = "make another Follower, and do not write into its tensors from elsewhere"
        for name, live_RD in self.tables.items():
            tensor_slice = TensorSlice.of_tensor(name, torch.empty(live_RD.shape))
            checkpoint.fill({TABLES: [tensor_slice]})
            ids = ids_by_table(differing(name, live_RD, tensor_slice.tensor)).get(name)
            if ids is not None:
                which = f"{len(ids):,} of {len(live_RD):,} rows, row {int(ids[0])} first"
                raise RunFolderError(f"table {name!r}: {which}, differ from {place}", hint)
        if not same_bits(self.dense, self._reader.dense_of(checkpoint.manifest)):
            raise RunFolderError(f"groups {list(self._groups)}: differ from {place}", hint)

    @torch.no_grad()
    def _apply(self, fetched: IncrementalUpdate, started: float) -> Update:
        rows = ids_by_table(fetched.rows)
        rows |= {name: torch.arange(len(table)) for name, table in fetched.new_tables.items()}
        held = self._held
        with self._lock:
            before, held.chain = self.step, ()  # if this is interrupted, the next update reads everything
            for each in fetched.rows:
                put(each, held.tables[each.table])
            held.tables.update(fetched.new_tables)
            self.dense, held.changed, held.chain = fetched.dense, fetched.changed, fetched.chain
            seconds = time.perf_counter() - started
            step = fetched.chain[-1].step
            update = Update(before, step, fetched.full, rows, fetched.bytes, seconds, fetched.skipped)
            if self._on_change is not None:
                self._on_change(update)
        return update


def _warn(error: RecoverableError) -> None:
    _log.warning("update failed; keeping the current weights and retrying: %s", error)


def _refuse_run(folder: CheckpointFolder | str | Path | Store) -> None:
    if isinstance(folder, str | Path) and "://" not in str(folder) and (Path(folder) / "config.yaml").is_file():
        raise RunFolderError(
            f"{folder}: is a run; a follower takes its checkpoints",
            f"give {Path(folder) / 'checkpoints'}, or the place that `checkpoints.store` in its config names",
        )
