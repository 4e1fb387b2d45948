"""One log of the collection in its own process: `python -m bench.quality.default_trial SPEC.json OUT.json`.

It reads a :class:`Spec` from SPEC.json, infers the config as ``ziggurat init`` does, prepares, trains and evaluates, or
searches settings first, or trains the baselines on the same prepared data, and writes the outcome to OUT.json.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ziggurat.cli.init import draft_config
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.files import write_json
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.report.baselines.compare import baseline_data, evaluate_baseline
from ziggurat.report.baselines.data import BaselineData, BaselineResult
from ziggurat.report.baselines.lightgbm_trials import fit_lightgbm, refit_lightgbm
from ziggurat.report.baselines.logistic_regression import fit_logistic_regression
from ziggurat.search.hyperparameters import search_hyperparameters
from ziggurat.search.outputs import BEST_FILE
from ziggurat.training import api
from ziggurat.training.experiment import Experiment, load_experiment, parse_experiment

MEMBERS = 5
"""How many of the best trials of a search are considered for its ensemble."""


@dataclass(frozen=True, slots=True)
class Spec:
    """What a process does.

    Attributes:
        files: the files of the log.
        label: its label; None for those that ``init`` finds.
        seeds: the seeds to train with, one after the other.
        threads: threads of torch and of the baselines.
        changes: dotted key -> value, set in the config of ``init``; a smoke run and trials of rules have some.
        baselines: whether to train the baselines in place of our model.
        trials: LightGBM's number of trials.
        search: trials of ``ziggurat search hyperparameters``, whose best config is trained in place of that of
            ``init``; 0 for none.
        timed: LightGBM's settings for each label; what is measured is then the seconds of a training with the first
            seed and of one fit of these settings, and nothing else.
    """

    files: list[str]
    label: str | None
    seeds: list[int]
    threads: int
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    baselines: bool = False
    trials: int = 20
    search: int = 0
    timed: Mapping[str, Any] | None = None


def run(spec: Spec, scratch: Path) -> list[dict[str, Any]]:
    """Returns an outcome for each seed: of our model its figures, of the baselines those of each by its name.

    The first outcome of a searched run also has the figures of the search's ``ensemble``. A timed run has one outcome:
    ``seconds`` of our model, ``fits`` with those of LightGBM by label, ``load`` of the machine before.
    """
    load = os.getloadavg()[0]
    torch.set_num_threads(spec.threads)
    started = time.perf_counter()
    text = draft_config(spec.files, spec.label)
    values = parse_experiment(text.encode(), scratch / "init.yaml").model_dump(mode="json")
    values["training"]["threads"] = spec.threads
    for key, value in spec.changes.items():
        set_by_path(values, key, value)
    experiment = parse_config(Experiment, values, "the config of init")
    dataset = api.prepare(experiment, scratch / "prepared")
    before = time.perf_counter() - started
    if spec.baselines:
        return _baselines(spec, experiment, dataset)
    if spec.timed is not None:
        ours = _train(experiment, dataset, spec.seeds[0], scratch / "run", before)
        return [{"seconds": ours["seconds"], "fits": _fits(spec, spec.timed, experiment, dataset), "load": load}]
    together: dict[str, Any] = {}
    if spec.search:
        experiment, together["ensemble"] = _searched(spec, experiment, dataset, scratch / "search")
        before = time.perf_counter() - started
    outcomes = [_train(experiment, dataset, seed, scratch / f"run-{seed}", before) for seed in spec.seeds]
    outcomes[0] |= together
    return outcomes


def _fits(spec: Spec, settings: Mapping[str, Any], experiment: Experiment, dataset: Dataset) -> dict[str, float]:
    """Returns label -> seconds of one fit of LightGBM with its settings."""
    fits: dict[str, float] = {}
    for task in experiment.tasks(dataset.schema):
        data = baseline_data(dataset, "test", task)
        started = time.perf_counter()
        refit_lightgbm(data, settings[task.name], spec.seeds[0], spec.threads)
        fits[task.name] = time.perf_counter() - started
    return fits


def _searched(
    spec: Spec, experiment: Experiment, dataset: Dataset, folder: Path
) -> tuple[Experiment, dict[str, dict[str, dict[str, float]]]]:
    """Searches with the first seed, a thread to each trial.

    Returns:
        The best config; the figures of the ensemble of the best trials, by label and split.
    """
    training = experiment.training.model_copy(update={"seed": spec.seeds[0], "threads": 1})
    experiment = experiment.model_copy(update={"training": training})
    found = search_hyperparameters(
        experiment, folder, trials=spec.search, jobs=spec.threads, seed=spec.seeds[0], prepared=dataset.folder,
        ensemble=min(MEMBERS, spec.search),
    )  # fmt: skip
    assert found.missing == 0
    assert found.ensemble is not None
    best = load_experiment(folder / BEST_FILE)
    best = best.model_copy(update={"training": best.training.model_copy(update={"threads": spec.threads})})
    figures = {"validation": found.ensemble.validation, "test": found.ensemble.test}
    return best, _by_label(figures, [label.name for label in experiment.data.labels])


def _train(experiment: Experiment, dataset: Dataset, seed: int, folder: Path, before: float) -> dict[str, Any]:
    """Returns the figures of a training, and its seconds with those ``before``."""
    started = time.perf_counter()
    training = experiment.training.model_copy(update={"seed": seed})
    outcome = api.train(
        experiment.model_copy(update={"training": training}), run_folder=folder, prepared=dataset.folder
    )
    assert outcome.results is not None
    return {
        "seed": seed,
        "seconds": before + time.perf_counter() - started,
        "steps": outcome.step,
        "best_step": outcome.results["best_step"],
        "figures": _by_label(outcome.results["figures"], [label.name for label in experiment.data.labels]),
        "rows": {split: dataset.split(split).rows for split in ("train", "validation", "test")},
    }


def _by_label(figures: Mapping[str, Mapping[str, float]], labels: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Returns label -> split -> figure -> value."""

    def own(label: str, values: Mapping[str, float]) -> dict[str, float]:
        prefix = f"{label}/" if len(labels) > 1 else ""
        return {name.removeprefix(prefix): value for name, value in values.items() if name.startswith(prefix)}

    return {label: {split: own(label, values) for split, values in figures.items()} for label in labels}


