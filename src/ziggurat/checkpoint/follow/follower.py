"""A server's tables, kept at the newest checkpoint of a training that goes on.

All of an update is read, verified and decoded before the first row changes
(:mod:`ziggurat.checkpoint.follow.incremental_update` says what is read), and then put in place at once.
``docs/following.md`` says what a server can rely on.
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
    TROUBLES,
    HeldVersions,
    IncrementalReader,
    IncrementalUpdate,
    Trouble,
)
from ziggurat.checkpoint.format.manifest import Reference
from ziggurat.checkpoint.reader import TABLES, folder_of
from ziggurat.checkpoint.store.store import Store
from ziggurat.core.errors import RunFolderError
from ziggurat.parallel.tensor_slices import TensorSlice

LONGEST_WAIT = 8
"""After failures in a row :meth:`Follower.updates` waits twice as long each time, up to so many times ``poll_s``."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Update:
    """What a follower has done.

    Attributes:
        from_step: what it held before; None: nothing.
        to_step: what it holds now.
        whole: it has read a full checkpoint, not only deltas.
        rows: table -> ids of rows that were written, int64, ascending; of a whole one those that differ from what was
            there. A table without any is not in it.
        bytes: of the files that were read, without manifests.
        seconds: from the look for news until all was in place.
        skipped: why newer checkpoints than this one were passed over, the newest first; each names its file.
    """

    from_step: int | None
    to_step: int
    whole: bool
    rows: dict[str, Tensor]
    bytes: int
    seconds: float
    skipped: tuple[Trouble, ...] = ()


class Follower:
    """Weights of one checkpoint, without optimizer states; for one thread.

    Args:
        folder: the checkpoints; of a run, ``runs/NAME/checkpoints``. Nothing is ever written there.
        tables: live tensors (rows, dim) by name, on any device and of any floating type, which are filled; or names of
            tables, which are made here on the CPU, in float32; None: of all tables.
        groups: of the other tensors, those to hold. A training with ``weight_average`` has what is to be served in
            ``average``, tables included, whole in each checkpoint.
        lock: held while an update is put in place, for readers to hold as well.
        on_change: told of each update while the lock is held, for caches to forget its rows.

    Attributes:
        tables: name -> tensor; the same tensors for good.
        dense: ``GROUP/NAME`` -> tensor, on the CPU; another mapping after each update.
    """

    def __init__(
        self,
        folder: CheckpointFolder | Path | Store,
        tables: Mapping[str, Tensor] | Collection[str] | None = None,
        *,
        groups: Collection[str] = ("dense",),
        lock: AbstractContextManager[Any] | None = None,
        on_change: Callable[[Update], None] | None = None,
    ) -> None:
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
        """Of what is held; None: nothing yet, or an update was broken off between its rows."""
        return None if self.reference is None else self.reference.step

    @property
    def reference(self) -> Reference | None:
        """The step, and the id of that very checkpoint."""
        return self._held.reference

    def latest(self) -> int | None:
        """The newest checkpoint's step, or None."""
        return self._folder.last()

    def advance(self) -> Update | None:
        """Go to the newest whole checkpoint.

        Returns:
            None where it is held already, or there is none at all.

        Raises:
            RunFolderError: those that are newer than what is held are all damaged; the newest one's file is named.
                Nothing has changed.
            ConfigError: a table is not in the checkpoint, or of another shape. Nothing has changed.
        """
        started = time.perf_counter()
        news = self._reader.fetch(self._held)
        return None if news is None else self._apply(news, started)

    def updates(
        self,
        poll_s: float = 5.0,
        *,
        stop: threading.Event | None = None,
        told: Callable[[Trouble], None] | None = None,
    ) -> Generator[Update]:
        """Every update from now on, until ``stop`` is set.

        Args:
            poll_s: from one look for news to the next, where there are none.
            stop: ends this at once, or when what is being read is in place.
            told: of each failure, after which it goes on; the default logs a warning.

        Raises:
            ConfigError: as :meth:`advance`.
        """
        stop = threading.Event() if stop is None else stop
        told = _warn if told is None else told
        failures = 0
        while not stop.is_set():
            started, news = time.perf_counter(), None
            try:
                news = self._reader.fetch(self._held)
                failures = 0
            except TROUBLES as error:
                failures += 1
                told(error)
            if news is None:
                stop.wait(poll_s * min(2 ** max(0, failures - 1), LONGEST_WAIT))
                continue
            for problem in news.skipped:
                told(problem)
            yield self._apply(news, started)

    def verify(self) -> None:
        """Compare all that is held with the same checkpoint, read anew; needs room for the largest table once more.

        Raises:
            RunFolderError: it differs, and where; or the checkpoint is damaged, replaced, or not there any more.
        """
        if self.reference is None:
            raise RunFolderError(f"{self._folder.where}: nothing of it is held yet", "call advance() first")
        saved = self._folder.load(self.reference.step)
        place = self._folder.store.where(folder_of(self.reference.step))
        if not isinstance(saved, BlockCheckpointReader) or saved.manifest.reference != self.reference:
            raise RunFolderError(f"{place}: was written again since it was read", "call advance() first")
        hint = "make another Follower, and let nobody else write into its tensors"
        for name, live_RD in self.tables.items():
            tensor_slice = TensorSlice.of_tensor(name, torch.empty(live_RD.shape))
            saved.fill({TABLES: [tensor_slice]})
            ids = ids_by_table(differing(name, live_RD, tensor_slice.tensor)).get(name)
            if ids is not None:
                which = f"{len(ids):,} of {len(live_RD):,} rows, row {int(ids[0])} first"
                raise RunFolderError(f"table {name!r}: {which}, are not what {place} has", hint)
        if not same_bits(self.dense, self._reader.dense_of(saved.manifest)):
            raise RunFolderError(f"groups {list(self._groups)}: are not what {place} has", hint)

    @torch.no_grad()
    def _apply(self, news: IncrementalUpdate, started: float) -> Update:
        rows = ids_by_table(news.rows)
        rows |= {name: torch.arange(len(table)) for name, table in news.made.items()}
        held = self._held
        with self._lock:
            before, held.chain = self.step, ()  # whatever ends this half-way, the next update is a whole one
            for each in news.rows:
                put(each, held.tables[each.table])
            held.tables.update(news.made)
            self.dense, held.touched, held.chain = news.dense, news.touched, news.chain
            seconds = time.perf_counter() - started
            update = Update(before, news.chain[-1].step, news.whole, rows, news.bytes, seconds, news.skipped)
            if self._on_change is not None:
                self._on_change(update)
        return update


def _warn(problem: Trouble) -> None:
    _log.warning("going on with what is held, and trying again: %s", problem)
