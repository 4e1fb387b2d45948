"""Reads the manifests of all checkpoints in a folder: of either format, damaged or not, even while training runs.

In: a folder of checkpoints. Out: for each step its manifest, or why it cannot be read. Nothing here reads tensors;
:mod:`~ziggurat.checkpoint.inspect.verification` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from safetensors import SafetensorError, safe_open

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.legacy import STATE_FILE, digests, load_state
from ziggurat.checkpoint.format.manifest import Manifest, NewerFormat, TableShape
from ziggurat.checkpoint.reader import TABLE_STATES, TABLES, folder_of, shapes_of_tables
from ziggurat.checkpoint.store.store import LocalStore, Store, Unreachable
from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.untrusted import Damage, opened

Shapes = dict[str, dict[str, tuple[int, ...]]]
"""Group -> name -> shape."""


@dataclass(frozen=True, slots=True)
class LegacyCheckpoint:
    """A checkpoint of format 1 without its tensors.

    Attributes:
        step: optimizer steps done.
        state: progression, schedule and other state of the training, as JSON.
        sizes: file name -> bytes.
        digests: file name -> recorded SHA-256.
        shapes: shapes of the tensors.
    """

    step: int
    state: dict[str, Any]
    sizes: dict[str, int]
    digests: dict[str, str]
    shapes: Shapes

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def tables(self) -> dict[str, TableShape]:
        return shapes_of_tables(self.shapes.get(TABLES, {}), self.shapes.get(TABLE_STATES, {}))


@dataclass(slots=True)
class Catalogue:
    """The manifests in a folder of checkpoints.

    Attributes:
        folder: the folder.
        found: step -> manifest.
        problems: step -> why its manifest cannot be read.
        newer: steps whose manifest is of a format that this version does not know; also in ``problems``.
    """

    folder: CheckpointFolder
    found: dict[int, Manifest | LegacyCheckpoint] = field(default_factory=dict[int, Manifest | LegacyCheckpoint])
    problems: dict[int, str] = field(default_factory=dict[int, str])
    newer: set[int] = field(default_factory=set[int])

    @property
    def steps(self) -> list[int]:
        """All steps, ascending."""
        return sorted({*self.found, *self.problems})

    def read(self, step: int) -> None:
        """Reads the manifest of a step anew. A checkpoint that was deleted meanwhile becomes a problem."""
        self.found.pop(step, None)
        self.problems.pop(step, None)
        self.newer.discard(step)
        try:
            manifest = self.folder.manifest(step)
            self.found[step] = read_legacy(self.folder.store, step) if manifest is None else manifest
        except Unreachable:
            raise
        except RunFolderError as error:
            self.problems[step] = error.problem
            if isinstance(error, NewerFormat):
                self.newer.add(step)

    def needs(self, step: int) -> list[int]:
        """Returns the steps of the checkpoints that a restore reads before this one."""
        found = self.found.get(step)
        return [need.step for need in found.needs] if isinstance(found, Manifest) else []

    def chain_problem(self, step: int) -> str | None:
        """Returns why a checkpoint cannot be restored although its own manifest is intact; None if it can."""
        found = self.found.get(step)
        if not isinstance(found, Manifest):
            return None
        for need in found.needs:
            base = self.found.get(need.step)
            if base is None:
                state = "cannot be read" if need.step in self.problems else "does not exist"
                return f"needs the checkpoint of step {need.step}, which {state}"
            if not isinstance(base, Manifest) or base.id != need.id:
                return f"needs the checkpoint of step {need.step} as it was before it was written again"
            if base.tables != found.tables or (need == found.needs[0]) != (base.kind == "full"):
                return f"needs the checkpoint of step {need.step}, which has other tables or is of another kind"
        return None

    def restore_bytes(self, step: int) -> int:
        """Returns the size of the files that a restore reads."""
        return sum(self.found[each].bytes for each in (*self.needs(step), step) if each in self.found)


def read_catalogue(
    folder: CheckpointFolder, steps: Iterable[int] | None = None, progress: Progress | None = None
) -> Catalogue:
    """Reads the manifests of checkpoints and of those that they need.

    A checkpoint that is deleted meanwhile is left out, unless it was requested.

    Args:
        folder: the checkpoints.
        steps: the steps requested; default: all.
        progress: where to show progress.
    """
    progress = progress or Silent()
    catalogue = Catalogue(folder)
    requested = list(folder.steps() if steps is None else steps)
    existing = set(folder.steps())
    todo = list(requested)
    progress.start("manifests", None if steps is not None else len(todo), "read")
    while todo:
        step = todo.pop()
        catalogue.read(step)
        known = {*catalogue.steps, *todo}
        todo += [need for need in catalogue.needs(step) if need in existing and need not in known]
        progress.advance(len(catalogue.steps))
    progress.finish()
    existing = set(folder.steps())
    for step in list(catalogue.problems):
        if step not in existing and (steps is None or step not in requested):
            del catalogue.problems[step]
    return catalogue


def read_legacy(store: Store, step: int) -> LegacyCheckpoint:
    """Reads ``state.json`` and the headers of the files of a checkpoint of format 1.

    Raises:
        RunFolderError: the JSON or a header is damaged, a file is missing, or there is no such checkpoint.
    """
    if not isinstance(store, LocalStore):  # format 1 exists in folders only, so this checkpoint was just deleted
        raise RunFolderError(f"{store.where(folder_of(step))}: has no manifest", _DAMAGE.hint)
    folder = store.root / folder_of(step)
    state, recorded = load_state(folder), digests(folder)
    shapes: Shapes = {}
    sizes: dict[str, int] = {}
    for name in recorded:
        path = folder / name
        try:
            with opened(path, _DAMAGE) as opened_file, safe_open(path, "pt") as file:
                sizes[name] = os.fstat(opened_file.fileno()).st_size
                shapes[path.stem] = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise _DAMAGE.of(path, f"missing, but listed in {STATE_FILE}") from None
        except (OSError, SafetensorError, OverflowError) as error:
            raise _DAMAGE.of(path, f"cannot be read: {error}") from error
    return LegacyCheckpoint(step, state, sizes, dict(recorded), shapes)


_DAMAGE = Damage(
    RunFolderError, "restore the file, or take another checkpoint: `ziggurat checkpoint verify` says which are intact"
)


def disk_bytes(store: Store, folder: str, name: str | None = None) -> int:
    """Returns the size of a file, or of all files in a folder; 0 if it no longer exists."""
    sizes = store.sizes(folder)
    return sum(sizes.values()) if name is None else sizes.get(name, 0)
