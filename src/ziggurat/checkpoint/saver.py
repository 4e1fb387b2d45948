"""Saves checkpoints in the background while training continues.

Training stalls while the dense part is copied and the rows to write are selected. The rows themselves are copied by a
thread, or by training just before it changes them (:mod:`ziggurat.embeddings.dirty_rows`). The thread quantises and
writes them (:mod:`ziggurat.checkpoint.writer`). Once all ranks have written their files, the first rank writes the
manifest. Only then does the checkpoint exist; until then the previous one is unchanged.

Source: Eisenman et al. 2022, "Check-N-Run", NSDI. Deviation: the paper copies all rows in the stall. Here training
copies only the rows that it is about to change, and the thread copies the others.
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
"""How long a rank whose training has failed waits for the checkpoint in progress: the other ranks may be gone."""
MINIMUM_TIMEOUT_S = 3600.0
"""The least time that ranks wait for each other's files."""


class Saver:
    """Saves checkpoints, one at a time. All ranks use it in the same way, in a ``with`` block.

    Args:
        folder: where to write; no other training may write there.
        config: policy and quantisation.
        shards: the shards of tables that this rank holds.
        tables: name -> shape of every table, of all ranks.
        versions: versions of libraries, for the manifest.
        plan: the content of ``plan.json``, for the manifest.
        values: the values of the whole config, for the manifest.
        restores: how often this training was resumed from a checkpoint.
        timeout_s: how long a rank waits for the others' files, but at least an hour: a slow store does not mean that
            a rank is lost.
        check: called by the first rank just before it writes a manifest; if it raises, the manifest is not written.

    Attributes:
        written: what each finished checkpoint has cost, in order.
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
            timeout = timedelta(seconds=max(timeout_s, MINIMUM_TIMEOUT_S))
            self._group = cast("dist.ProcessGroup", dist.new_group(timeout=timeout, backend="gloo"))
        self._writer = CheckpointWriter(
            folder, config, tables, versions=versions, plan=plan, values=values, group=self._group, check=check
        )
        self._shards = self._shards_to_write(shards)
        self._writing: Future[WrittenCheckpoint] | None = None
        self._thread: threading.Thread | None = None
        self._job: WriteJob | None = None
        self.written: list[WrittenCheckpoint] = []
        self._waited_s = 0.0
        if self._rank == 0:
            check()
            folder.check_no_foreign_files()
            folder.sweep()

    @property
    def cleanup_errors(self) -> list[str]:
        """Messages of errors while old checkpoints were deleted, after a checkpoint had been written."""
        return self._writer.cleanup_errors

    @property
    def exact(self) -> bool:
        """Whether all checkpoints store rows unquantised."""
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
        """Finishes the checkpoint in progress, also after training has failed; abandons it after an interrupt."""
        if kind is None:
            try:
                self.finish()
            finally:
                self._abandon()
                if self._group is not None:
                    dist.destroy_process_group(self._group)
            return
        if not issubclass(kind, Exception):
            self._abandon()
        # A RuntimeError from a collective means that the other ranks are gone: report it now, not after GRACE_S.
        others_gone = self._ranks > 1 and issubclass(kind, RuntimeError)
        if self._writing is not None and not others_gone:
            with contextlib.suppress(Exception):  # the error that ended training is the one to report
                self._writing.result(GRACE_S if self._ranks > 1 else None)
        self._abandon()

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
        """Starts to save the checkpoint of ``step``. All ranks call it between two steps.

        Args:
            step: optimizer steps done.
            dense: ``GROUP/NAME`` -> tensor, everything except rows of tables; on the first rank only. Copied here.
            state: the training's state, as JSON.
            best: the monitored metric, if this checkpoint is better than all before.
            exact: stores rows unquantised, whatever the config says. If the config quantises, it is a full checkpoint.
            since: when training stalled for it, by :func:`time.perf_counter`; default: now.

        Raises:
            ZigguratError: the previous checkpoint could not be written, as when the disk is full or a rank failed.
        """
        started, waiting = time.perf_counter() if since is None else since, time.perf_counter()
        self.finish()
        self._waited_s += time.perf_counter() - waiting
        waited_s, self._waited_s = self._waited_s, 0.0
        since_base, since_last = self._changed_shares()
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
        self._writing = self._start(job)

    def wait(self) -> None:
        """Does what :meth:`finish` does, and counts the time as part of the next checkpoint's stall."""
        started = time.perf_counter()
        self.finish()
        self._waited_s += time.perf_counter() - started

    def finish(self) -> None:
        """Waits until the checkpoint in progress is complete.

        Raises:
            ZigguratError: it could not be written, on this or on another rank.
        """
        writing, job, self._writing, self._job = self._writing, self._job, None, None
        if writing is None or job is None:
            return
        try:
            written = writing.result()
        except BaseException as error:
            job.abandoned = not isinstance(error, Exception)  # an interrupt: the thread may still be writing
            self._chain.reset()
            job.drop()
            raise
        self._chain.add(job.choice, Reference(step=job.step, id=job.attempt), job.size)
        self.written.append(written)

    def _start(self, job: WriteJob) -> Future[WrittenCheckpoint]:
        """Starts a thread that writes the checkpoint, and returns the future of its result.

        It is a daemon thread, so that it does not keep the process alive after other ranks are lost.
        """
        future: Future[WrittenCheckpoint] = Future()
        ready = threading.Event()

        def write() -> None:
            torch.set_num_threads(1)
            ready.set()
            try:
                future.set_result(self._writer.write(job))
            except BaseException as error:  # noqa: BLE001 - the future raises it in the main thread
                future.set_exception(error)

        threads = torch.get_num_threads()
        self._thread = threading.Thread(target=write, name="checkpoint", daemon=True)
        self._thread.start()
        ready.wait()
        torch.set_num_threads(threads)  # torch passes the last setting, here the thread's, on to threads made later
        return future

    def _abandon(self) -> None:
        """Makes the thread end. A single rank also waits for it, as Python cannot shut down while it runs.

        With several ranks the thread may wait for the others, so it is left to end with the process.
        """
        if self._job is not None:
            self._job.abandoned = True
            self._job.drop()
        if self._thread is not None and self._ranks == 1:
            self._thread.join()

    def _shards_to_write(self, shards: Sequence[TrackedShard]) -> list[TrackedShard]:
        """Returns the shards that this rank writes: of a shard that several ranks hold, the lowest writes it."""
        own = [_shard_key(shard) for shard in shards]
        held: list[list[tuple[Any, ...]]] = [own]
        if self._group is not None:
            held = [[]] * self._ranks
            dist.all_gather_object(held, own, group=self._group)
        written_by_lower_ranks = {key for keys in held[: self._rank] for key in keys}
        return [shard for shard, key in zip(shards, own, strict=True) if key not in written_by_lower_ranks]

    def _changed_shares(self) -> tuple[float, float]:
        """Returns the shares of all rows, by bytes, that changed since the full and since the last checkpoint."""
        sums = torch.zeros(3, dtype=torch.float64)
        for shard in self._shards:
            size = sum(tensor.tensor[:1].nbytes for tensor in (shard.weight, *shard.states.values()))
            counts = (
                shard.weight.tensor.shape[0],
                shard.dirty.count_changed("base"),
                shard.dirty.count_changed("last"),
            )
            sums += torch.tensor(counts, dtype=torch.float64) * size
        if self._group is not None:
            dist.all_reduce(sums)
        total, since_base, since_last = sums.tolist()
        return (since_base / total, since_last / total) if total else (0.0, 0.0)


def _shard_key(shard: TrackedShard) -> tuple[Any, ...]:
    """Identifies a shard's part of its table, on any rank."""
    return (shard.table, shard.weight.first, tuple(shard.weight.tensor.shape))
