"""An ensemble: checkpoints of runs on one prepared dataset, and the weights by which their outputs are averaged.

Its folder holds one file, ``ensemble.json``, which is sealed. It names each member by the path of its run, relative to
the folder, by the id of that run, and by the step of the checkpoint. So a tree of folders can be moved as a whole, and
another run that was put in the place of a member is noticed.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from ziggurat._version import __version__
from ziggurat.core.errors import RunFolderError, ZigguratError, shorten
from ziggurat.core.sealed import declared, read_sealed_json, write_sealed_json
from ziggurat.core.untrusted import Damage, file_name
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.features.transform import Transform
from ziggurat.objectives.task import Task
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.run import ENSEMBLE_FILE, DatasetPointer, Run, open_run

ENSEMBLE_VERSION = 1
MOST_MEMBERS = 1000
"""The most members of an ensemble, each of which is a model in memory."""
_MOST_BYTES = 2**24
_DAMAGED = Damage(RunFolderError, "make the ensemble again, with `ziggurat ensemble RUN [RUN...] --out FOLDER`")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint that may become a member."""

    run: Run
    step: int

    def __str__(self) -> str:
        return f"{self.run.folder}, step {self.step:,}"


@dataclass(frozen=True, slots=True)
class Member(Candidate):
    """A checkpoint whose outputs are averaged with others.

    Attributes:
        weights: label -> the weight of this member's outputs for it; those of all members sum to 1.
    """

    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ensemble:
    """An opened ensemble. Where a run is evaluated or predicts, an ensemble can stand in its place.

    Attributes:
        folder: its folder.
        members: its members, on the same prepared dataset and with the same labels.
    """

    folder: Path
    members: tuple[Member, ...]

    @property
    def experiment(self) -> Experiment:
        """The experiment of the first member, which says how rows are read and evaluated."""
        return self.members[0].run.experiment

    def transform(self) -> Transform:
        """Loads the fitted transform, which all members share."""
        with of_member(self.folder, self.members[0]):
            return self.members[0].run.transform()

    def dataset(self, prepared: str | Path | None = None) -> Dataset:
        """Returns the prepared dataset of the members; see :meth:`Run.dataset`."""
        with of_member(self.folder, self.members[0]):
            return self.members[0].run.dataset(prepared)

    @property
    def weights(self) -> list[dict[str, float]]:
        """The weights of each member."""
        return [dict(member.weights) for member in self.members]

    @classmethod
    def open(cls, folder: str | Path) -> Ensemble:
        """Opens an ensemble, and checks that each member is the run that it was made of.

        Raises:
            RunFolderError: the folder holds no ensemble or a damaged one; or a member is missing, damaged, another run,
                or has other labels or prepared data. The message names the member.
        """
        folder = Path(folder)
        path = folder / ENSEMBLE_FILE
        saved = _read(path)
        members: list[Member] = []
        for number, each in enumerate(saved.members, 1):
            place = shown_path(_place(folder, each.run, path))
            with _named(f"{path}: member {number} ({place}, step {each.step:,})"):
                run = open_run(place)
                if run.files.run_id != each.run_id:
                    raise RunFolderError(
                        f"holds run {run.files.run_id!r}, the ensemble was made with run {shorten(each.run_id)}",
                        "put that run back, or make the ensemble again",
                    )
                member = Member(run, run.checkpoints.find(each.step), each.weights)
                _check_tasks(run, members[0].run if members else run, saved.labels)
                _check_pointer(run, DatasetPointer("", saved.dataset, saved.encoders))
                members.append(member)
        return cls(folder, tuple(members))

    def save(self) -> None:
        """Writes ``ensemble.json``, atomically, and makes the folder."""
        first = self.members[0].run
        pointer = pointer_of(first)
        self.folder.mkdir(parents=True, exist_ok=True)
        root = self.folder.resolve()
        members = [
            {
                "run": Path(os.path.relpath(member.run.folder.resolve(), root)).as_posix(),
                "run_id": member.run.files.run_id,
                "step": member.step,
                "weights": dict(member.weights),
            }
            for member in self.members
        ]
        values = {
            "ensemble_version": ENSEMBLE_VERSION,
            "ziggurat": __version__,
            "labels": [label.name for label in first.experiment.data.labels],
            "dataset": pointer.fingerprint,
            "encoders": pointer.encoders,
            "members": members,
        }
        write_sealed_json(self.folder / ENSEMBLE_FILE, values)


