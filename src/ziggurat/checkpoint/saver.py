"""Writes checkpoints while training goes on.

Training stands still while the dense part is copied and the rows to be written are noted; the rows themselves are
copied by a thread, or by training just before it changes them (:mod:`ziggurat.embeddings.marks`). The thread quantises
and writes them. Once all ranks have written theirs, the first writes the manifest, and there is a checkpoint; until
then there is none, and the one before is as it was.

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
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ziggurat.checkpoint.blocks import FileWriter, Rows
from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.manifest import MANIFEST_FILE, WEIGHT, Bits, File, Manifest, Reference, TableShape
from ziggurat.checkpoint.policy import FULL, Chain, Choice
from ziggurat.checkpoint.saved import folder_of
from ziggurat.core.errors import LostRank, RunFolderError, ZigguratError
from ziggurat.embeddings.marks import Pending, Shard

CHUNK_BYTES = 4 * 2**20
"""Of rows that the thread copies at once."""
GRACE_S = 30.0
"""That a rank whose training has failed waits for the others' files: they may be gone."""
PATIENCE_S = 3600.0
"""That ranks wait for each other's files at least."""


@dataclass(frozen=True, slots=True)
class Best:
    """The monitored metric of a checkpoint that is better than all before."""

    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class Written:
    """What a checkpoint has cost.

    Attributes:
        step: its.
        kind: full or a delta.
        bits: of its rows.
        bytes: of all ranks' files.
        rows: written, of all ranks' shards.
        stall_s: that training of this rank stood still: until the last checkpoint was written, and for the copy.
        waited_s: of these, until the last one was written.
        write_s: from the start of the thread's work to the manifest.
    """

    step: int
    kind: str
    bits: int
    bytes: int
    rows: int
    stall_s: float
    waited_s: float
    write_s: float

    def figures(self) -> dict[str, float]:
        """For the journal."""
        names = ("bits", "bytes", "rows", "stall_s", "waited_s", "write_s")
        return {"full": float(self.kind == "full"), **{name: float(getattr(self, name)) for name in names}}


@dataclass(slots=True)
class _Job:
    """One checkpoint on its way."""

    step: int
    choice: Choice
    bits: Bits
    attempt: str
    pending: list[tuple[Shard, Pending]]
    dense: Mapping[str, Tensor] | None
    state: dict[str, Any]
    best: Best | None
    size: float
    waited_s: float
    stall_s: float
    started: float

    def drop(self) -> None:
        """Nobody wants its rows any more."""
        for _, pending in self.pending:
            pending.drop()


