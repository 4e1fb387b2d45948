"""Runs trainings in parallel, one per core, and stores each outcome, so that an interrupted leaderboard resumes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import provenance
from bench.quality.board import ROOT
from bench.quality.trial import train
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.core.files import write_json
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.features.preparation.prepare import dataset_fingerprint
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

SOURCES = ("bench/quality/trial.py",)
"""The code on which the outcome of a training depends."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A training: its name in messages, and its experiment."""

    name: str
    experiment: Experiment


def prepared(experiment: Experiment, folder: Path) -> Dataset:
    """Returns the dataset of a trial, which those of a leaderboard with the same features share, and prepares it in
    ``folder`` if it is missing."""
    digest = dataset_fingerprint(experiment.data, experiment.features)[:8]
    return api.prepare(experiment, folder / f"prepared-{digest}")


def run_trials(
    trials: Sequence[Trial], dataset: Dataset, folder: Path, say: Callable[[str], None]
) -> Iterator[tuple[Trial, dict[str, Any]]]:
    """Yields each trial with its outcome (see :func:`bench.quality.trial.train`) when it ends.

    Args:
        trials: the trainings, each on one thread.
        dataset: the dataset to train on; trials with other features have their own beside it.
        folder: the folder of stored outcomes, which are reused for the same config, data and sources.
        say: a function that is called with a line for each ended trial.

    Raises:
        EnvironmentMismatch: a training failed; the message quotes the end of its error output.
    """
    kept = folder / "trials"
    kept.mkdir(parents=True, exist_ok=True)
    sources = provenance.digest(ROOT, SOURCES)
    done = 0
    datasets = {trial.name: _own(trial, dataset) for trial in trials}
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = {pool.submit(_run, trial, datasets[trial.name], kept, sources): trial for trial in trials}
        try:
            for future in as_completed(running):
                trial, outcome = running[future], future.result()
                done += 1
                say(f"{done}/{len(trials)} {trial.name}: {_summary(outcome)}")
                yield trial, outcome
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_quickly(trials: Sequence[Trial], dataset: Dataset) -> Iterator[tuple[Trial, dict[str, Any]]]:
    """Yields the same for a smoke run: trials run one after another in this process, and no outcome is stored."""
    for trial in trials:
        with tempfile.TemporaryDirectory(prefix="trial-") as scratch:
            spec = {
                "experiment": trial.experiment.model_dump(mode="json"),
                "prepared": str(_own(trial, dataset).folder),
            }
            yield trial, train(spec, Path(scratch))


def _own(trial: Trial, dataset: Dataset) -> Dataset:
    """Returns the dataset of a trial's features: ``dataset``, or one in the same folder."""
    return prepared(trial.experiment, dataset.folder.parent)


def _run(trial: Trial, dataset: Dataset, kept: Path, sources: str) -> dict[str, Any]:
    values = trial.experiment.model_dump(mode="json")
    raw = {"folder": "."}  # the location of the raw data does not matter, as the fingerprint covers its content
    content = [{**values, "data": {**values["data"], **raw}}, dataset.fingerprint, sources]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:24]
    out = kept / f"{key}.json"
    if not out.exists():
        spec = kept / f"{key}.spec.json"
        write_json(spec, {"experiment": values, "prepared": str(dataset.folder.resolve())})
        command = [sys.executable, "-m", "bench.quality.trial", str(spec), str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode != 0:
            tail = "\n".join(ended.stderr.splitlines()[-15:])
            raise EnvironmentMismatch(
                f"{trial.name} ended with status {ended.returncode}:\n{tail}", f"run it by hand: {' '.join(command)}"
            )
        spec.unlink()
    return json.loads(out.read_text(encoding="utf-8"))


def judged(figures: Mapping[str, float]) -> dict[str, float]:
    """Returns AUC and log-loss, or RMSE, for each task if there are several."""
    return {name: value for name, value in figures.items() if name.rpartition("/")[2] in {"auc", "log_loss", "rmse"}}


def _summary(outcome: dict[str, Any]) -> str:
    shown = [
        f"{split} {name} {value:.5f}"
        for split in ("validation", "test")
        for name, value in judged(outcome["figures"][split]).items()
    ]
    return f"{', '.join(shown)}, {outcome['seconds']:.0f} s"