def is_ensemble(folder: str | Path) -> bool:
    """Returns whether a folder is that of an ensemble."""
    return (Path(folder) / ENSEMBLE_FILE).is_file()


def member_folders(folder: Path) -> list[Path]:
    """Returns the run folders that an ensemble names, whether or not they exist.

    Raises:
        RunFolderError: the file of the ensemble is missing or damaged.
    """
    path = folder / ENSEMBLE_FILE
    return [_place(folder, each.run, path) for each in _read(path).members]


def open_run_or_ensemble(folder: str | Path) -> Run | Ensemble:
    """Opens a run folder or the folder of an ensemble.

    Raises:
        RunFolderError, ConfigError: as :func:`~ziggurat.training.run_folder.run.open_run` and :meth:`Ensemble.open`.
    """
    return Ensemble.open(folder) if is_ensemble(folder) else open_run(folder)


def check_together(candidates: Sequence[Candidate]) -> None:
    """Checks that the outputs of checkpoints can be averaged.

    Raises:
        RunFolderError: they are of runs on different prepared data, or with different labels; the message names both.
    """
    first = candidates[0].run
    labels = [label.name for label in first.experiment.data.labels]
    pointer = pointer_of(first)
    for run in {each.run.folder: each.run for each in candidates}.values():
        try:
            _check_tasks(run, first, labels)  # other labels are other prepared data, too
            _check_pointer(run, pointer)
        except RunFolderError as error:
            raise RunFolderError(f"{run.folder} and {first.folder}: {error.problem}", error.hint) from None


def of_member(folder: Path, member: Candidate) -> contextlib.AbstractContextManager[None]:
    """Names the member in the errors that are raised in the ``with`` block.

    Args:
        folder: the folder of the ensemble.
        member: the member.
    """
    return _named(f"{folder}: member {member}")


@contextlib.contextmanager
def _named(where: str) -> Generator[None]:
    try:
        yield
    except ZigguratError as error:
        raise RunFolderError(f"{where}: {error.problem}", error.hint) from error


def pointer_of(run: Run) -> DatasetPointer:
    """Returns which prepared dataset a run uses.

    Raises:
        RunFolderError: ``dataset.json`` is missing or damaged.
    """
    pointer = run.pointer()
    if pointer is None:
        raise RunFolderError(f"{run.folder}: names no prepared dataset (dataset.json is missing)", "train it first")
    return pointer


@dataclass(frozen=True, slots=True)
class _SavedMember:
    """A member in ``ensemble.json``."""

    run: str
    run_id: str
    step: int
    weights: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Saved:
    """The content of ``ensemble.json``."""

    labels: list[str]
    dataset: str
    encoders: str | None
    members: list[_SavedMember]


