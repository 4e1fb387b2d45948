"""Writes one checkpoint: each rank writes its files, then the first rank writes the manifest.

All of it runs in the thread that :mod:`ziggurat.checkpoint.saver` starts, while training continues.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import torch.distributed as dist
from torch import Tensor

from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.blocks import FileWriter, TableRows
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE, WEIGHT, Bits, Manifest, ManifestFile, TableShape
from ziggurat.checkpoint.policy import Choice
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.store.store import LocalStore
from ziggurat.core.errors import LostRank, RunFolderError, ZigguratError
from ziggurat.embeddings.dirty_rows import PendingSnapshot, TrackedShard

CHUNK_BYTES = 4 * 2**20
"""Size of the rows that the thread copies at once."""


@dataclass(frozen=True, slots=True)
class Best:
    """The monitored metric of a checkpoint that is better than all earlier ones."""

    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
    """What a checkpoint has cost.

    Attributes:
        step: optimizer steps done.
        kind: full or a delta.
        bits: bits per value of its rows.
        bytes: size of all ranks' files.
        rows: rows written by all ranks.
        stall_s: seconds that training on this rank stalled: for the previous checkpoint to finish, and for the copy.
        waited_s: the part of ``stall_s`` spent waiting for the previous checkpoint.
        write_s: seconds from the start of the thread to the manifest.
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
        """Returns the figures for the metrics log."""
        names = ("bits", "bytes", "rows", "stall_s", "waited_s", "write_s")
        return {"full": float(self.kind == "full"), **{name: float(getattr(self, name)) for name in names}}


@dataclass(slots=True)
class WriteJob:
    """A checkpoint in progress.

    Attributes:
        step: optimizer steps done.
        choice: the policy's decision: full or a delta.
        bits: bits per value of its rows.
        attempt: random id that distinguishes its files from those of an abandoned write of the same step.
        pending: each shard and the snapshot of its rows to write.
        dense: ``GROUP/NAME`` -> tensor, everything except rows of tables; on the first rank, until they are written.
        state: the training's state, as JSON.
        best: the monitored metric, if this checkpoint is better than all earlier ones.
        size: bytes of the rows to write over those of all rows.
        waited_s: seconds that training waited for the previous checkpoint.
        stall_s: seconds that training stalled, ``waited_s`` included.
        started: when the thread started, by :func:`time.perf_counter`.
        abandoned: nobody waits for it any more, and it must not become a checkpoint.
    """

    step: int
    choice: Choice
    bits: Bits
    attempt: str
    pending: list[tuple[TrackedShard, PendingSnapshot]]
    dense: Mapping[str, Tensor] | None
    state: dict[str, Any]
    best: Best | None
    size: float
    waited_s: float
    stall_s: float
    started: float
    abandoned: bool = False

    def drop(self) -> None:
        """Drops the snapshots of its rows."""
        for _, pending in self.pending:
            pending.drop()


@dataclass(slots=True)
class _RankReport:
    """What a rank has written of a checkpoint, sent to all other ranks."""

    files: list[ManifestFile]
    rows: int
    failure: str | None = None


class Cancelled(Exception):
    """The checkpoint was abandoned because training ends for another reason."""


