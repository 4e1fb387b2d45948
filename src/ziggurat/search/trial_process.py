"""A trial that runs in a process of its own, seen from the search: its figures as they come, and how it ends."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ziggurat.core.files import write_json
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.run_files import METRICS_FILE

_TAIL_LINES = 15


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


class TrialProcess:
    """Starts or resumes a trial.

    Args:
        number: the number of the trial.
        experiment: its experiment.
        folder: its run folder.
        prepared: the prepared data that all trials share.
        threads: threads of torch, unless ``training.threads`` says another number.
    """

    def __init__(self, number: int, experiment: Experiment, folder: Path, prepared: Path, threads: int) -> None:
        self.number, self.experiment, self.folder = number, experiment, folder
        self.started = time.monotonic()
        self._out, self._spec, self._errors = (scratch(folder, ending) for ending in ("out.json", "json", "txt"))
        self._out.unlink(missing_ok=True)
        values = experiment.model_dump(mode="json")
        spec = {"experiment": values, "prepared": str(prepared), "run": str(folder), "parent": os.getpid()}
        write_json(self._spec, spec)
        command = [sys.executable, "-m", "ziggurat.search.trial", str(self._spec), str(self._out)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment,
                process_group=0,  # Ctrl-C reaches the search alone, which decides
            )  # fmt: skip
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
        result = json.loads(self._out.read_text(encoding="utf-8")) if self._out.exists() else {}
        lines = self._errors.read_text(encoding="utf-8", errors="replace").splitlines()
        return Ended(result, status, "\n".join(lines[-_TAIL_LINES:]))

    def stop(self) -> None:
        """Has the trial save its state and end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Ends the process at once, and waits for that."""
        self._process.kill()
        self._process.wait()


def scratch(folder: Path, ending: str) -> Path:
    """Returns the path of a file beside the run folder of a trial."""
    return folder.with_name(f"{folder.name}.{ending}")


def discard(folder: Path, *, keep_run: bool = False) -> None:
    """Deletes the run folder of a trial that has ended, unless it is to be kept, and the files beside it."""
    if not keep_run:
        shutil.rmtree(folder, ignore_errors=True)
    for ending in ("out.json", "json", "txt"):
        scratch(folder, ending).unlink(missing_ok=True)