def _read(path: Path) -> _Saved:
    """Returns the content of ``ensemble.json``, after checking all of it but the runs.

    Raises:
        RunFolderError: it is missing, damaged, or of another version.
    """
    try:
        values = read_sealed_json(path, _DAMAGED, limit=_MOST_BYTES)
    except FileNotFoundError:
        raise RunFolderError(f"{path.parent}: no ensemble ({ENSEMBLE_FILE} is missing)", _DAMAGED.hint) from None
    version = values.get("ensemble_version")
    if version != ENSEMBLE_VERSION:
        raise RunFolderError(
            f"{path}: ensemble format {shorten(version)} (ziggurat {shorten(values.get('ziggurat'))}), this ziggurat "
            f"{__version__} reads format {ENSEMBLE_VERSION}",
            "install the ziggurat version above, or make the ensemble again",
        )
    saved = declared(_Saved, values, path, _DAMAGED)
    if not 1 <= len(saved.members) <= MOST_MEMBERS:
        raise _DAMAGED.of(path, f"has {len(saved.members):,} members; 1 to {MOST_MEMBERS:,} are allowed")
    for number, member in enumerate(saved.members, 1):
        if sorted(member.weights) != sorted(saved.labels):
            raise _DAMAGED.of(
                path,
                f"member {number} has weights for {shorten(list(member.weights))}, not for {shorten(saved.labels)}",
            )
        if not 0 <= member.step < 2**48:
            raise _DAMAGED.of(path, f"member {number}: received the step {shorten(member.step)}")
        for label, weight in member.weights.items():
            if not 0 <= weight <= 1:
                raise _DAMAGED.of(path, f"member {number}: the weight for {label!r} is {weight}; 0 to 1 is allowed")
    for label in saved.labels:
        total = math.fsum(member.weights[label] for member in saved.members)
        if abs(total - 1) > 1e-6:
            raise _DAMAGED.of(path, f"the weights for {label!r} sum to {total:.6g}, not to 1")
    return saved


def _place(folder: Path, name: str, path: Path) -> Path:
    """Returns the run folder that a member names: steps up from the ensemble's folder, then plain names.

    Raises:
        RunFolderError: the name is another kind of path.
    """
    parts = PurePosixPath(name).parts
    down = list(parts)
    while down and down[0] == "..":
        down.pop(0)
    if not down or len(name) > 4096 or name != "/".join(parts):
        raise _DAMAGED.of(path, f"names the run {shorten(name)}; a relative path to a run folder is allowed")
    for part in down:
        file_name(part, path, _DAMAGED)
    return Path(os.path.normpath(folder.resolve() / name))


def shown_path(place: Path) -> Path:
    """Returns a path relative to the working directory, if it lies in it, as the user wrote it."""
    with contextlib.suppress(ValueError, OSError):
        return place.relative_to(Path.cwd())
    return place


def _check_pointer(run: Run, expected: DatasetPointer) -> None:
    """Refuses a run that was trained on other prepared data.

    Raises:
        RunFolderError: it was.
    """
    found = pointer_of(run)
    hint = "members share one prepared dataset: train them with the same --prepared, or from configs that differ in "
    hint += "embeddings, model, optimizer and training alone"
    if found.fingerprint != expected.fingerprint:
        raise RunFolderError(
            f"trained on other prepared data: dataset {found.fingerprint[:12]}, not {expected.fingerprint[:12]}", hint
        )
    if None not in (found.encoders, expected.encoders) and found.encoders != expected.encoders:
        raise RunFolderError("trained with other encoders, although config and raw files are the same", hint)


def _check_tasks(run: Run, first: Run, labels: Sequence[str]) -> None:
    """Refuses a run whose outputs mean something else.

    Raises:
        RunFolderError: its labels, or their kinds or losses, differ.
    """
    theirs, ours = _meaning(run), _meaning(first)
    names = [task.name for task in theirs]
    hint = "members predict the same labels, of the same kinds and with the same losses"
    if names != list(labels):
        raise RunFolderError(f"trained for the labels {', '.join(names)}, not {', '.join(labels)}", hint)
    for task, expected in zip(theirs, ours, strict=True):
        if task != expected:
            raise RunFolderError(
                f"label {task.name!r} is {_described(task)}, in {first.folder} {_described(expected)}", hint
            )


def _meaning(run: Run) -> list[Task]:
    """Returns the tasks of a run, without what changes training alone."""
    return [replace(task, weight=1.0, negative_rate=1.0) for task in run.experiment.tasks()]


def _described(task: Task) -> str:
    loss = "" if task.loss is None else f" with {re.sub(r'^name=', '', str(task.loss))}"
    rate = "" if task.known_rate == 1 else f", of whose negatives the log has {task.known_rate:g}"
    return f"{task.kind}{loss}{rate}"