class CheckpointWriter:
    """Writes the checkpoints of one training, one at a time. All ranks use it in the same way.

    Args:
        folder: where to write; no other training may write there.
        config: policy and quantiser.
        tables: name -> shape of every table, of all ranks.
        versions: versions of libraries, for the manifest.
        plan: the content of ``plan.json``, for the manifest.
        values: the values of the whole config, for the manifest.
        group: process group of all ranks, which nothing else uses while a checkpoint is written; None for one rank.
        check: called by the first rank just before it writes a manifest; if it raises, the manifest is not written.

    Attributes:
        cleanup_errors: messages of errors while old checkpoints were deleted.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        config: CheckpointsConfig,
        tables: Mapping[str, TableShape],
        *,
        versions: Mapping[str, str],
        plan: dict[str, Any] | None,
        values: dict[str, Any] | None,
        group: dist.ProcessGroup | None,
        check: Callable[[], None],
    ) -> None:
        self._folder, self._config = folder, config
        self._tables, self._versions, self._plan, self._values = dict(tables), dict(versions), plan, values
        self._group, self._check = group, check
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self.cleanup_errors: list[str] = []

    def write(self, job: WriteJob) -> WrittenCheckpoint:
        """Writes a checkpoint and returns what it has cost.

        Raises:
            ZigguratError: it could not be written, on this or on another rank.
            Cancelled: it was abandoned.
        """
        try:
            return self._write(job)
        except BaseException:
            # In an object store a manifest whose response was lost may still arrive: the next start sweeps there.
            if self._rank == 0 and isinstance(self._folder.store, LocalStore):
                with contextlib.suppress(ZigguratError, OSError):
                    self._folder.discard_attempt(job.step, job.attempt)
            raise

    def _write(self, job: WriteJob) -> WrittenCheckpoint:
        own = _RankReport([], 0)
        reports = [own]
        try:
            own.files, own.rows = self._write_own(job)
        except BaseException as error:
            own.failure = _message(error)
            raise
        finally:  # whatever happened here, the other ranks receive the report
            if self._group is not None:
                reports = [own] * self._ranks
                dist.all_gather_object(reports, own, group=self._group)
        for rank, report in enumerate(reports):
            if report.failure is not None:
                raise _lost_rank(self._rank, rank, f"could not write its part of a checkpoint: {report.failure}")
        files = [file for report in reports for file in report.files]
        self._commit(job, files)
        size, rows = sum(file.bytes for file in files), sum(report.rows for report in reports)
        write_s = time.perf_counter() - job.started
        return WrittenCheckpoint(job.step, job.choice.kind, job.bits, size, rows, job.stall_s, job.waited_s, write_s)

    def _write_own(self, job: WriteJob) -> tuple[list[ManifestFile], int]:
        """Writes this rank's files; returns their manifest entries and the number of their rows."""
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
            chunk_rows = max(1, CHUNK_BYTES // max(1, sum(tensor.tensor[:1].nbytes for tensor in tensors)))
            while (taken := pending.take(chunk_rows)) is not None:
                writer.add(_rows(shard, *taken))
                count += len(taken[0])
            if job.abandoned or count - before != pending.rows:  # a dropped snapshot returns fewer rows
                raise Cancelled
        writer.flush()
        return writer.files, count

    def _commit(self, job: WriteJob, files: Sequence[ManifestFile]) -> None:
        """Has the first rank write the manifest; the others wait for it."""
        failure: list[str | None] = [None]
        try:
            if self._rank == 0:
                self._write_manifest(job, files)
        except BaseException as error:
            failure[0] = _message(error)
            raise
        finally:
            if self._group is not None:
                dist.broadcast_object_list(failure, src=0, group=self._group)
        if failure[0] is not None:
            raise _lost_rank(self._rank, 0, f"could not write a checkpoint's manifest: {failure[0]}")

    def _write_manifest(self, job: WriteJob, files: Sequence[ManifestFile]) -> None:
        """Writes the manifest and ``best.json``, then deletes the checkpoints that are no longer needed."""
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
            run_id=self._folder.run_id,
        )
        folder = folder_of(job.step)
        missing = {file.name for file in files} - set(self._folder.store.files(folder))
        if missing:
            self._check()  # says so if the whole folder of checkpoints is gone, or if another process writes there
            raise RunFolderError(
                f"{self._folder.store.where(folder)}: {len(missing)} of {len(files)} files that were written are gone, "
                f"{min(missing)} first",
                "check that all ranks write into one folder, which all hosts have mounted, and what else deletes "
                "there: `ziggurat checkpoint prune`, another training, or a rule of the store",
            )
        self._check()
        if job.abandoned:
            raise Cancelled
        self._folder.store.write(folder, MANIFEST_FILE, manifest.to_bytes())
        if job.best is not None:
            self._folder.mark_best(job.step, job.best.metric, job.best.value)
        try:
            self._check()
            self._folder.sweep_step(job.step)
            self._folder.discard(self._folder.removable())
        except (ZigguratError, OSError) as error:  # the checkpoint itself is complete; the next one cleans up again
            self.cleanup_errors.append(f"checkpoint of step {job.step}: older ones stay: {_message(error)}")


def _rows(shard: TrackedShard, local_U: Tensor, tensors: Mapping[str, Tensor]) -> TableRows:
    ids_U = shard.weight.first[0] + local_U if shard.weight.rows is None else shard.weight.rows[local_U].long()
    named = {name or WEIGHT: tensor for name, tensor in tensors.items()}
    return TableRows(shard.table, ids_U, (shard.weight.first[1], shard.weight.tensor.shape[1]), named)


def _message(error: BaseException) -> str:
    return error.problem if isinstance(error, ZigguratError) else f"{type(error).__name__}: {error}"


def _lost_rank(rank: int, other: int, what: str) -> LostRank:
    return LostRank(f"rank {rank}: rank {other} {what}", f"look at what rank {other} says")
