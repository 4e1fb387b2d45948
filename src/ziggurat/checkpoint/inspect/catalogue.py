"""Which checkpoints there are, by their manifests alone: of either format, damaged or not, while training goes on.

In: a folder of checkpoints. Out: a manifest a step, or why there is none. Nothing here reads the tensors;
:mod:`~ziggurat.checkpoint.inspect.verification` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from safetensors import SafetensorError, safe_open

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.legacy import STATE_FILE, load_state
from ziggurat.checkpoint.format.manifest import Manifest, NewerFormat, TableShape
from ziggurat.checkpoint.reader import TABLE_STATES, TABLES, folder_of, shapes_of_tables
from ziggurat.checkpoint.store.store import LocalStore, Store, Unreachable
from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Progress, Silent

Shapes = dict[str, dict[str, tuple[int, ...]]]
"""Group -> name -> shape."""


@dataclass(frozen=True, slots=True)
class LegacyCheckpoint:
    """A checkpoint of format 1 without its tensors.

    Attributes:
        step: optimizer steps done.
        state: progression, schedule and what else training kept, as JSON.
        sizes: name of a file -> its bytes.
        digests: name of a file -> its SHA-256, as recorded.
        shapes: of the tensors.
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
    """What was found in a folder of checkpoints.

    Attributes:
        folder: it.
        found: step -> its manifest.
        problems: step -> why it has none that can be read.
        newer: steps of those whose manifest is of a format that this version does not know.
    """

    folder: CheckpointFolder
    found: dict[int, Manifest | LegacyCheckpoint] = field(default_factory=dict[int, Manifest | LegacyCheckpoint])
    problems: dict[int, str] = field(default_factory=dict[int, str])
    newer: set[int] = field(default_factory=set[int])

    @property
    def steps(self) -> list[int]:
        """All, ascending."""
        return sorted({*self.found, *self.problems})

    def read(self, step: int) -> None:
        """Read the manifest of a step anew; what was deleted meanwhile is a problem like any other."""
        self.found.pop(step, None)
        self.problems.pop(step, None)
        self.newer.discard(step)
        try:
            manifest = self.folder.manifest(step)
            self.found[step] = read_version_1(self.folder.store, step) if manifest is None else manifest
        except Unreachable:
            raise
        except RunFolderError as error:
            self.problems[step] = error.problem
            if isinstance(error, NewerFormat):
                self.newer.add(step)

    def needs(self, step: int) -> list[int]:
        """Steps of the checkpoints that a restore of this one reads before it."""
        found = self.found.get(step)
        return [need.step for need in found.needs] if isinstance(found, Manifest) else []

    def chain_problem(self, step: int) -> str | None:
        """Why a checkpoint cannot be restored, although its own manifest is there."""
        found = self.found.get(step)
        for need in found.needs if isinstance(found, Manifest) else ():
            base = self.found.get(need.step)
            if base is None:
                state = "cannot be read" if need.step in self.problems else "is not there"
                return f"needs the checkpoint of step {need.step}, which {state}"
            if not isinstance(base, Manifest) or base.id != need.id:
                return f"needs the checkpoint of step {need.step} as it was before it was written again"
        return None

    def restore_bytes(self, step: int) -> int:
        """Bytes of the files that a restore reads, if all are there."""
        return sum(self.found[each].bytes for each in (*self.needs(step), step) if each in self.found)


def read_catalogue(
    folder: CheckpointFolder, steps: Iterable[int] | None = None, progress: Progress | None = None
) -> Catalogue:
    """The manifests of these steps and of what they need; default: of all that there are.

    What is deleted while it is read is left out, unless it was asked for.
    """
    progress = progress or Silent()
    made = Catalogue(folder)
    asked = list(folder.steps() if steps is None else steps)
    there = set(folder.steps())
    todo = list(asked)
    progress.start("manifests", None if steps is not None else len(todo), "read")
    while todo:
        step = todo.pop()
        made.read(step)
        known = {*made.steps, *todo}
        todo += [need for need in made.needs(step) if need in there and need not in known]
        progress.advance(len(made.steps))
    progress.finish()
    there = set(folder.steps())
    for step in [step for step in made.problems if step not in there and (steps is None or step not in asked)]:
        del made.problems[step]
    return made


def read_version_1(store: Store, step: int) -> LegacyCheckpoint:
    """What ``state.json`` and the headers of the files say.

    Raises:
        RunFolderError: the JSON or a header is damaged, or a file is missing, or there is no such checkpoint.
    """
    if not isinstance(store, LocalStore):  # format 1 was written into folders only: this one was deleted meanwhile
        raise RunFolderError(f"{store.where(folder_of(step))}: has no manifest", _HINT)
    folder = store.root / folder_of(step)
    try:
        state = load_state(folder)
        digests = {
            str(name): str(digest) for name, digest in json.loads((folder / STATE_FILE).read_bytes())["files"].items()
        }
    except (KeyError, TypeError, AttributeError, OSError, ValueError) as error:
        if isinstance(error, RunFolderError):
            raise
        raise RunFolderError(
            f"{folder / STATE_FILE}: not a checkpoint: {type(error).__name__}: {error}", _HINT
        ) from error
    shapes: Shapes = {}
    sizes: dict[str, int] = {}
    for name in digests:
        path = folder / name
        try:
            sizes[name] = path.stat().st_size
            with safe_open(path, "pt") as file:
                shapes[path.stem] = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            raise RunFolderError(f"{path}: missing, but listed in {STATE_FILE}", _HINT) from None
        except (OSError, SafetensorError) as error:
            raise RunFolderError(f"{path}: cannot be read: {error}", _HINT) from error
    return LegacyCheckpoint(step, state, sizes, digests, shapes)


_HINT = "restore the file, or take another checkpoint: `ziggurat checkpoint verify` says which are whole"


def disk_bytes(store: Store, folder: str, name: str | None = None) -> int:
    """Of a file, or of all in a folder; what is not there any more counts nothing."""
    sizes = store.sizes(folder)
    return sum(sizes.values()) if name is None else sizes.get(name, 0)
