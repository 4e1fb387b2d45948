"""The checkpoints of a run: ``step-00000100/`` each, the newest to resume from, the best to use."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ziggurat.checkpoint.format.legacy import STATE_FILE
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE, Manifest
from ziggurat.checkpoint.open_checkpoint import open_checkpoint
from ziggurat.checkpoint.reader import FOLDER, CheckpointReader, folder_of
from ziggurat.checkpoint.store.store import LocalStore, Store, Unreachable
from ziggurat.checkpoint.verified_files import read_manifest
from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import put_back, sweep

BEST_FILE = "best.json"
_OURS = re.compile(
    r"rank-\d{5}-\d{5}\.[0-9a-f]{8}\.safetensors|(dense|tables|average|dense_optimizer|table_states)\.safetensors"
    rf"|{re.escape(MANIFEST_FILE)}|{re.escape(STATE_FILE)}|\..+\.part"
)
"""Files in the folder of a step that a writer of either format makes."""


class CheckpointFolder:
    """Checkpoints by step. The best one and the newest ``keep`` stay, and what these need; the others are deleted.

    Args:
        store: where they lie, or the folder.
        keep: how many of the newest :meth:`prune` keeps.
    """

    def __init__(self, store: Store | Path, keep: int = 2) -> None:
        self.store: Store = LocalStore(store) if isinstance(store, Path) else store
        self._keep = keep

    @property
    def where(self) -> str:
        return self.store.where("").rstrip("/")

    def steps(self) -> list[int]:
        """Steps of the finished checkpoints, ascending."""
        if isinstance(self.store, LocalStore):
            put_back(self.store.root)  # what a writer of format 1 moved aside before it died
        found = [(match, name) for name in self.store.folders() if (match := FOLDER.fullmatch(name))]
        return sorted(
            int(match[1]) for match, name in found if {MANIFEST_FILE, STATE_FILE} & set(self.store.files(name))
        )

    def last(self) -> int | None:
        """The newest checkpoint's step, or None."""
        steps = self.steps()
        return steps[-1] if steps else None

    def best(self) -> dict[str, Any] | None:
        """``{"step", "metric", "value"}`` of the best checkpoint; where no file says so, what the newest manifest knows
        of it; None where nothing was evaluated.

        Raises:
            RunFolderError: the file that says so is damaged.
        """
        if BEST_FILE not in self.store.files():
            return self._remembered()
        place = self.store.where("", BEST_FILE)
        hint = f"delete {place}: then counts what the newest checkpoint knows of it"
        try:
            values = json.loads(self.store.read("", BEST_FILE).decode())
        except ValueError as error:
            raise RunFolderError(f"{place}: not valid JSON: {error}", hint) from None
        if not isinstance(values, dict) or not isinstance(values.get("step"), int):
            raise RunFolderError(f"{place}: does not say which step is the best", hint)
        digest = values.pop("sha256", None)
        first_format = digest is None and MANIFEST_FILE not in self.store.files(folder_of(values["step"]))
        if digest != _digest(values) and not first_format:
            said = "has no checksum" if digest is None else "its content differs from its checksum"
            raise RunFolderError(f"{place}: {said}", hint)
        return values

    def _remembered(self) -> dict[str, Any] | None:
        """The best checkpoint by the newest manifest that can be read, if it is there still."""
        steps = self.steps()
        for step in reversed(steps):
            try:
                manifest = self.manifest(step)
            except Unreachable:
                raise
            except RunFolderError:  # the one before knows nearly as much
                continue
            at: dict[str, Any] = {} if manifest is None else manifest.state.get("progression", {})
            if at.get("best_step") not in steps:
                return None
            metric = ((manifest and manifest.config) or {}).get("training", {}).get("monitor", "")
            return {"step": at["best_step"], "metric": metric, "value": at["best"]}
        return None

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Record the checkpoint of ``step`` as the best so far."""
        assert step in self.steps(), step
        values = {"step": step, "metric": metric, "value": value}
        text = json.dumps({**values, "sha256": _digest(values)}, indent=2)
        self.store.write("", BEST_FILE, f"{text}\n".encode())

    def forget_best(self) -> None:
        """Let count what the newest checkpoint knows of the best, or itself."""
        self.store.delete("", BEST_FILE)

    def load(self, which: str | int) -> CheckpointReader:
        """The checkpoint called ``best``, ``last``, or of a step.

        Raises:
            RunFolderError: there is none, or it is damaged.
        """
        return open_checkpoint(self.store, self.find(which))

    def find(self, which: str | int) -> int:
        """The step of the checkpoint called ``best``, ``last``, or of a step, which is there.

        Raises:
            RunFolderError: there is none.
        """
        step = self.resolve(which)
        if step not in self.steps():
            hint = "name one of those steps"
            if which == "best":
                place = self.store.where("", BEST_FILE)
                hint += f", or delete {place}: then counts what the newest checkpoint knows of it"
            raise RunFolderError(f"{self.where}: no checkpoint of step {step}; there are {self.steps()}", hint)
        return step

    def resolve(self, which: str | int) -> int:
        """The step that ``best``, ``last`` or a number stands for; ``best`` is the last one where none was evaluated.

        Raises:
            RunFolderError: no checkpoint yet, or a word that is none of those.
        """
        last = self.last()
        if last is None:
            raise RunFolderError(f"{self.where}: no checkpoint", "train first: `ziggurat train`")
        if which == "best":
            best = self.best()
            return last if best is None else int(best["step"])
        if which == "last":
            return last
        try:
            return int(which)
        except ValueError:
            raise RunFolderError(
                f"checkpoint {which!r} is neither 'best', 'last' nor a step", f"steps: {self.steps()}"
            ) from None

    def manifest(self, step: int) -> Manifest | None:
        """Of a checkpoint; None of one of format 1.

        Raises:
            RunFolderError: it is damaged.
        """
        return read_manifest(self.store, step) if MANIFEST_FILE in self.store.files(folder_of(step)) else None

    def prune(self, keep: int | None = None) -> list[int]:
        """Delete what :meth:`spare` names; nothing where that cannot be told.

        Returns:
            The steps that were deleted.
        """
        try:
            gone = self.spare(keep)
        except UnknownNeeds:  # nobody loses the rest for it
            return []
        self.discard(gone)
        return gone

    def discard(self, steps: Sequence[int]) -> None:
        """Delete the checkpoints of these steps, ascending: what is needed goes behind what needs it."""
        for step in reversed(steps):
            self._delete(folder_of(step))

    def spare(self, keep: int | None = None) -> list[int]:
        """Steps that are neither the best, nor among the newest ``keep``, nor needed by one of these.

        What lacks a file, or has one of another size, is not counted, nor what needs such a one; it stays if it is
        newer.

        Raises:
            UnknownNeeds: one of those that stay is damaged, and what it needs is not known.
            RunFolderError: ``best.json`` is damaged.
        """
        steps = self.steps()
        newest = self._keep if keep is None else keep
        best = self.best()
        kept = {int(best["step"])} if best else set[int]()
        needed = set[int]()
        manifest_of = functools.cache(self.manifest)
        complete = functools.cache(functools.partial(self._complete, manifest_of=manifest_of))
        for step in reversed(steps):
            if newest and step not in kept:
                kept.add(step)
            elif step not in kept:
                continue
            try:
                manifest = manifest_of(step)
            except RunFolderError as error:
                raise UnknownNeeds(
                    f"{error.problem}; it stays, and as nobody knows which others it needs, nothing is deleted",
                    error.hint,
                ) from error
            needs = [] if manifest is None else [need.step for need in manifest.needs]
            needed.update(needs)
            newest -= bool(newest) and all(map(complete, (*needs, step)))
        return [step for step in steps if step not in kept | needed]

    def _complete(self, step: int, manifest_of: Callable[[int], Manifest | None]) -> bool:
        """Whether a checkpoint's own files are there, of the size that they should have."""
        try:
            manifest = manifest_of(step)
        except Unreachable:
            raise
        except RunFolderError:
            return False
        sizes = {} if manifest is None else self.store.sizes(folder_of(step))
        return manifest is None or all(sizes.get(file.name) == file.bytes for file in manifest.files)

    def sweep(self) -> None:
        """Delete what a writer that died left behind; to be called by the one who writes here alone."""
        for folder, name in self.leftovers():
            self.store.delete(folder, name) if name else self._delete(folder)
        if isinstance(self.store, LocalStore):
            sweep(self.store.root)

    def leftovers(self) -> list[tuple[str, str | None]]:
        """Folders of steps that have no manifest and only files of ours, and (folder, file) where a manifest does not
        know a file of ours."""
        steps = set(self.steps())
        found: list[tuple[str, str | None]] = []
        for name in sorted(self.store.folders()):
            match = FOLDER.fullmatch(name)
            if match is None:
                continue
            if int(match[1]) not in steps:
                found += [] if self.foreign(name) else [(name, None)]
            else:
                found += [(name, file) for file in self._unknown(int(match[1]))]
        return found

    def check_place(self) -> None:
        """See that no other program keeps folders here that are called as ours are.

        Raises:
            RunFolderError: one does; it is named.
        """
        steps = {folder_of(step) for step in self.steps()}
        for name in sorted(self.store.folders()):
            if FOLDER.fullmatch(name) and name not in steps and (foreign := self.foreign(name)):
                raise RunFolderError(
                    f"{self.store.where(name, foreign[0])}: is no file of a checkpoint of ours, in a folder that is "
                    "called as ours are",
                    "name another place in checkpoints.store, or move that folder away",
                )
        for name in sorted(self.store.files()):
            if isinstance(self.store, LocalStore) and FOLDER.fullmatch(name):
                raise RunFolderError(
                    f"{self.store.where('', name)}: is a file, called as our folders are", "move it away"
                )

    def foreign(self, folder: str) -> list[str]:
        """Files in a folder of a step that no writer of ours makes."""
        return sorted(name for name in self.store.files(folder) if not _OURS.fullmatch(name))

    def _delete(self, folder: str) -> None:
        """What of a folder is ours: all of it, or what leaves the rest there."""
        names = self.store.files(folder)
        ours = [name for name in names if _OURS.fullmatch(name)]
        if len(ours) == len(names):
            self.store.delete(folder)
            return
        for name in sorted(ours, key=lambda name: name not in {MANIFEST_FILE, STATE_FILE}):
            self.store.delete(folder, name)

    def sweep_step(self, step: int) -> None:
        """Delete files that a checkpoint's manifest does not know: of a write of the same step that it replaced."""
        for name in self._unknown(step):
            self.store.delete(folder_of(step), name)

    def _unknown(self, step: int) -> list[str]:
        """Files of ours in a checkpoint's folder that its manifest does not know; none where it cannot be read."""
        try:
            manifest = self.manifest(step)
        except RunFolderError:
            return []
        if manifest is None:
            return []
        known = {MANIFEST_FILE, *(file.name for file in manifest.files)}
        return sorted(name for name in self.store.files(folder_of(step)) if name not in known and _OURS.fullmatch(name))


class UnknownNeeds(RunFolderError):
    """A checkpoint that is to stay is damaged, so that nobody knows which others it needs."""


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
