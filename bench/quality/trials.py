"""Many trainings, as many at once as there are cores; each is kept, so that an interrupted board goes on."""

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
"""What a training's outcome depends on, besides its config and the data."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A training to be done: a name for the reader, and what to train."""

    name: str
    experiment: Experiment


def prepared(experiment: Experiment, folder: Path) -> Dataset:
    """The dataset that all trials of a board share, under ``folder``; made if it is not there."""
    digest = dataset_fingerprint(experiment.data, experiment.features)[:8]
    return api.prepare(experiment, folder / f"prepared-{digest}")


def run_trials(
    trials: Sequence[Trial], dataset: Dataset, folder: Path, say: Callable[[str], None]
) -> Iterator[tuple[Trial, dict[str, Any]]]:
    """Each trial with its outcome (see :func:`bench.quality.trial.train`), as they end.

    Args:
        trials: what to train; each on one thread.
        dataset: on what.
        folder: where outcomes are kept; what it holds of the same config, data and sources is not trained again.
        say: called with a line for each trial that ended.

    Raises:
        EnvironmentMismatch: a training failed; the end of its error output is quoted.
    """
    kept = folder / "trials"
    kept.mkdir(parents=True, exist_ok=True)
    sources = provenance.digest(ROOT, SOURCES)
    done = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = {pool.submit(_run, trial, dataset, kept, sources): trial for trial in trials}
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
    """The same one after another in this process, keeping nothing: for a smoke run."""
    for trial in trials:
        with tempfile.TemporaryDirectory(prefix="trial-") as scratch:
            spec = {"experiment": trial.experiment.model_dump(mode="json"), "prepared": str(dataset.folder)}
            yield trial, train(spec, Path(scratch))


def _run(trial: Trial, dataset: Dataset, kept: Path, sources: str) -> dict[str, Any]:
    values = trial.experiment.model_dump(mode="json")
    raw = {"folder": "."}  # where the raw data lies changes nothing; what is in it is in the fingerprint
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
    """AUC and log-loss, of each task where there are several."""
    return {name: value for name, value in figures.items() if name.rpartition("/")[2] in {"auc", "log_loss"}}


def _summary(outcome: dict[str, Any]) -> str:
    shown = [
        f"{split} {name} {value:.5f}"
        for split in ("validation", "test")
        for name, value in judged(outcome["figures"][split]).items()
    ]
    return f"{', '.join(shown)}, {outcome['seconds']:.0f} s"