def _baselines(spec: Spec, experiment: Experiment, dataset: Dataset) -> list[dict[str, Any]]:
    first, threads = spec.seeds[0], spec.threads
    outcomes: list[dict[str, Any]] = [{"seed": seed} for seed in spec.seeds]
    for task in experiment.tasks(dataset.schema):
        data = baseline_data(dataset, "test", task)
        tuned = fit_lightgbm(data, first, threads, trials=spec.trials)
        linear = fit_logistic_regression(data, first, threads)
        for outcome in outcomes:
            again = refit_lightgbm(data, tuned.settings, outcome["seed"], threads)
            outcome[task.name] = {
                "lightgbm": _figures(again if outcome["seed"] != first else tuned, data),
                "logistic_regression": _figures(linear, data),
                "settings": tuned.settings,
            }
    return outcomes


def _figures(result: BaselineResult, data: BaselineData) -> dict[str, float]:
    row = evaluate_baseline(result, data.task, data.test)
    return {**row.figures, "validation_log_loss": result.validation_loss}


def main(spec: str, out: str) -> None:
    """Runs one spec from the command line."""
    values = json.loads(Path(spec).read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="default-") as scratch:
        outcomes = run(Spec(**values), Path(scratch))
    write_json(Path(out), {"spec": dataclasses.asdict(Spec(**values)), "outcomes": outcomes})


if __name__ == "__main__":
    main(*sys.argv[1:])