@dataclass(slots=True)
class _Part:
    """What a rank tells the others of its part of a checkpoint."""

    files: list[File]
    rows: int
    failure: str | None = None


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
        shards: Sequence[Shard],
        tables: Mapping[str, TableShape],
        *,
        versions: Mapping[str, str],
        plan: dict[str, Any] | None = None,
        values: dict[str, Any] | None = None,
        restores: int = 0,
        timeout_s: float = 300.0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder, self._config = folder, config
        self._tables, self._versions, self._plan = dict(tables), dict(versions), plan
        self._check, self._values = check, values
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._bits: Bits = config.bits_after(restores)
        self._chain = Chain(config)
        self._group: dist.ProcessGroup | None = None
        if self._ranks > 1:
            patience = timedelta(seconds=max(timeout_s, PATIENCE_S))
            self._group = cast("dist.ProcessGroup", dist.new_group(timeout=patience, backend="gloo"))
        self._shards = self._own(shards)
        self._writing: Future[Written] | None = None
        self._thread: threading.Thread | None = None
        self._job: _Job | None = None
        self._ending = False
        self.written: list[Written] = []
        self.troubles: list[str] = []
        self._waited_s = 0.0
        if self._rank == 0:
            check()
            folder.check_place()
            folder.sweep()

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
        pending = [(shard, shard.marks.begin(choice.rows, clears)) for shard in self._shards]
        bits: Bits = 32 if exact else self._bits
        now = time.perf_counter()
        job = _Job(
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
            self._ending = not isinstance(error, Exception)  # an interrupt: the thread may be writing still
            self._chain.broken()
            job.drop()
            raise
        self._chain.written(job.choice, Reference(step=job.step, id=job.attempt), job.size)
        self.written.append(written)

    def _begun(self, job: _Job) -> Future[Written]:
        """What a thread of its own comes to, which does not keep the process alive where ranks are lost."""
        future: Future[Written] = Future()
        ready = threading.Event()

        def write() -> None:
            torch.set_num_threads(1)
            ready.set()
            try:
                future.set_result(self._write(job))
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
        self._ending = True
        if self._job is not None:
            self._job.drop()
        if self._thread is not None and self._ranks == 1:
            self._thread.join()

    def _own(self, shards: Sequence[Shard]) -> list[Shard]:
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
            counts = (shard.weight.tensor.shape[0], shard.marks.changed("base"), shard.marks.changed("last"))
            sums += torch.tensor(counts, dtype=torch.float64) * size
        if self._group is not None:
            dist.all_reduce(sums)
        every, since_base, since_last = sums.tolist()
        return (since_base / every, since_last / every) if every else (0.0, 0.0)

    def _write(self, job: _Job) -> Written:
        """In the thread."""
        own = _Part([], 0)
        told = [own]
        try:
            own.files, own.rows = self._write_own(job)
        except BaseException as error:
            own.failure = _said(error)
            raise
        finally:  # whatever happened here, the others hear of it
            if self._group is not None:
                told = [own] * self._ranks
                dist.all_gather_object(told, own, group=self._group)
        for rank, part in enumerate(told):
            if part.failure is not None:
                raise _lost(self._rank, rank, f"could not write its part of a checkpoint: {part.failure}")
        every = [file for part in told for file in part.files]
        self._commit(job, every)
        size, rows = sum(file.bytes for file in every), sum(part.rows for part in told)
        write_s = time.perf_counter() - job.started
        return Written(job.step, job.choice.kind, job.bits, size, rows, job.stall_s, job.waited_s, write_s)

    def _write_own(self, job: _Job) -> tuple[list[File], int]:
        """This rank's files, and how many rows they have."""
        folder = folder_of(job.step)
        writer = FileWriter(
            lambda name, data: self._folder.store.write(folder, name, data),
            lambda number: f"rank-{self._rank:05d}-{number:05d}.{job.attempt}.safetensors",
            self._rank,
            job.bits,
            self._config.quantiser,
        )
        if job.dense is not None:
            writer.put(job.dense)
            job.dense = None
        count = 0
        for shard, pending in job.pending:
            before, tensors = count, (shard.weight, *shard.states.values())
            most = max(1, CHUNK_BYTES // max(1, sum(piece.tensor[:1].nbytes for piece in tensors)))
            while (taken := pending.take(most)) is not None:
                writer.add(_rows(shard, *taken))
                count += len(taken[0])
            if self._ending or count - before != pending.rows:  # dropped: what is there is no checkpoint
                raise _Ending
        writer.flush()
        return writer.files, count

    def _commit(self, job: _Job, files: Sequence[File]) -> None:
        """The manifest, by the first rank; the others wait for it."""
        failure: list[str | None] = [None]
        try:
            if self._rank == 0:
                self._commit_first(job, files)
        except BaseException as error:
            failure[0] = _said(error)
            raise
        finally:
            if self._group is not None:
                dist.broadcast_object_list(failure, src=0, group=self._group)
        if failure[0] is not None:
            raise _lost(self._rank, 0, f"could not write a checkpoint's manifest: {failure[0]}")

    def _commit_first(self, job: _Job, files: Sequence[File]) -> None:
        manifest = Manifest(
            id=job.attempt,
            kind=job.choice.kind,
            step=job.step,
            needs=job.choice.needs,
            policy=self._config.policy,
            bits=job.bits,
            world_size=self._ranks,
            tables=self._tables,
            files=tuple(files),
            state=job.state,
            made=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=self._versions,
            plan=self._plan,
            config=self._values,
        )
        folder = folder_of(job.step)
        missing = {file.name for file in files} - set(self._folder.store.files(folder))
        if missing:
            raise RunFolderError(
                f"{self._folder.store.where(folder)}: {len(missing)} of {len(files)} files that were written are gone, "
                f"{min(missing)} first",
                "see that all ranks write into one folder, which all hosts have mounted, and who else deletes there: "
                "`ziggurat checkpoint prune`, another training, or a rule of the store",
            )
        self._check()
        if self._ending:
            raise _Ending
        self._folder.store.write(folder, MANIFEST_FILE, manifest.to_bytes())
        if job.best is not None:
            self._folder.mark_best(job.step, job.best.metric, job.best.value)
        try:
            self._check()
            self._folder.sweep_step(job.step)
            self._folder.discard(self._folder.spare())
        except (ZigguratError, OSError) as error:  # the checkpoint is there; the next one tries again
            self.troubles.append(f"checkpoint of step {job.step}: older ones stay: {_said(error)}")


class _Ending(Exception):
    """Training ends for another reason, and nobody waits for this checkpoint."""


def _rows(shard: Shard, local_U: Tensor, tensors: Mapping[str, Tensor]) -> Rows:
    ids_U = shard.weight.first[0] + local_U if shard.weight.rows is None else shard.weight.rows[local_U].long()
    named = {name or WEIGHT: tensor for name, tensor in tensors.items()}
    return Rows(shard.table, ids_U, (shard.weight.first[1], shard.weight.tensor.shape[1]), named)


def _place(shard: Shard) -> tuple[Any, ...]:
    return (shard.table, shard.weight.first, tuple(shard.weight.tensor.shape))


def _said(problem: BaseException) -> str:
    return problem.problem if isinstance(problem, ZigguratError) else f"{type(problem).__name__}: {problem}"


def _lost(rank: int, other: int, what: str) -> LostRank:
    return LostRank(f"rank {rank}: rank {other} {what}", f"look at what rank {other} says")
