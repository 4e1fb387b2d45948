"""The results of a scaling sweep: what ``scale.json`` stores, and the power law fitted to it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ziggurat.core.sealed import declared, write_sealed_json
from ziggurat.metrics.power_law import PowerLawFit, fit_power_law
from ziggurat.training.run_folder.run import SWEEP_FILE
from ziggurat.training.scaling.json_values import (
    FORMAT_VERSION,
    REWRITE,
    SIZES_KEY,
    fit_values,
    read_sweep,
    with_nan,
    without_nan,
)
from ziggurat.training.scaling.model_sizes import Size

MIN_SIZES = 3
"""The smallest number of model sizes for a law, which has three constants."""
NARROW_RATIO = 10.0
"""The ratio of the largest size's FLOPs to the smallest's below which the law says little about other sizes."""

Judged = Literal["test", "validation"]
"""The splits that a law can be fitted on."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """One finished run.

    Attributes:
        seed: the seed that it was trained with.
        folder: its run folder, relative to the folder of the sweep.
        steps: the number of optimizer steps.
        examples: the number of rows trained on, counting repetitions.
        training_flops: 3 × forward FLOPs × examples; the backward pass counts as two forward passes.
        seconds: the duration of training alone, in seconds.
        figures: split → metric → value, of the best checkpoint; nan if undefined.
    """

    seed: int
    folder: str
    steps: int
    examples: int
    training_flops: int
    seconds: float
    figures: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class DivergedRun:
    """A run whose loss became NaN or infinite. It is left out of the fit; the next call of ``scale`` tries it again.

    Attributes:
        seed: the seed that it was trained with.
        folder: its run folder, relative to the folder of the sweep.
        reason: what happened, for messages.
    """

    seed: int
    folder: str
    reason: str


@dataclass(frozen=True, slots=True)
class SizeResult:
    """The results of one model size.

    Attributes:
        number: the position of the size in the sweep, counted from 1.
        model: the config of its model.
        size: the cost of its model.
        runs: the finished runs.
        diverged: the runs that diverged.
    """

    number: int
    model: Mapping[str, Any]
    size: Size
    runs: tuple[RunResult, ...]
    diverged: tuple[DivergedRun, ...] = ()

    def mean(self, split: str, metric: str) -> float:
        """Returns the mean of a metric over the seeds, and over the tasks if there are several; nan without any run."""
        values = self.values(split, metric)
        return sum(values) / len(values) if values else math.nan

    def values(self, split: str, metric: str) -> list[float]:
        """Returns a metric for each seed; its mean over the tasks if there are several."""
        return [_figure(run.figures.get(split, {}), metric) for run in self.runs]


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """The results of a scaling sweep, which may still lack runs.

    Attributes:
        name: the name of the experiment.
        split: the split on which the law is fitted.
        dataset: the fingerprint of the prepared data.
        seeds: the number of seeds that the last call requested for each size; a size may have more runs, from earlier
            calls.
        sizes: the results of each model size, by growing size.
        config: the resolved experiment of the first size.
    """

    name: str
    split: Judged
    dataset: str
    seeds: int
    sizes: tuple[SizeResult, ...]
    config: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The name of the model; if the sizes have different models, all their names in the order of the sizes."""
        names = dict.fromkeys(str(entry.model["name"]) for entry in self.sizes if "name" in entry.model)
        return " → ".join(names) or str(self.config["model"]["name"])

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that log-loss is averaged over; empty if there is only one task."""
        runs = [run for entry in self.sizes for run in entry.runs]
        figures = {name: None for run in runs for name in run.figures.get(self.split, {})}
        return tuple(name.removesuffix("/log_loss") for name in figures if _is_of_task(name, "log_loss"))

    @property
    def finished_runs(self) -> int:
        """The number of finished runs of all sizes."""
        return sum(len(entry.runs) for entry in self.sizes)

    @property
    def finished(self) -> tuple[SizeResult, ...]:
        """The sizes that have at least one finished run."""
        return tuple(entry for entry in self.sizes if entry.runs)

    def fit(self, resamples: int = 1000) -> PowerLawFit | None:
        """Fits log-loss over forward FLOPs per example; returns None if fewer than three sizes have a finished run.

        Args:
            resamples: the number of bootstrap resamples.

        Raises:
            DataError: the log-loss of a size is undefined.
        """
        entries = self.finished
        if len(entries) < MIN_SIZES:
            return None
        losses = [entry.values(self.split, "log_loss") for entry in entries]
        return fit_power_law([entry.size.flops for entry in entries], losses, resamples=resamples)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What limits the law, as sentences: each run that diverged, and sizes that are close together."""
        found = [
            f"Size {entry.number}, seed {run.seed}, diverged and is left out: {run.reason}. A lower "
            "optimizer.lr may help; with --sizes-file FILE a size can have its own."
            for entry in self.sizes
            for run in entry.diverged
        ]
        flops = [entry.size.flops for entry in self.finished]
        if len(flops) >= MIN_SIZES and max(flops) < NARROW_RATIO * min(flops):
            ratio = max(flops) / min(flops)
            found.append(
                f"The largest size is only {ratio:.1f} times the smallest: the law says little about other sizes."
            )
        return tuple(found)

    def save(self, folder: str | Path, fit: PowerLawFit | None = None) -> None:
        """Writes ``scale.json`` atomically.

        Args:
            folder: the folder of the sweep.
            fit: the fitted law, if there is one.
        """
        fields = {SIZES_KEY if name == "sizes" else name: value for name, value in asdict(self).items()}
        values = {"format_version": FORMAT_VERSION, **fields, "fit": None if fit is None else fit_values(fit)}
        write_sealed_json(Path(folder) / SWEEP_FILE, without_nan(values))

    @classmethod
    def load(cls, folder: str | Path) -> ScaleResult:
        """Reads the results that :meth:`save` wrote.

        Args:
            folder: the folder of the sweep.

        Raises:
            RunFolderError: the file is missing, damaged or has another format version.
        """
        path = Path(folder) / SWEEP_FILE
        stored = declared(_Stored, read_sweep(folder), path, REWRITE)
        if not isinstance(stored.config.get("model"), dict) or "name" not in stored.config["model"]:
            raise REWRITE.of(path, "its config does not name a model")
        sizes = tuple(entry.result() for entry in stored.rungs)
        return cls(stored.name, stored.split, stored.dataset, stored.seeds, sizes, stored.config)


