"""A run with checkpoints, harm that somebody could do to it, and everything that a user could then do with it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from tests.checkpoint.checkpoint_kit import Table, saver
from tests.checkpoint.inspection_kit import fill
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import _digest
from ziggurat.checkpoint.inspect.inspection import inspect, listing
from ziggurat.checkpoint.inspect.pruning import prune
from ziggurat.checkpoint.inspect.run_folders import open_folder
from ziggurat.checkpoint.inspect.verification import verify
from ziggurat.checkpoint.store.claim import claimed
from ziggurat.checkpoint.store.writer_identity import Owner
from ziggurat.core.errors import ZigguratError

RUN, OTHER = Owner("runs/mine", "1111"), Owner("runs/other", "2222")
STEPS = (1, 2, 3, 4)
"""The steps of the checkpoints: a full one and three deltas, each of which needs all before it."""
MORE_BYTES = 2**30
"""Address space that reading hostile files may take beyond what the process has already."""


def write_run(run: Path, owner: Owner = RUN, store: Path | None = None) -> None:
    """Writes a run folder with checkpoints."""
    run.mkdir(parents=True)
    (run / "environment.json").write_text(json.dumps({"run_version": 1, "run_id": owner.id}))
    section = f"checkpoints: {{store: {store}}}\n" if store else ""
    (run / "config.yaml").write_text(f"name: mine\n{section}")
    folder = CheckpointFolder(store or run / "checkpoints", keep=100, run_id=owner.id)
    with claimed(folder.store, owner):
        fill(folder, len(STEPS))


def step_folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}"


def rows_file(run: Path, step: int) -> Path:
    """Returns the last file of rows of a checkpoint."""
    return sorted(step_folder(run, step).glob("rank-*"))[-1]


def sign(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Changes a manifest and signs it again, as anybody can."""
    values = json.loads(path.read_text())["manifest"]
    change(values)
    path.write_text(json.dumps({"format_version": 2, "sha256": _digest(values), "manifest": values}))


def replace_file(run: Path, step: int, data: bytes) -> None:
    """Replaces a file of rows, and has the manifest say so."""
    path = rows_file(run, step)
    path.write_bytes(data)

    def change(values: dict[str, Any]) -> None:
        for entry in values["files"]:
            if entry["name"] == path.name:
                entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    sign(path.with_name("manifest.json"), change)


def tree(folder: Path) -> dict[str, tuple[int, str]]:
    """Returns path -> mode, and content or target, of everything below a folder; nothing that is a link is followed."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = ""
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = (status.st_mode, content)
    return found


@contextlib.contextmanager
def bounded(seconds: int = 120) -> Generator[None]:
    """Fails instead of waiting for good, and instead of taking the machine's memory."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (size + MORE_BYTES, limits[1]))
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)


def use(run: Path) -> list[str]:
    """Does everything with a run that reads, writes or deletes checkpoints; returns what it was told.

    Raises:
        Exception: anything but a :class:`ZigguratError`.
    """
    told: list[str] = []
    for action in _actions(run):
        try:
            told += action() or ()
        except ZigguratError as error:
            told.append(error.problem)
    return told


def _actions(run: Path) -> Iterator[Callable[[], list[str] | None]]:
    yield lambda: [str(listing(open_folder(run)))]
    yield lambda: _problems(run)
    for step in STEPS:
        yield lambda step=step: _read(open_folder(run), step)
        yield lambda step=step: [str(inspect(open_folder(run), step))]
    yield lambda: [str(open_folder(run).best())]
    yield lambda: [str(prune(run, 1, dry_run=True))]
    yield lambda: [str(prune(run, 1))]
    yield lambda: _train(open_folder(run).of_run(RUN.id))


def _problems(run: Path) -> list[str]:
    found = verify(open_folder(run))
    return [*(problem for each in found.verdicts for problem in each.problems), *found.foreign, str(found.best_problem)]


def _read(folder: CheckpointFolder, step: int) -> None:
    checkpoint = folder.load(step)
    for group in checkpoint.names():
        checkpoint.whole(group)


def _train(folder: CheckpointFolder) -> None:
    """Does what a training does at its start and its end."""
    with claimed(folder.store, RUN):
        folder.check_owner(RUN)
        with saver(folder, Table("item", 20, 3)) as saving:
            saving.save(9, {}, {})
            saving.finish()
            folder.mark_best(9, "auc", 0.5)
