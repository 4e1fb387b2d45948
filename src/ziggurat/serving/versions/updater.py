"""Follows the checkpoints of a run, and takes versions of them: one process on a host, for all its workers.

A checkpoint is read, verified and held by a :class:`~ziggurat.checkpoint.follow.follower.Follower`. Rows whose bytes
differ from those of the newest version, at the export's precision, are appended to the logs of their tables; then the
dense part is written, then the version's record, then the pointer to it. A process that is killed in between leaves the
version before as it was.

What the budget of writes does not allow waits: the checkpoints in between are taken together with the last one.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import threading
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from ziggurat.checkpoint.follow.follower import LONGEST_WAIT, Follower, Update
from ziggurat.core.digests import FileChecksum, load_tensors
from ziggurat.core.errors import ConfigError, DataError, RunFolderError, ZigguratError
from ziggurat.core.files import atomic_file
from ziggurat.serving.artefact.damage import DAMAGED as DAMAGED_EXPORT
from ziggurat.serving.artefact.dense_program import TENSORS_FILE
from ziggurat.serving.artefact.manifest import TABLES, Manifest
from ziggurat.serving.artefact.row_codec import Bytes
from ziggurat.serving.tables.inputs import Ints
from ziggurat.serving.versions.checkpoints import FollowedCheckpoints, open_followed
from ziggurat.serving.versions.endurance import WriteBudget
from ziggurat.serving.versions.failure_kinds import kind_of
from ziggurat.serving.versions.folder import WRITES_FILE, VersionFolder
from ziggurat.serving.versions.record import VersionRecord
from ziggurat.serving.versions.table_state import TableState

Tell = Callable[..., None]
"""Is told of events: its name, and fields."""
_STATUS_EVERY_S = 5.0
_FEWEST_FREE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Following:
    """What is followed, and how.

    Attributes:
        place: a run, the folder of its checkpoints, or the URL of their store.
        versions: the folder of versions.
        poll_s: seconds between two looks for a checkpoint.
        keep: how many versions are kept.
        bytes_per_day: bytes that may be written to the disk in 24 hours; None: any number.
    """

    place: str
    versions: Path
    poll_s: float = 1.0
    keep: int = 5
    bytes_per_day: int | None = None


class Updater:
    """Takes versions. Only one process may do so in a folder; :func:`run_updater` sees to that.

    Args:
        folder: the versions.
        export: the folder of the export.
        following: what is followed.
        tell: is told of events.
        now: returns the seconds since 1970.
    """

    def __init__(
        self,
        folder: VersionFolder,
        export: Path,
        following: Following,
        tell: Tell = lambda event, **fields: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._export, self._following, self._tell, self._now = folder, export, following, tell, now
        self._manifest = Manifest.open(export)
        self._budget = WriteBudget(folder.root / WRITES_FILE, following.bytes_per_day, now)
        self._newest = folder.records()[-1]
        self._tables = {
            entry.name: TableState(
                folder,
                number,
                entry,
                self._manifest.precision,
                export / TABLES / entry.file,
                self._newest.tables[entry.name],
            )
            for number, entry in enumerate(self._manifest.tables)
        }
        recorded = self._manifest.files[TENSORS_FILE].checksum
        arrays = load_tensors(export / TENSORS_FILE, recorded, DAMAGED_EXPORT)
        self._tensors = {name: torch.from_numpy(each) for name, each in arrays.items()}
        self._checkpoints: FollowedCheckpoints | None = None
        self._follower: Follower | None = None
        self._is_averaged = False
        self._waiting: dict[str, Ints | None] | None = None
        """Table -> rows that may differ from the newest version, None: all; None: the newest version has all."""
        self._merged = 0
        self._not_before = 0.0
        self.status = folder.status()
        self.status.budget_bytes = -1 if following.bytes_per_day is None else following.bytes_per_day
        self._told = 0.0

    def step(self) -> bool:
        """Looks for a checkpoint, and takes a version if there is a newer one; returns whether it did.

        Raises:
            ZigguratError, OSError: it cannot; nothing has changed, and the next call tries again.
        """
        pointer = self._folder.pointer()
        if pointer.mode == "pinned":
            return False
        if pointer.number != self._newest.number:  # an updater was killed before it could serve its version
            self._folder.serve_newest(self._newest.number)
        follower = self._open()
        update = follower.advance()
        self.status.checked = self._now()
        if update is not None:
            self._note(update)
        if self._waiting is None or self._now() < self._not_before:
            self._compact()
            return False
        return self._take(follower)

    def failed(self, error: Exception) -> None:
        """Notes that a step failed."""
        kind, problem = kind_of(error), str(getattr(error, "problem", error))
        status = self.status
        status.failures[kind] = status.failures.get(kind, 0) + 1
        if problem != status.problem:
            hint = getattr(error, "hint", "")
            self._tell("follow_failed", kind=kind, problem=problem, hint=hint, served=self._newest.short)
            status.problem, status.problem_since = problem, self._now()
        self.tell_status(always=True)

    def succeeded(self) -> None:
        """Notes that a step did not fail."""
        if self.status.problem:
            self._tell("follow_recovered", problem=self.status.problem)
            self.status.problem, self.status.problem_since = "", 0.0
        self.tell_status()

    def tell_status(self, *, always: bool = False) -> None:
        """Writes the status, if it is some seconds old."""
        now = self._now()
        if always or now - self._told >= _STATUS_EVERY_S or now < self._told:
            self.status.day_bytes, self._told = self._budget.spent, now
            with contextlib.suppress(OSError):
                self._folder.tell(self.status)

    def _open(self) -> Follower:
        if self._follower is not None and self._checkpoints is not None:
            return self._follower
        checkpoints = open_followed(self._following.place, self._manifest, self._export)
        last = checkpoints.last()
        if last is None:
            raise RunFolderError(f"{checkpoints.where}: no checkpoint yet", "train on; following waits")
        manifest = checkpoints.manifest(last)
        names = [table.name for table in self._manifest.tables]
        averages = manifest is not None and _has_average(checkpoints, last)
        found = Follower(checkpoints, [], groups=["average"]) if averages else Follower(checkpoints, names)
        self._checkpoints, self._follower, self._is_averaged = checkpoints, found, averages
        self._waiting = None
        return found

    def _note(self, update: Update) -> None:
        """Adds the rows of an update to those that wait."""
        for error in update.skipped:
            self.status.failures["damaged"] = self.status.failures.get("damaged", 0) + 1
            self._tell("checkpoint_skipped", problem=error.problem if isinstance(error, ZigguratError) else str(error))
        is_first = update.from_step is None
        everything = is_first or self._is_averaged
        if self._waiting is not None:
            self._merged += 1
        before = self._waiting or {}
        waiting: dict[str, Ints | None] = {}
        for name in self._tables:
            held = before.get(name, np.empty(0, np.int64))
            rows = update.rows.get(name)
            if everything or held is None:
                waiting[name] = None
            else:
                waiting[name] = held if rows is None else np.union1d(held, rows.numpy())
        self._waiting = waiting

    def _take(self, follower: Follower) -> bool:
        """Takes a version of what the follower holds, if the budget allows."""
        assert self._waiting is not None
        assert follower.reference is not None
        changed = {
            name: self._tables[name].differing(self._table(follower, name), ids) for name, ids in self._waiting.items()
        }
        changed = {name: each for name, each in changed.items() if len(each[0])}
        dense = self._dense(follower)
        reference = follower.reference
        if not changed and not self._differs(dense) and reference.step == self._newest.step:
            self._waiting, self._merged = None, 0
            return False
        size = sum(len(ids) * self._tables[name].row_bytes for name, (ids, _) in changed.items())
        size += sum(each.nbytes for each in dense.values())
        if not self._may_write(size):
            return False
        self._write(changed, dense, reference.step, reference.id, size)
        self._waiting = None
        self._folder.prune(self._following.keep)
        self._compact()
        return True

    def _may_write(self, size: int) -> bool:
        wait_s = self._budget.wait_s(size)
        status = self.status
        if not wait_s:
            status.waits_until = 0.0
            self._check_space(size)
            return True
        self._not_before = self._now() + min(wait_s, 60.0)
        if not status.waits_until:
            budget = self._following.bytes_per_day
            self._tell("updates_merged", bytes=size, day_bytes=self._budget.spent, budget_bytes=budget, wait_s=wait_s)
        status.waits_until = self._now() + min(wait_s, 1e9)
        self.tell_status(always=True)
        return False

    def _check_space(self, size: int) -> None:
        """Refuses to begin what cannot be finished: a disk that is full to the last byte hurts others as well."""
        free = shutil.disk_usage(self._folder.root).free
        if free < size + _FEWEST_FREE_BYTES:
            raise DataError(
                f"{self._folder.root}: no space left on the device for {size:,} bytes ({free:,} are free)",
                "free some space; following goes on by itself then",
            )

    def _write(
        self,
        changed: Mapping[str, tuple[Ints, Bytes]],
        dense: dict[str, Tensor],
        step: int,
        checkpoint: str,
        size: int,
    ) -> None:
        number = self._folder.next_number()
        tables = dict(self._newest.tables)
        file = self._folder.root / f"dense.{number:08d}.safetensors"
        with self._spending(size) as spent:
            for name, (ids, rows) in changed.items():
                tables[name] = self._tables[name].append(ids, rows, number)
            spent.append(sum(each.nbytes for each in dense.values()))
            with atomic_file(file) as temporary:
                save_file(dense, temporary)
        checksum = FileChecksum.of(file, DAMAGED_EXPORT)
        made = self._made(step)
        record = VersionRecord(
            number,
            step,
            checkpoint,
            self._folder.export,
            made,
            self._now(),
            size,
            file.name,
            checksum.bytes,
            checksum.xxh3_128,
            tables,
        )
        try:
            for name in changed:  # the indexes are in memory before a worker looks for them
                self._tables[name].open(tables[name])
            is_served = self._folder.publish(record)
        except BaseException:
            self._reload()  # it may be there all the same; else no table may count rows as served that are not
            raise
        self._newest = record
        status = self.status
        status.taken += 1
        status.merged += self._merged
        status.bytes += size
        status.seconds = self._now() - made
        rows_changed = sum(len(ids) for ids, _ in changed.values())
        self._tell(
            "version_taken",
            version=record.short,
            step=step,
            rows=rows_changed,
            bytes=size,
            merged=self._merged,
            served=is_served,
            seconds_from_checkpoint=round(status.seconds, 3),
        )
        self._merged = 0
        self.tell_status(always=True)

    @contextlib.contextmanager
    def _spending(self, size: int, *, is_table: bool = False) -> Generator[list[int]]:
        """Takes bytes out of the budget before they are written: a process that dies has written them as well. If that
        fails, gives back what was not written.

        Args:
            size: how many.
            is_table: whether they are a table that is written anew.

        Yields:
            A list of the bytes that were written beside those which the tables count.
        """
        before = sum(state.written for state in self._tables.values())
        spent: list[int] = []
        self._budget.add(size, is_table=is_table)
        try:
            yield spent
        except BaseException:
            written = sum(state.written for state in self._tables.values()) - before + sum(spent)
            self._budget.give_back(max(0, size - written))
            raise

    def _reload(self) -> None:
        """Takes as the newest version what is in the folder."""
        self._newest = self._folder.records()[-1]
        for name, state in self._tables.items():
            state.open(self._newest.tables[name])

    def _compact(self) -> None:
        """Writes tables anew whose logs have grown long, one after another: the same version, other files.

        For the first one that must wait for the budget the other writes leave what it needs.
        """
        reserved, waits_until = 0, 0.0
        for name in sorted(self._tables):
            size = self._tables[name].layout.bytes
            wait_s = self._budget.wait_s(size, is_table=True) if self._tables[name].is_due else 0.0
            if wait_s:
                waits_until = max(waits_until, self._now() + min(wait_s, 1e9))
                reserved = reserved or (size if math.isfinite(wait_s) else 0)
                if not self.status.table_waits_until:
                    budget = self._following.bytes_per_day
                    self._tell("table_waits", table=name, bytes=size, budget_bytes=budget, wait_s=min(wait_s, 1e9))
            elif self._tables[name].is_due:
                self._write_anew(name)
        self._budget.reserved, self.status.table_waits_until = reserved, waits_until

    def _write_anew(self, name: str) -> None:
        """Writes a table into another file, and publishes the newest version with it."""
        state = self._tables[name]
        size, number = state.layout.bytes, self._folder.next_number()
        self._check_space(size)
        with self._spending(size, is_table=True):
            table = state.compact(number)
        record = replace(self._newest, number=number, bytes=size, tables=self._newest.tables | {name: table})
        self._folder.publish(record)
        self._newest = record
        state.open(table)
        self.status.compacted += 1
        self.status.bytes += size
        self._tell("table_compacted", version=record.short, table=name, bytes=size)
        self._folder.prune(self._following.keep)

    def _table(self, follower: Follower, name: str) -> Tensor:
        return follower.dense[f"average/tables/{name}"] if self._is_averaged else follower.tables[name]

    def _dense(self, follower: Follower) -> dict[str, Tensor]:
        """Returns the tensors of the dense part, those that are trained from the checkpoint.

        Raises:
            ConfigError: one is missing or has another shape.
        """
        prefix = "average/dense" if self._is_averaged else "dense"
        found = dict(self._tensors)
        for name, saved in self._manifest.trained.items():
            tensor, mine = follower.dense.get(f"{prefix}/{saved}"), self._tensors[name]
            if tensor is None or tensor.shape != mine.shape or tensor.dtype != mine.dtype:
                has = "lacks it" if tensor is None else f"has {tuple(tensor.shape)}, {tensor.dtype}"
                raise ConfigError(
                    f"tensor {saved!r} of the dense part is {tuple(mine.shape)}, {mine.dtype}; the checkpoint {has}",
                    "export the run again",
                )
            found[name] = tensor.contiguous()
        return found

    def _differs(self, dense: Mapping[str, Tensor]) -> bool:
        """Returns whether the dense part is another than that of the newest version."""
        if not self._newest.dense:
            held = self._tensors
        else:
            checksum = FileChecksum(self._newest.dense_bytes, self._newest.dense_digest)
            arrays = load_tensors(self._folder.root / self._newest.dense, checksum, DAMAGED_EXPORT)
            held = {name: torch.from_numpy(each) for name, each in arrays.items()}
        return any(each.numpy().tobytes() != held[name].numpy().tobytes() for name, each in dense.items())

    def _made(self, step: int) -> float:
        """Returns when a checkpoint was made, in seconds since 1970; now if that cannot be read any more."""
        assert self._checkpoints is not None
        with contextlib.suppress(ZigguratError, OSError, ValueError):
            manifest = self._checkpoints.manifest(step)
            if manifest is not None:
                return datetime.fromisoformat(manifest.made).timestamp()
        return self._now()


def _has_average(checkpoints: FollowedCheckpoints, step: int) -> bool:
    return checkpoints.load(step).shapes("average") is not None


def run_updater(folder: VersionFolder, export: Path, following: Following, stop: threading.Event, tell: Tell) -> None:
    """Takes versions until ``stop`` is set. What fails is told, and tried again after a pause that grows.

    Raises:
        DataError: the versions or the export are damaged.
    """
    with folder.locked("updater.lock"):
        folder.prune(following.keep)
        updater = Updater(folder, export, following, tell)
        updater.status.updater = os.getpid()
        updater.tell_status(always=True)
        failures = 0
        while not stop.is_set():
            took = False
            try:
                took = updater.step()
            except (ZigguratError, OSError) as error:
                failures += 1
                updater.failed(error)
            else:
                failures = 0
                updater.succeeded()
            if not took:
                stop.wait(following.poll_s * min(2 ** max(0, failures - 1), LONGEST_WAIT))