@dataclass(frozen=True, slots=True)
class _StoredRun:
    """A run in ``scale.json``."""

    seed: int
    folder: str
    steps: int
    examples: int
    training_flops: int
    seconds: float
    figures: dict[str, dict[str, float | None]]


@dataclass(frozen=True, slots=True)
class _StoredSize:
    """A model size in ``scale.json``."""

    number: int
    model: dict[str, Any]
    size: Size
    runs: tuple[_StoredRun, ...]
    diverged: tuple[DivergedRun, ...] = ()

    def result(self) -> SizeResult:
        runs = [
            RunResult(
                each.seed,
                each.folder,
                each.steps,
                each.examples,
                each.training_flops,
                each.seconds,
                with_nan(each.figures),
            )
            for each in self.runs
        ]
        return SizeResult(self.number, self.model, self.size, tuple(runs), self.diverged)


@dataclass(frozen=True, slots=True)
class _Stored:
    """The content of ``scale.json``."""

    name: str
    split: Judged
    dataset: str
    seeds: int
    rungs: tuple[_StoredSize, ...]
    config: dict[str, Any]


def _figure(figures: Mapping[str, float], metric: str) -> float:
    """Returns the value of a metric, or its mean over the tasks; nan if there is none."""
    if metric in figures:
        return figures[metric]
    found = [value for name, value in figures.items() if _is_of_task(name, metric)]
    return sum(found) / len(found) if found else math.nan


def _is_of_task(name: str, metric: str) -> bool:
    """Returns whether ``name`` is the metric of one task, as in ``click/log_loss``."""
    return name.count("/") == 1 and name.endswith(f"/{metric}")
