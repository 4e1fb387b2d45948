"""A trial that runs in a process of its own, seen from the search: its figures as they come, and how it ends."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import write_json
from ziggurat.core.outside.python_process import python_command
from ziggurat.core.untrusted import Damage, read_json_object
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.run_files import METRICS_FILE

_TAIL_LINES = 15
_DAMAGE = Damage(RunFolderError, "delete it: the same command trains this trial again")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a trial's process ended.

    Attributes:
        result: what the trial wrote (:mod:`ziggurat.search.trial`); empty if it was stopped or died.
        status: its exit status; minus the signal that ended it.
        tail: the last lines of its error output.
    """

    result: dict[str, Any]
    status: int
    tail: str


class Process(Protocol):
    """A process that trains a trial, here or on another host."""

    def poll(self) -> int | None:
        """Returns its exit status, minus the signal that ended it; None while it runs."""
        ...

    def stop(self) -> None:
        """Has it save its state and end."""
        ...

    def kill(self) -> None:
        """Ends it at once."""
        ...


class Start(Protocol):
    """Starts the process that trains what ``files`` say."""

    def __call__(self, files: TrialFiles) -> Process:
        """Starts it."""
        ...


@dataclass(frozen=True, slots=True)
class TrialFiles:
    """The files beside the run folder of a trial.

    Attributes:
        spec: the experiment and its folders.
        out: what the trial writes when it ends.
        errors: its error output.
        stop: is written to have the trial stop, where no signal can reach it.
    """

    spec: Path
    out: Path
    errors: Path
    stop: Path

    @classmethod
    def of(cls, run: Path) -> Self:
        return cls(*(run.with_name(f"{run.name}.{ending}") for ending in ("json", "out.json", "txt", "stop")))


class LocalProcess:
    """A trial in a process of this machine.

    Args:
        files: the files of the trial.
        threads: threads of torch, unless ``training.threads`` says another number.
    """

    def __init__(self, files: TrialFiles, threads: int) -> None:
        self._process = start_trial(files, threads)

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def start_trial(files: TrialFiles, threads: int) -> subprocess.Popen[bytes]:
    """Starts a process that trains a trial, and does not outlive this one."""
    command = python_command("ziggurat.search.trial", str(files.spec), str(files.out), str(os.getpid()))
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with files.errors.open("wb") as errors:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment,
            process_group=0,  # Ctrl-C reaches the search alone, which decides
        )  # fmt: skip


class TrialProcess:
    """Starts or resumes a trial.

    Args:
        number: the number of the trial.
        experiment: its experiment.
        folder: its run folder.
        prepared: the prepared data that all trials share.
        start: starts its process.
    """

    def __init__(self, number: int, experiment: Experiment, folder: Path, prepared: Path, start: Start) -> None:
        folder = folder.resolve()
        self.number, self.experiment, self.folder = number, experiment, folder
        self.started = time.monotonic()
        self._files = TrialFiles.of(folder)
        for path in (self._files.out, self._files.stop):
            path.unlink(missing_ok=True)
        values = experiment.model_dump(mode="json")
        write_json(self._files.spec, {"experiment": values, "prepared": str(prepared.resolve()), "run": str(folder)})
        self._process = start(self._files)
        self._seen_bytes, self._seen_step = -1, 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def evaluations(self) -> list[dict[str, Any]]:
        """Returns the records of evaluations on validation since the last call; at first, all."""
        path = self.folder / METRICS_FILE
        written = path.stat().st_size if path.exists() else 0
        if written == self._seen_bytes:
            return []
        self._seen_bytes = written
        found = [record for record in read_metrics_log(path) if record["split"] == "validation"]
        records = [record for record in found if record["step"] > self._seen_step]
        self._seen_step = max((record["step"] for record in records), default=self._seen_step)
        return [{key: math.nan if value is None else value for key, value in each.items()} for each in records]

    def ended(self) -> Ended | None:
        """Returns how the process ended; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        files = self._files
        result = read_json_object(files.out, _DAMAGE) if files.out.exists() else {}
        lines = files.errors.read_text(encoding="utf-8", errors="replace").splitlines()
        return Ended(result, status, "\n".join(lines[-_TAIL_LINES:]))

    def stop(self) -> None:
        """Has the trial save its state and end."""
        self._process.stop()

    def kill(self) -> None:
        """Ends the process at once, and waits for that."""
        self._process.kill()


def discard(folder: Path, *, keep_run: bool = False) -> None:
    """Deletes the run folder of a trial that has ended, unless it is to be kept, and the files beside it."""
    if not keep_run:
        shutil.rmtree(folder, ignore_errors=True)
    files = TrialFiles.of(folder)
    for path in (files.spec, files.out, files.errors, files.stop):
        path.unlink(missing_ok=True)
