"""The newest whole checkpoint, of which no more is read than one does not hold yet.

A checkpoint is a chain: a full one and the deltas behind it. What is read of one depends on the chain that is held:

- what is held is in it: the deltas behind that;
- both begin with the same full checkpoint: the others' rows. They are right where they cover what the held deltas have
  written: any other row is then what it was in the full checkpoint, here as there. So it is with deltas since a
  full checkpoint, each of which has all rows of the one before;
- otherwise everything, from the full checkpoint on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.follow.changed_rows import ChangedRows, check_complete, differing, put, written, written_bytes
from ziggurat.checkpoint.format.blocks import TableRows
from ziggurat.checkpoint.format.manifest import WEIGHT, Manifest, Reference
from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.verified_files import read_needed, read_others
from ziggurat.core.errors import ConfigError, DataError, RunFolderError

LOOKS = 8
"""How often it begins again where checkpoints come and go while they are read."""
TROUBLES = (RunFolderError, DataError, OSError)
"""What may be over the next time: a checkpoint that is damaged or gone, a store that does not answer."""
Trouble = RunFolderError | DataError | OSError


@dataclass(slots=True)
class HeldVersions:
    """What one has of a checkpoint.

    Attributes:
        tables: name -> weights (R, D), live.
        chain: the checkpoint, last, behind those that it builds on; empty: none.
        touched: rows that are not as in the chain's full checkpoint.
    """

    tables: dict[str, Tensor]
    chain: tuple[Reference, ...] = ()
    touched: ChangedRows = field(default_factory=ChangedRows)

    @property
    def reference(self) -> Reference | None:
        return self.chain[-1] if self.chain else None


@dataclass(frozen=True, slots=True)
class IncrementalUpdate:
    """A checkpoint that was read, verified and decoded, beside what is held.

    Attributes:
        chain: as in :class:`HeldVersions`.
        whole: read from its full checkpoint on.
        rows: to be put into the tables that are held, in this order.
        made: tables that were not held.
        dense: by ``GROUP/NAME``.
        touched: as in :class:`HeldVersions`.
        bytes: of the files that were read.
        skipped: why newer checkpoints were passed over, the newest first.
    """

    chain: tuple[Reference, ...]
    whole: bool
    rows: Sequence[TableRows]
    made: Mapping[str, Tensor]
    dense: dict[str, Tensor]
    touched: ChangedRows
    bytes: int
    skipped: tuple[Trouble, ...] = ()


class IncrementalReader:
    """Reads what is new in a folder.

    Args:
        folder: of the checkpoints.
        names: of the tables to read; None: all.
        groups: of other tensors.
    """

    def __init__(self, folder: CheckpointFolder, names: Collection[str] | None, groups: Collection[str]) -> None:
        self._folder, self._store = folder, folder.store
        self._names = None if names is None else tuple(names)
        self._groups = tuple(groups)

    def fetch(self, held: HeldVersions) -> IncrementalUpdate | None:
        """The newest whole checkpoint; None where it is held, or there is none at all.

        Raises:
            RunFolderError: those that are newer than what is held are all damaged; the newest one's file is named.
            ConfigError: a table or a group is not there, or of another shape.
        """
        skipped: list[Trouble] = []
        for _ in range(LOOKS):
            seen, skipped = self._look(), []
            steps, newest = seen
            if not steps or (newest is not None and newest == held.reference):
                return None
            for step in reversed(steps):
                if skipped and held.reference is not None and step <= held.reference.step:
                    continue
                try:
                    return replace(self._read(step, held), skipped=tuple(skipped))
                except TROUBLES as error:
                    skipped.append(error)
                if self._look() != seen:
                    break  # it was deleted or replaced meanwhile, or there is a newer one
            else:
                break
        raise skipped[0]

    def dense_of(self, manifest: Manifest) -> dict[str, Tensor]:
        """``GROUP/NAME`` -> tensor of the groups asked for; only ``dense`` may have none.

        Raises:
            RunFolderError: the file is missing, shorter or longer, or changed.
            ConfigError: there is no such group.
        """
        if not self._groups:
            return {}
        others = read_others(self._store, manifest)
        there = {name.partition("/")[0] for name in others}
        for group in self._groups:
            if group not in there and group != "dense":
                place = self._store.where(folder_of(manifest.step))
                raise ConfigError(f"{place}: no group {group!r}", f"name some of {sorted(there)}")
        return {name: tensor for name, tensor in others.items() if name.partition("/")[0] in self._groups}

    def _look(self) -> tuple[list[int], Reference | None]:
        """The steps there are, and which the newest checkpoint is; None: it cannot be read."""
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
        names = self._checked_names(manifest, held)
        size = sum(file.bytes for file in manifest.files if not file.blocks and self._groups)
        bare = IncrementalUpdate(
            (*manifest.needs, manifest.reference), False, (), {}, self.dense_of(manifest), ChangedRows(), size
        )
        news = None
        if held.chain[:1] == bare.chain[:1] and all(name in held.tables for name in names):
            news = self._with_deltas(bare, manifest, names, held)
        return self._with_all(bare, manifest, names, held) if news is None else news

    def _with_deltas(
        self, bare: IncrementalUpdate, manifest: Manifest, names: Sequence[str], held: HeldVersions
    ) -> IncrementalUpdate | None:
        """The deltas that lead on from what is held, both being of one full checkpoint; None where none do."""
        passed = bare.chain[: len(held.chain)] == held.chain
        begin = len(held.chain) if passed else 1
        if begin == len(bare.chain):
            return None  # back to the full checkpoint itself
        needed = (*read_needed(self._store, manifest, manifest.needs[begin:]), manifest)
        rows = [rows for each in needed for rows in written(self._store, each, names)]
        touched = ChangedRows(rows, manifest)
        if passed:
            touched = held.touched.joined(touched)
        elif not touched.covers(held.touched):
            return None
        size = bare.bytes + sum(written_bytes(each, names) for each in needed)
        return replace(bare, rows=rows, touched=touched, bytes=size)

    def _with_all(
        self, bare: IncrementalUpdate, manifest: Manifest, names: Sequence[str], held: HeldVersions
    ) -> IncrementalUpdate:
        """The whole chain, read into tables beside those that are held."""
        needed = (*read_needed(self._store, manifest, manifest.needs), manifest)
        check_complete(self._store, needed[0], names)
        beside = {name: torch.empty(manifest.tables[name].shape(WEIGHT)) for name in names}
        touched, size = ChangedRows(), bare.bytes
        for each in needed:
            size += written_bytes(each, names)
            for rows in written(self._store, each, names):
                put(rows, beside[rows.table])
                if each is not needed[0]:
                    touched.add(rows, manifest)
        there = {name: beside.pop(name) for name in held.tables}
        different = [rows for name, new_RD in there.items() for rows in differing(name, held.tables[name], new_RD)]
        return replace(bare, whole=True, rows=different, made=beside, touched=touched, bytes=size)

    def _checked_names(self, manifest: Manifest, held: HeldVersions) -> tuple[str, ...]:
        """The tables to read."""
        names = tuple(dict.fromkeys((*held.tables, *manifest.tables))) if self._names is None else self._names
        place = self._store.where(folder_of(manifest.step))
        for name in names:
            if name not in manifest.tables:
                raise ConfigError(f"{place}: no table {name!r}", f"name some of {sorted(manifest.tables)}")
            shape = manifest.tables[name].shape(WEIGHT)
            if name in held.tables and tuple(held.tables[name].shape) != shape:
                raise ConfigError(
                    f"{place}: table {name!r} is {shape}, the one held is {tuple(held.tables[name].shape)}",
                    "make another Follower: what is trained there now is another model",
                )
        return names
