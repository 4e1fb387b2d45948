"""Judges pipelines by training the experiment's own model with them: one evaluation is one training.

Each is prepared and trained in ``FOLDER/trials/KEY`` by a process of its own, and judged by the monitored metric on
the validation split. It has one score, not one for each fold; another ``repeat`` trains with another seed. The test
split is not evaluated.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.core.progress import Silent
from ziggurat.metrics.names import higher_is_better
from ziggurat.search.pipelines.evaluation import Assignment, Result, key_of
from ziggurat.search.pipelines.experiment_table import with_pipelines
from ziggurat.search.trial_process import LocalProcess, TrialProcess, discard
from ziggurat.training.experiment import Experiment
from ziggurat.training.preparation import prepare
from ziggurat.training.train_state import monitored

_POLL_S = 0.1
_OF_THE_PIPELINES = frozenset({"ConfigError", "InvalidSection", "DivergedError", "OutOfMemory", "FeatureError"})


class ModelJudges:
    """Trains the model for each evaluation, ``jobs`` at a time.

    Args:
        experiment: the experiment whose features are replaced.
        folder: where datasets and runs are while they are needed.
        jobs: trainings at a time.
        threads: threads of each.
    """

    def __init__(self, experiment: Experiment, folder: Path, jobs: int, threads: int) -> None:
        self.experiment, self.folder, self.jobs = experiment, folder / "trials", jobs
        self.start = partial(LocalProcess, threads=threads)
        self.sign = 1.0 if higher_is_better(experiment.training.monitor) else -1.0
        self._running: dict[int, tuple[TrialProcess, Path]] = {}

    def __enter__(self) -> ModelJudges:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        for process, _ in self._running.values():
            process.kill()

    def results(
        self, asked: Sequence[tuple[Assignment, int]], stopped: Callable[[], bool]
    ) -> Iterator[tuple[int, Result]]:
        """Yields as :class:`~ziggurat.search.pipelines.workers.Judges`; once stopped, runs save and end."""
        waiting = list(enumerate(asked))
        while waiting or self._running:
            if stopped():
                self._stop()
                return
            if waiting and len(self._running) < self.jobs:
                place, (assignment, repeat) = waiting.pop(0)
                failed = self._begin(place, assignment, repeat)
                if failed is not None:
                    yield place, failed
                continue
            time.sleep(_POLL_S)
            for place, (process, folder) in list(self._running.items()):
                result = self._ended(process)
                if result is not None:
                    del self._running[place]
                    discard(folder / "run")
                    shutil.rmtree(folder, ignore_errors=True)
                    yield place, result

    def _begin(self, place: int, assignment: Assignment, repeat: int) -> Result | None:
        """Prepares the data and starts a training; returns why that is not possible."""
        folder = self.folder / key_of(assignment, repeat)
        began = time.monotonic()
        try:
            made = with_pipelines(self.experiment, assignment, self.experiment.name)
            training = made.training.model_copy(update={"seed": made.training.seed + repeat})
            made = made.model_copy(update={"training": training})
            folder.mkdir(exist_ok=True)
            dataset = prepare(made, folder=folder / "prepared", progress=Silent())
        except ConfigError as error:
            return Result((), time.monotonic() - began, error.problem.splitlines()[0])
        process = TrialProcess(place, made, folder / "run", dataset.folder, self.start)
        self._running[place] = process, folder
        return None

    def _ended(self, process: TrialProcess) -> Result | None:
        ended = process.ended()
        if ended is None:
            return None
        if "figures" in ended.result:
            figures = {key: math.nan if value is None else value for key, value in ended.result["figures"].items()}
            value = monitored(figures, self.experiment.training.monitor, process.experiment.tasks())
            if math.isfinite(value):
                return Result((self.sign * value,), process.seconds)
            return Result((), process.seconds, f"{self.experiment.training.monitor} is undefined on validation")
        error = ended.result.get("error")
        if error is not None and error["kind"] in _OF_THE_PIPELINES:
            return Result((), process.seconds, error["problem"].splitlines()[0])
        problem = error["problem"] if error is not None else f"ended with status {ended.status}:\n{ended.tail}"
        raise EnvironmentMismatch(
            f"a training of the search {problem}", "correct what it says; the same command resumes the search"
        )

    def _stop(self) -> None:
        for process, _ in self._running.values():
            process.stop()
        for process, _ in self._running.values():
            while process.ended() is None:
                time.sleep(_POLL_S)
        self._running.clear()
