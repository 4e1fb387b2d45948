"""The checkpoints of a run, one folder ``step-00000100/`` each: the last to resume from, the best to use."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ziggurat.checkpoint.finished_steps import finished_steps
from ziggurat.checkpoint.format.legacy import STATE_FILE
from ziggurat.checkpoint.format.manifest import MANIFEST_FILE, Manifest
from ziggurat.checkpoint.open_checkpoint import open_checkpoint
from ziggurat.checkpoint.reader import FOLDER, CheckpointReader, folder_of
from ziggurat.checkpoint.snapshots import snapshots
from ziggurat.checkpoint.store.claim import recorded_writer
from ziggurat.checkpoint.store.object_store import open_store
from ziggurat.checkpoint.store.store import LocalStore, Store, Unreachable
from ziggurat.checkpoint.store.writer_identity import Owner
from ziggurat.checkpoint.verified_files import read_manifest
from ziggurat.core.errors import RunFolderError, shorten
from ziggurat.core.files import sweep
from ziggurat.core.untrusted import Damage, as_object, parse_json, read_json_object

BEST_FILE = "best.json"
CHECKPOINTS = "checkpoints"
"""Name of the checkpoints' folder in a run folder."""
ENVIRONMENT = "environment.json"
"""Name of the file in a run folder with the run's id."""
_CHECKPOINT_FILE = re.compile(
    r"rank-[0-9]{5}-[0-9]{5}\.[0-9a-f]{8}\.safetensors|(dense|tables|average|dense_optimizer|table_states)\.safetensors"
    rf"|{re.escape(MANIFEST_FILE)}|{re.escape(STATE_FILE)}|\..+\.part"
)
"""Names of the files that a writer of either format makes in the folder of a step."""


