"""Loads the newest complete checkpoint, reading only what the caller does not hold yet.

A checkpoint is a chain: a full checkpoint and the deltas that build on it. What is read depends on the chain held:

- If the new chain contains the checkpoint held, only the deltas after it are read.
- If both chains begin with the same full checkpoint, all deltas of the new one are read. That suffices if they cover
  every row that the deltas held have written: any other row is then the same as in the full checkpoint, in both. It is
  always so for deltas since the full checkpoint, as each has all rows of the one before.
- Otherwise everything is read, from the full checkpoint on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.follow.changed_rows import (
    ChangedRows,
    bytes_to_read,
    differing,
    put,
    read_rows,
)
from ziggurat.checkpoint.format.blocks import TableRows
from ziggurat.checkpoint.format.manifest import WEIGHT, Manifest, Reference
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.verified_files import read_needed, read_non_table_tensors
from ziggurat.core.errors import ConfigError, DataError, RunFolderError

ATTEMPTS = 8
"""How often :meth:`IncrementalReader.fetch` starts anew if checkpoints are written or deleted while it reads them."""
RECOVERABLE = (RunFolderError, DataError, OSError)
"""Errors that may not recur at the next attempt: a damaged or deleted checkpoint, a store that does not answer."""
RecoverableError = RunFolderError | DataError | OSError


@dataclass(slots=True)
class HeldVersions:
    """The checkpoint that a follower holds.

    Attributes:
        tables: name -> weights (R, D), live.
        chain: the checkpoints that were read, the full one first, the one held last; empty: nothing is held.
        changed: the rows that differ from the chain's full checkpoint.
    """

    tables: dict[str, Tensor]
    chain: tuple[Reference, ...] = ()
    changed: ChangedRows = field(default_factory=ChangedRows)

    @property
    def reference(self) -> Reference | None:
        return self.chain[-1] if self.chain else None


@dataclass(frozen=True, slots=True)
class IncrementalUpdate:
    """A newer checkpoint that was read, verified and decoded, but not applied yet.

    Attributes:
        chain: as in :class:`HeldVersions`.
        full: whether it was read from its full checkpoint on.
        rows: rows to write into the tables held, in this order.
        new_tables: name -> tables that are not held yet.
        dense: ``GROUP/NAME`` -> tensor.
        changed: as in :class:`HeldVersions`.
        bytes: size of the files read.
        skipped: errors of newer checkpoints that could not be read, the newest first.
    """

    chain: tuple[Reference, ...]
    full: bool
    rows: Sequence[TableRows]
    new_tables: Mapping[str, Tensor]
    dense: dict[str, Tensor]
    changed: ChangedRows
    bytes: int
    skipped: tuple[RecoverableError, ...] = ()


class IncrementalReader:
    """Reads incremental updates from a folder of checkpoints.

    Args:
        folder: the checkpoints.
        names: names of the tables to read; None: all.
        groups: groups of the other tensors to read.
    """

    def __init__(self, folder: CheckpointFolder, names: Collection[str] | None, groups: Collection[str]) -> None:
        self._folder, self._store = folder, folder.store
        self._names = None if names is None else tuple(names)
        self._groups = tuple(groups)

    def fetch(self, held: HeldVersions) -> IncrementalUpdate | None:
        """Reads the newest complete checkpoint; returns None if it is held already, or there is none at all.

        Raises:
            RunFolderError: all checkpoints newer than the one held are damaged; the message names the newest one's
                file.
            ConfigError: a table or a group does not exist, or a table has another shape.
        """
        skipped: list[RecoverableError] = []
        for _ in range(ATTEMPTS):
            seen, skipped = self._steps_and_newest(), []
            steps, newest = seen
            if not steps or (newest is not None and newest == held.reference):
                return None
            for step in reversed(steps):
                if skipped and held.reference is not None and step <= held.reference.step:
                    continue
                try:
                    return replace(self._read(step, held), skipped=tuple(skipped))
                except RECOVERABLE as error:
                    skipped.append(error)
                if self._steps_and_newest() != seen:
                    break  # it was deleted or replaced meanwhile, or there is a newer one
            else:
                break
        raise skipped[0]

    def dense_of(self, manifest: Manifest) -> dict[str, Tensor]:
        """Returns ``GROUP/NAME`` -> tensor of the reader's groups. The group ``dense`` may be empty.

        Raises:
            RunFolderError: the file is missing, changed, or of another size.
            ConfigError: there is no such group.
        """
        if not self._groups:
            return {}
        others = read_non_table_tensors(self._store, manifest)
        existing = {name.partition("/")[0] for name in others}
        for group in self._groups:
            if group not in existing and group != "dense":
                place = self._store.where(folder_of(manifest.step))
                raise ConfigError(f"{place}: no group {group!r}", f"name some of {sorted(existing)}")
        return {name: tensor for name, tensor in others.items() if name.partition("/")[0] in self._groups}

    def _steps_and_newest(self) -> tuple[list[int], Reference | None]:
        """Returns the existing steps, and the newest checkpoint's reference, or None if it cannot be read."""
        steps = self._folder.steps()
        try:
            manifest = self._folder.manifest(steps[-1]) if steps else None
        except RunFolderError:
            manifest = None
        return steps, None if manifest is None else manifest.reference

    def _read(self, step: int, held: HeldVersions) -> IncrementalUpdate:
        manifest = self._folder.manifest(step)
        if manifest is None:
            raise RunFolderError(
                f"{self._store.where(folder_of(step))}: of format 1, which cannot be followed",
                "go on with the training: it writes the next one in format 2",
            )
        names = self._tables_to_read(manifest, held)
        size = sum(file.bytes for file in manifest.files if not file.blocks and self._groups)
        without_rows = IncrementalUpdate(
            (*manifest.needs, manifest.reference), False, (), {}, self.dense_of(manifest), ChangedRows(), size
        )
        update = None
        if held.chain[:1] == without_rows.chain[:1] and all(name in held.tables for name in names):
            update = self._with_deltas(without_rows, manifest, names, held)
        return self._with_all(without_rows, manifest, names, held) if update is None else update

    def _with_deltas(
        self, without_rows: IncrementalUpdate, manifest: Manifest, names: Sequence[str], held: HeldVersions
    ) -> IncrementalUpdate | None:
        """Reads the deltas that lead from the checkpoint held to the new one; both build on the same full checkpoint.

        Returns:
            The update with their rows; None if deltas do not suffice.
        """
        contains_held = without_rows.chain[: len(held.chain)] == held.chain
        begin = len(held.chain) if contains_held else 1
        if begin == len(without_rows.chain):
            return None  # the new checkpoint is the full checkpoint itself
        needed = (*read_needed(self._store, manifest, manifest.needs[begin:]), manifest)
        rows = [rows for each in needed for rows in read_rows(self._store, each, names)]
        changed = ChangedRows(rows, manifest)
        if contains_held:
            changed = held.changed.union(changed)
        elif not changed.covers(held.changed):
            return None
        size = without_rows.bytes + sum(bytes_to_read(each, names) for each in needed)
        return replace(without_rows, rows=rows, changed=changed, bytes=size)

    def _with_all(
        self, without_rows: IncrementalUpdate, manifest: Manifest, names: Sequence[str], held: HeldVersions
    ) -> IncrementalUpdate:
        """Reads the whole chain into new tables, and compares these with the tables held."""
        needed = (*read_needed(self._store, manifest, manifest.needs), manifest)
        read = {name: torch.empty(manifest.tables[name].shape(WEIGHT)) for name in names}
        changed, size = ChangedRows(), without_rows.bytes
        for each in needed:
            size += bytes_to_read(each, names)
            for rows in read_rows(self._store, each, names):
                put(rows, read[rows.table])
                if each is not needed[0]:
                    changed.add(rows, manifest)
        already_held = {name: read.pop(name) for name in held.tables}
        different = [
            rows for name, read_RD in already_held.items() for rows in differing(name, held.tables[name], read_RD)
        ]
        return replace(without_rows, full=True, rows=different, new_tables=read, changed=changed, bytes=size)

    def _tables_to_read(self, manifest: Manifest, held: HeldVersions) -> tuple[str, ...]:
        """Returns the names of the tables to read.

        Raises:
            ConfigError: a table does not exist, or the table held has another shape.
        """
        names = tuple(dict.fromkeys((*held.tables, *manifest.tables))) if self._names is None else self._names
        place = self._store.where(folder_of(manifest.step))
        for name in names:
            if name not in manifest.tables:
                raise ConfigError(f"{place}: no table {name!r}", f"name some of {sorted(manifest.tables)}")
            shape = manifest.tables[name].shape(WEIGHT)
            if name in held.tables and tuple(held.tables[name].shape) != shape:
                raise ConfigError(
                    f"{place}: table {name!r} is {shape}, the one held is {tuple(held.tables[name].shape)}",
                    "make another Follower: the model that is trained there now is another one",
                )
        return names
