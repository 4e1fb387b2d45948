"""Writes one checkpoint: each rank its files, then the first rank the manifest.

All of it is done in the thread that the saver (:mod:`ziggurat.checkpoint.saver`) begins, while training goes on.
"""

from __future__ import annotations

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
from ziggurat.core.errors import LostRank, RunFolderError, ZigguratError
from ziggurat.embeddings.dirty_rows import PendingSnapshot, TrackedShard

CHUNK_BYTES = 4 * 2**20
"""Of rows that the thread copies at once."""


@dataclass(frozen=True, slots=True)
class Best:
    """The monitored metric of a checkpoint that is better than all before."""

    metric: str
    value: float


@dataclass(frozen=True, slots=True)
class WrittenCheckpoint:
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
class WriteJob:
    """One checkpoint on its way.

    Attributes:
        step: optimizer steps done.
        choice: full or which delta.
        bits: of its rows.
        attempt: sets its files apart from those of one that was given up.
        pending: of each shard, the rows to be written.
        dense: ``GROUP/NAME`` -> tensor, all but rows of tables; on the first rank, until they are written.
        state: JSON.
        best: where no checkpoint was better.
        size: bytes of the rows to be written, over those of all rows.
        waited_s: that training stood still until the last one was written.
        stall_s: that training stood still, these among them.
        started: when the thread was, by :func:`time.perf_counter`.
        given_up: nobody waits for it; what is written is no checkpoint.
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
    given_up: bool = False

    def drop(self) -> None:
        """Nobody wants its rows any more."""
        for _, pending in self.pending:
            pending.drop()


@dataclass(slots=True)
class _Part:
    """What a rank tells the others of its part of a checkpoint."""

    files: list[ManifestFile]
    rows: int
    failure: str | None = None


class Cancelled(Exception):
    """Training ends for another reason, and nobody waits for this checkpoint."""


class CheckpointWriter:
    """Writes checkpoints of one training; of all ranks alike, one at a time.

    Args:
        folder: that only this training writes into.
        config: policy and quantiser.
        tables: of all ranks, by name.
        versions: of libraries, for the manifest.
        plan: as ``plan.json`` has it, for the manifest.
        values: of the whole config, for the manifest.
        group: of all ranks, used by this alone while it writes; None where there is one.
        check: called by the first rank just before it writes a manifest, which is not written if this raises.
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
        self.troubles: list[str] = []

    def write(self, job: WriteJob) -> WrittenCheckpoint:
        """All of it, and what it has cost.

        Raises:
            ZigguratError: it cannot be written, or another rank could not.
            Cancelled: it was given up.
        """
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
        return WrittenCheckpoint(job.step, job.choice.kind, job.bits, size, rows, job.stall_s, job.waited_s, write_s)

    def _write_own(self, job: WriteJob) -> tuple[list[ManifestFile], int]:
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
            if job.given_up or count - before != pending.rows:  # dropped: what is there is no checkpoint
                raise Cancelled
        writer.flush()
        return writer.files, count

    def _commit(self, job: WriteJob, files: Sequence[ManifestFile]) -> None:
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

    def _commit_first(self, job: WriteJob, files: Sequence[ManifestFile]) -> None:
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
        if job.given_up:
            raise Cancelled
        self._folder.store.write(folder, MANIFEST_FILE, manifest.to_bytes())
        if job.best is not None:
            self._folder.mark_best(job.step, job.best.metric, job.best.value)
        try:
            self._check()
            self._folder.sweep_step(job.step)
            self._folder.discard(self._folder.spare())
        except (ZigguratError, OSError) as error:  # the checkpoint is there; the next one tries again
            self.troubles.append(f"checkpoint of step {job.step}: older ones stay: {_said(error)}")


def _rows(shard: TrackedShard, local_U: Tensor, tensors: Mapping[str, Tensor]) -> TableRows:
    ids_U = shard.weight.first[0] + local_U if shard.weight.rows is None else shard.weight.rows[local_U].long()
    named = {name or WEIGHT: tensor for name, tensor in tensors.items()}
    return TableRows(shard.table, ids_U, (shard.weight.first[1], shard.weight.tensor.shape[1]), named)


def _said(problem: BaseException) -> str:
    return problem.problem if isinstance(problem, ZigguratError) else f"{type(problem).__name__}: {problem}"


def _lost(rank: int, other: int, what: str) -> LostRank:
    return LostRank(f"rank {rank}: rank {other} {what}", f"look at what rank {other} says")