class CheckpointFolder:
    """The checkpoints of a run, by step.

    :meth:`prune` keeps the best one, snapshots, the newest ``keep``, and those that these need; it deletes the others.

    Args:
        store: the store of the checkpoints, or their local folder; as a text also the URL of a store.
        keep: how many of the newest checkpoints :meth:`prune` keeps.
        run_id: the run whose checkpoints these are; those of another run are then neither read nor deleted. Empty:
            unknown.
    """

    def __init__(self, store: Store | str | Path, keep: int = 2, run_id: str = "") -> None:
        if isinstance(store, str):
            store = open_store(store)
        self.store: Store = LocalStore(store) if isinstance(store, Path) else store
        self._keep, self.run_id = keep, run_id

    def of_run(self, run_id: str) -> CheckpointFolder:
        """Returns the same folder for a run that writes or deletes in it."""
        return CheckpointFolder(self.store, self._keep, run_id)

    @property
    def where(self) -> str:
        """The path or URL, for messages."""
        return self.store.where("").rstrip("/")

    def steps(self) -> list[int]:
        """Returns the steps of the finished checkpoints, ascending.

        Raises:
            RunFolderError: a symbolic link has the name of a checkpoint's folder.
        """
        return finished_steps(self.store)

    def last(self) -> int | None:
        """Returns the newest checkpoint's step, or None."""
        steps = self.steps()
        return steps[-1] if steps else None

    def best(self, *, any_run: bool = False) -> dict[str, Any] | None:
        """Returns ``{"step", "metric", "value"}`` of the best checkpoint; None if nothing was evaluated.

        Without a file ``best.json`` the newest readable manifest decides.

        Args:
            any_run: whether ``best.json`` may be that of another run.

        Raises:
            RunFolderError: ``best.json`` is damaged, or of another run.
        """
        place = self.store.where("", BEST_FILE)
        damage = Damage(RunFolderError, f"delete {place}: the best checkpoint is then taken from the newest manifest")
        if BEST_FILE not in self.store.files():
            if BEST_FILE in self.store.folders():
                raise damage.of(place, "is a folder, not a file")
            return self._best_from_manifests()
        values = as_object(parse_json(self.store.read("", BEST_FILE), place, damage), place, damage)
        step = values.get("step")
        if type(step) is not int or not FOLDER.fullmatch(folder_of(step)):
            raise damage.of(place, "does not say which step is the best")
        if not isinstance(values.get("metric"), str) or type(values.get("value")) not in {int, float}:
            raise damage.of(place, "does not say which metric is the best, and its value")
        digest = values.pop("sha256", None)
        is_legacy = digest is None and MANIFEST_FILE not in self.store.files(folder_of(values["step"]))
        if digest != _digest(values) and not is_legacy:
            raise damage.of(place, "has no checksum" if digest is None else "its content differs from its checksum")
        writer = values.pop("run_id", "")
        if writer and self.run_id and writer != self.run_id and not any_run:
            raise damage.of(place, f"belongs to another run (id {shorten(writer)}); this is run {self.run_id!r}")
        return values

    def _best_from_manifests(self) -> dict[str, Any] | None:
        """Returns the best checkpoint according to the newest readable manifest; None if it no longer exists."""
        steps = self.steps()
        for step in reversed(steps):
            try:
                manifest = self.manifest(step)
            except Unreachable:
                raise
            except RunFolderError:  # the manifest before it is nearly as recent
                continue
            state, config = (manifest.state, manifest.config) if manifest is not None else ({}, None)
            best_step, value = _value_at(state, "progression", "best_step"), _value_at(state, "progression", "best")
            if best_step not in steps or type(value) not in {int, float}:
                return None
            metric = _value_at(config, "training", "monitor")
            return {"step": best_step, "metric": metric if isinstance(metric, str) else "", "value": value}
        return None

    def mark_best(self, step: int, metric: str, value: float) -> None:
        """Records the checkpoint of ``step`` as the best so far."""
        assert step in self.steps(), step
        values = {"step": step, "metric": metric, "value": value, **({"run_id": self.run_id} if self.run_id else {})}
        text = json.dumps({**values, "sha256": _digest(values)}, indent=2)
        self.store.write("", BEST_FILE, f"{text}\n".encode())

    def forget_best(self) -> None:
        """Deletes ``best.json``. The newest manifest then decides which checkpoint is the best."""
        self.store.delete("", BEST_FILE)

    def load(self, which: str | int) -> CheckpointReader:
        """Returns a reader of a checkpoint: ``best``, ``last``, or a step.

        Raises:
            RunFolderError: there is no such checkpoint, or it is damaged.
        """
        return open_checkpoint(self.store, self.find(which))

    def find(self, which: str | int) -> int:
        """Returns the step of an existing checkpoint: ``best``, ``last``, or a step.

        Raises:
            RunFolderError: there is no such checkpoint, or another run wrote it.
        """
        step = self.resolve(which)
        if step not in self.steps():
            hint = "name one of those steps"
            if which == "best":
                place = self.store.where("", BEST_FILE)
                hint += f", or delete {place}: the best checkpoint is then taken from the newest manifest"
            problem = f"no checkpoint of step {step}; there are {self.steps()}"
            missing = self.missing_file(step)
            raise RunFolderError(f"{self.where}: {problem}" if missing is None else f"{missing}: {problem}", hint)
        problem = self._foreign_problem_of(step, self.manifest)
        if problem is not None:
            place = self.store.where(folder_of(step), MANIFEST_FILE)
            raise RunFolderError(f"{place}: {problem}", "put that run's own checkpoint back, or use another one")
        return step

    def missing_file(self, step: int) -> str | None:
        """Returns ``PLACE: is missing`` for the manifest that a step's folder lacks; None if there is no folder."""
        if folder_of(step) not in self.store.folders():
            return None
        place = self.store.where(folder_of(step), MANIFEST_FILE)
        is_folder = isinstance(self.store, LocalStore) and Path(place).is_dir()
        return f"{place}: is {'a folder, not a file' if is_folder else 'missing'}"

    def foreign_problem(self, manifest: Manifest | None) -> str | None:
        """Returns what is wrong with a checkpoint of another run; None if this run wrote it, or if that is unknown."""
        if manifest is None or not (self.run_id and manifest.run_id) or manifest.run_id == self.run_id:
            return None
        return f"was written by another run (id {shorten(manifest.run_id)}); this is run {self.run_id!r}"

    def resolve(self, which: str | int) -> int:
        """Returns the step that ``best``, ``last`` or a number means, whether or not its checkpoint exists.

        ``best`` means the last checkpoint if none was evaluated.

        Raises:
            RunFolderError: there is no checkpoint yet, or ``which`` is another word.
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
        """Returns a checkpoint's manifest; None if it is of format 1.

        Raises:
            RunFolderError: the manifest is damaged.
        """
        return read_manifest(self.store, step) if MANIFEST_FILE in self.store.files(folder_of(step)) else None

    def prune(self, keep: int | None = None) -> list[int]:
        """Deletes the checkpoints that :meth:`removable` returns; none if those cannot be determined.

        Returns:
            The steps that were deleted.
        """
        try:
            deleted = self.removable(keep)
        except UnknownDependencies:  # keep all rather than delete one that may be needed
            return []
        self.discard(deleted)
        return deleted

    def discard(self, steps: Sequence[int]) -> None:
        """Deletes the checkpoints of these ascending steps, backwards: one goes before those that it needs."""
        for step in reversed(steps):
            self._delete(folder_of(step))

    def removable(self, keep: int | None = None) -> list[int]:
        """Returns the steps that are no snapshots, not the best, not of the newest ``keep``, and not needed by these.

        Checkpoints that another run wrote, according to their manifests, are never returned.
        A checkpoint with a file that is missing or of another size, and one that needs such a checkpoint, stay if they
        are recent, but do not count as one of the ``keep``.

        Raises:
            UnknownDependencies: the manifest of a checkpoint to keep is damaged, so that its needs are unknown.
            RunFolderError: ``best.json`` is damaged.
        """
        steps = self.steps()
        newest = self._keep if keep is None else keep
        best = self.best(any_run=True)
        kept = {int(best["step"])} if best else set[int]()
        needed = set[int]()
        manifest_of = functools.cache(self.manifest)
        kept.update(snapshots(steps, manifest_of))
        complete = functools.cache(functools.partial(self._complete, manifest_of=manifest_of))
        for step in reversed(steps):
            if newest and step not in kept:
                kept.add(step)
            elif step not in kept:
                continue
            try:
                manifest = manifest_of(step)
            except RunFolderError as error:
                raise UnknownDependencies(
                    f"{error.problem}; which other checkpoints it needs is unknown, so that nothing is deleted",
                    error.hint,
                ) from error
            needs = [] if manifest is None else [need.step for need in manifest.needs]
            needed.update(needs)
            newest -= bool(newest) and all(map(complete, (*needs, step)))
        unneeded = [step for step in steps if step not in kept | needed]
        return [step for step in unneeded if self._foreign_problem_of(step, manifest_of) is None]

    def check_owner(self, owner: Owner) -> None:
        """Checks that what is here belongs to this run, as the recorded writer, the run folder and the manifests say.

        Raises:
            RunFolderError: it belongs to another run; the message names that.
        """
        hint = "name another place in checkpoints.store; where that run is not needed any more, delete what is there"
        steps = self.steps()  # first: it refuses links
        root = self.store.root.resolve() if isinstance(self.store, LocalStore) else None
        if root is not None and root.name == CHECKPOINTS and os.path.lexists(root.parent / ENVIRONMENT):
            found = read_json_object(root.parent / ENVIRONMENT, Damage(RunFolderError, hint)).get("run_id")
            if found != owner.id:
                raise RunFolderError(
                    f"{self.where}: is in the folder of another run (id {shorten(found)}); this is {owner.name} "
                    f"(id {owner.id})",
                    hint,
                )
        writer = recorded_writer(self.store)
        if writer is not None:
            writer.check_owner(owner, self.where)
        own = self.of_run(owner.id)
        foreign = [step for step in steps if own._foreign_problem_of(step, self.manifest) is not None]
        if foreign:
            raise RunFolderError(
                f"{self.store.where(folder_of(foreign[0]))}: was written by another run than {owner.name} "
                f"(id {owner.id})",
                hint,
            )

    def _foreign_problem_of(self, step: int, manifest_of: Callable[[int], Manifest | None]) -> str | None:
        """Returns :meth:`foreign_problem` of a checkpoint; None if its manifest is damaged.

        Raises:
            Unreachable: the store gives no answer.
        """
        try:
            return self.foreign_problem(manifest_of(step))
        except Unreachable:
            raise
        except RunFolderError:
            return None

    def _complete(self, step: int, manifest_of: Callable[[int], Manifest | None]) -> bool:
        """Returns whether all of a checkpoint's own files exist with their recorded sizes."""
        try:
            manifest = manifest_of(step)
        except Unreachable:
            raise
        except RunFolderError:
            return False
        sizes = {} if manifest is None else self.store.sizes(folder_of(step))
        return manifest is None or all(sizes.get(file.name) == file.bytes for file in manifest.files)

    def sweep(self) -> None:
        """Deletes what a writer that died left behind. Only the process that holds the claim may call it."""
        for folder, name in self.leftovers():
            self.store.delete(folder, name) if name else self._delete(folder)
        if isinstance(self.store, LocalStore):
            sweep(self.store.root)

    def leftovers(self) -> list[tuple[str, str | None]]:
        """Returns the remains of unfinished writes.

        Returns:
            (folder, None) for a step's folder without a manifest that has only files of checkpoints, and (folder, file)
            for a checkpoint's file that its manifest does not list.
        """
        steps = set(self.steps())
        found: list[tuple[str, str | None]] = []
        for name in sorted(self.store.folders()):
            match = FOLDER.fullmatch(name)
            if match is None:
                continue
            if int(match[1]) not in steps:
                found += [] if self.foreign_files(name) else [(name, None)]
            else:
                found += [(name, file) for file in self._unlisted(int(match[1]))]
        return found

    def check_no_foreign_files(self) -> None:
        """Checks that no other program uses the names of checkpoint folders here.

        Raises:
            RunFolderError: one does; the message names its file.
        """
        steps = {folder_of(step) for step in self.steps()}
        for name in sorted(self.store.folders()):
            if FOLDER.fullmatch(name) and name not in steps and (foreign := self.foreign_files(name)):
                raise RunFolderError(
                    f"{self.store.where(name, foreign[0])}: is not a file of a ziggurat checkpoint, but its folder has "
                    "the name of one",
                    "name another place in checkpoints.store, or move that folder away",
                )
        for name in sorted(self.store.files()):
            if isinstance(self.store, LocalStore) and FOLDER.fullmatch(name):
                raise RunFolderError(
                    f"{self.store.where('', name)}: is a file with the name of a checkpoint's folder", "move it away"
                )

    def foreign_files(self, folder: str) -> list[str]:
        """Returns the files in a step's folder whose names no checkpoint writer makes."""
        return sorted(name for name in self.store.files(folder) if not _CHECKPOINT_FILE.fullmatch(name))

    def _delete(self, folder: str) -> None:
        """Deletes a step's folder. If it has foreign files, deletes only the checkpoint's own, manifests first."""
        names = self.store.files(folder)
        own = [name for name in names if _CHECKPOINT_FILE.fullmatch(name)]
        if len(own) == len(names):
            self.store.delete(folder)
            return
        for name in sorted(own, key=lambda name: name not in {MANIFEST_FILE, STATE_FILE}):
            self.store.delete(folder, name)

    def discard_attempt(self, step: int, attempt: str) -> None:
        """Deletes the files of a write that failed, unless its manifest exists, and the folder if nothing else is left.

        Only for writers, when no rank writes to it any more.
        """
        folder = folder_of(step)
        names = self.store.files(folder)
        if MANIFEST_FILE in names and self.manifest_id(step) in {None, attempt}:
            return
        for name in names:
            if name.endswith(f".{attempt}.safetensors") and _CHECKPOINT_FILE.fullmatch(name):
                self.store.delete(folder, name)
        if isinstance(self.store, LocalStore):
            self.store.delete_if_empty(folder)

    def manifest_id(self, step: int) -> str | None:
        """Returns the id in a checkpoint's manifest; None if it cannot be read."""
        try:
            manifest = self.manifest(step)
        except RunFolderError:
            return None
        return None if manifest is None else manifest.id

    def sweep_step(self, step: int) -> None:
        """Deletes a checkpoint's files that its manifest does not list: of an earlier write of the same step."""
        for name in self._unlisted(step):
            self.store.delete(folder_of(step), name)

    def _unlisted(self, step: int) -> list[str]:
        """Returns a checkpoint's files that its manifest does not list; none if the manifest cannot be read."""
        try:
            manifest = self.manifest(step)
        except RunFolderError:
            return []
        if manifest is None:
            return []
        known = {MANIFEST_FILE, *(file.name for file in manifest.files)}
        return sorted(
            name for name in self.store.files(folder_of(step)) if name not in known and _CHECKPOINT_FILE.fullmatch(name)
        )


class UnknownDependencies(RunFolderError):
    """The manifest of a checkpoint to keep is damaged, so that the checkpoints it needs are unknown."""


def _value_at(values: Any, *keys: str) -> Any:
    """Returns the value under a path of keys; None if there is none."""
    for key in keys:
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
