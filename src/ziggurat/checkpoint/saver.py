"""Writes checkpoints while training goes on.

Training stands still while the dense part is copied and the rows to be written are noted; the rows themselves are
copied by a thread, or by training just before it changes them (:mod:`ziggurat.embeddings.dirty_rows`). The thread
quantises and writes them (:mod:`ziggurat.checkpoint.writer`). Once all ranks have written theirs, the first writes the
manifest, and there is a checkpoint; until then there is none, and the one before is as it was.

Source: Eisenman et al. 2022, "Check-N-Run", NSDI. Deviation: where the paper copies all rows in the stall, training
copies those that it is about to change, and the thread the others.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import Bits, Reference, TableShape
from ziggurat.checkpoint.policy import FULL, Chain
from ziggurat.checkpoint.writer import Best, CheckpointWriter, WriteJob, WrittenCheckpoint
from ziggurat.embeddings.dirty_rows import TrackedShard

GRACE_S = 30.0
"""That a rank whose training has failed waits for the others' files: they may be gone."""
PATIENCE_S = 3600.0
"""That ranks wait for each other's files at least."""


class Saver:
    """Saves checkpoints of the tables given, one at a time; used by all ranks alike, in a ``with`` block.

    Args:
        folder: that only this training writes into.
        config: policy and quantisation.
        shards: of this rank.
        tables: of all ranks, by name.
        versions: of libraries, for the manifest.
        plan: as ``plan.json`` has it, for the manifest.
        values: of the whole config, for the manifest.
        restores: how often training has gone on from a checkpoint.
        timeout_s: how long a rank waits for the others' files, an hour at least: a slow store is no lost rank.
        check: called by the first rank just before it writes a manifest, which is not written if this raises.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        config: CheckpointsConfig,
        shards: Sequence[TrackedShard],
        tables: Mapping[str, TableShape],
        *,
        versions: Mapping[str, str],
        plan: dict[str, Any] | None = None,
        values: dict[str, Any] | None = None,
        restores: int = 0,
        timeout_s: float = 300.0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._bits: Bits = config.bits_after(restores)
        self._chain = Chain(config)
        self._group: dist.ProcessGroup | None = None
        if self._ranks > 1:
            patience = timedelta(seconds=max(timeout_s, PATIENCE_S))
            self._group = cast("dist.ProcessGroup", dist.new_group(timeout=patience, backend="gloo"))
        self._writer = CheckpointWriter(
            folder, config, tables, versions=versions, plan=plan, values=values, group=self._group, check=check
        )
        self._shards = self._own(shards)
        self._writing: Future[WrittenCheckpoint] | None = None
        self._thread: threading.Thread | None = None
        self._job: WriteJob | None = None
        self.written: list[WrittenCheckpoint] = []
        self._waited_s = 0.0
        if self._rank == 0:
            check()
            folder.check_place()
            folder.sweep()

    @property
    def troubles(self) -> list[str]:
        """What went wrong behind checkpoints that are there."""
        return self._writer.troubles

    @property
    def exact(self) -> bool:
        """Whether all its checkpoints have rows as they are."""
        return self._bits == 32

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._writing is not None and not self._writing.done()

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Finish what is being written, also where training has failed; give it up where it was told to end at once."""
        if kind is None:
            try:
                self.finish()
            finally:
                self._give_up()
                if self._group is not None:
                    dist.destroy_process_group(self._group)
            return
        if not issubclass(kind, Exception):
            self._give_up()
        # Where an exchange broke the others are gone, and who says so should not do it half a minute late.
        gone = self._ranks > 1 and issubclass(kind, RuntimeError)
        if self._writing is not None and not gone:
            with contextlib.suppress(Exception):  # what ended training is what is told
                self._writing.result(GRACE_S if self._ranks > 1 else None)
        self._give_up()

    def save(
        self,
        step: int,
        dense: Mapping[str, Tensor] | None,
        state: Mapping[str, Any],
        *,
        best: Best | None = None,
        exact: bool = False,
        since: float | None = None,
    ) -> None:
        """Begin the checkpoint of ``step``; all ranks call it between two steps.

        Args:
            step: optimizer steps done.
            dense: ``GROUP/NAME`` -> tensor, all but rows of tables; on the first rank. Copied here.
            state: JSON.
            best: where no checkpoint was better.
            exact: rows as they are, whatever the config says; that is a full checkpoint where it says otherwise.
            since: when training began to stand still for it, by :func:`time.perf_counter`; default: now.

        Raises:
            ZigguratError: the checkpoint before could not be written: a full disk, a rank that failed.
        """
        started, waiting = time.perf_counter() if since is None else since, time.perf_counter()
        self.finish()
        self._waited_s += time.perf_counter() - waiting
        waited_s, self._waited_s = self._waited_s, 0.0
        since_base, since_last = self._changed()
        choice = FULL if exact and self._bits != 32 else self._chain.next(step, since_base, since_last)
        size = {"all": 1.0, "base": since_base, "last": since_last}[choice.rows]
        attempt: list[str] = [secrets.token_hex(4)]
        if self._group is not None:
            dist.broadcast_object_list(attempt, src=0)
        copied = None if dense is None else {name: tensor.detach().cpu().clone() for name, tensor in dense.items()}
        clears = "base" if choice.kind == "full" else "last"
        pending = [(shard, shard.dirty.begin_snapshot(choice.rows, clears)) for shard in self._shards]
        bits: Bits = 32 if exact else self._bits
        now = time.perf_counter()
        job = WriteJob(
            step, choice, bits, attempt[0], pending, copied, dict(state), best, size, waited_s, now - started, now
        )
        self._job = job
        self._writing = self._begun(job)

    def wait(self) -> None:
        """As :meth:`finish`, for the checkpoint that is saved next, whose stall it counts to."""
        started = time.perf_counter()
        self.finish()
        self._waited_s += time.perf_counter() - started

    def finish(self) -> None:
        """Wait until the checkpoint that is being written is there.

        Raises:
            ZigguratError: it could not be written, here or on another rank.
        """
        writing, job, self._writing, self._job = self._writing, self._job, None, None
        if writing is None or job is None:
            return
        try:
            written = writing.result()
        except BaseException as error:
            job.given_up = not isinstance(error, Exception)  # an interrupt: the thread may be writing still
            self._chain.broken()
            job.drop()
            raise
        self._chain.written(job.choice, Reference(step=job.step, id=job.attempt), job.size)
        self.written.append(written)

    def _begun(self, job: WriteJob) -> Future[WrittenCheckpoint]:
        """What a thread of its own comes to, which does not keep the process alive where ranks are lost."""
        future: Future[WrittenCheckpoint] = Future()
        ready = threading.Event()

        def write() -> None:
            torch.set_num_threads(1)
            ready.set()
            try:
                future.set_result(self._writer.write(job))
            except BaseException as error:  # noqa: BLE001 - it is the future's, and raised where that is asked
                future.set_exception(error)

        threads = torch.get_num_threads()
        self._thread = threading.Thread(target=write, name="checkpoint", daemon=True)
        self._thread.start()
        ready.wait()
        torch.set_num_threads(threads)  # the thread has set its own, and torch gives the last to threads made later
        return future

    def _give_up(self) -> None:
        """Have the thread end, and wait for it unless others may keep it: Python cannot shut down beside it."""
        if self._job is not None:
            self._job.given_up = True
            self._job.drop()
        if self._thread is not None and self._ranks == 1:
            self._thread.join()

    def _own(self, shards: Sequence[TrackedShard]) -> list[TrackedShard]:
        """Those that this rank writes: what several hold is written by the lowest of them."""
        places = [_place(shard) for shard in shards]
        held: list[list[tuple[Any, ...]]] = [places]
        if self._group is not None:
            held = [[]] * self._ranks
            dist.all_gather_object(held, places, group=self._group)
        others = {place for each in held[: self._rank] for place in each}
        return [shard for shard, place in zip(shards, places, strict=True) if place not in others]

    def _changed(self) -> tuple[float, float]:
        """Bytes of rows that changed since the full and since the last checkpoint, over those of all rows."""
        sums = torch.zeros(3, dtype=torch.float64)
        for shard in self._shards:
            size = sum(tensor.tensor[:1].nbytes for tensor in (shard.weight, *shard.states.values()))
            counts = (shard.weight.tensor.shape[0], shard.dirty.count_changed("base"), shard.dirty.count_changed("last"))
            sums += torch.tensor(counts, dtype=torch.float64) * size
        if self._group is not None:
            dist.all_reduce(sums)
        every, since_base, since_last = sums.tolist()
        return (since_base / every, since_last / every) if every else (0.0, 0.0)


def _place(shard: TrackedShard) -> tuple[Any, ...]:
    return (shard.table, shard.weight.first, tuple(shard.weight.tensor.shape))
