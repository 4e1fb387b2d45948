"""What a ladder of runs amounted to: ``scale.json``, and the power law through it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ziggurat.core.files import write_json
from ziggurat.metrics.power_law import PowerLawFit, fit_power_law
from ziggurat.training.run import LADDER_FILE
from ziggurat.training.scaling.json_values import FORMAT_VERSION, described, read_ladder, with_nan, without_nan
from ziggurat.training.scaling.model_sizes import Size

FEWEST_RUNGS = 3
"""Of different sizes, for a law of three constants."""
NARROW = 10.0
"""Times between the smallest and the largest size below which a law says little about others."""

Judged = Literal["test", "validation"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """One finished run.

    Attributes:
        seed: that it was trained with.
        folder: its run folder, relative to the ladder's.
        steps: optimizer steps.
        examples: rows trained on, counting repetitions.
        training_flops: 3 × forward FLOPs × examples, the backward pass counting as two forward ones.
        seconds: of training alone.
        figures: split → figure → value, of the best checkpoint; nan where undefined.
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
    """A run whose loss became no number; it counts for nothing, and the next call of ``scale`` tries it again."""

    seed: int
    folder: str
    reason: str


@dataclass(frozen=True, slots=True)
class RungResult:
    """A size, its model's config, its finished runs and those that diverged."""

    number: int
    model: Mapping[str, Any]
    size: Size
    runs: tuple[RunResult, ...]
    diverged: tuple[DivergedRun, ...] = ()

    def mean(self, split: str, metric: str) -> float:
        """The mean of a figure over the seeds; of several tasks, over them as well. nan where there is none."""
        values = self.values(split, metric)
        return sum(values) / len(values) if values else math.nan

    def values(self, split: str, metric: str) -> list[float]:
        """The figure of each seed."""
        return [_figure(run.figures.get(split, {}), metric) for run in self.runs]


@dataclass(frozen=True, slots=True)
class ScaleResult:
    """A ladder as far as it is trained.

    Attributes:
        name: of the experiment.
        split: on which the law is fitted.
        dataset: fingerprint of the prepared data.
        seeds: how many each rung was last asked to be trained with; a rung may have more runs, from before.
        rungs: by growing size.
        config: the experiment of the first rung, resolved.
    """

    name: str
    split: Judged
    dataset: str
    seeds: int
    rungs: tuple[RungResult, ...]
    config: Mapping[str, Any]

    @property
    def model(self) -> str:
        """The model's name; of a ladder that changes it, all names from the first rung on."""
        names = dict.fromkeys(str(rung.model["name"]) for rung in self.rungs if "name" in rung.model)
        return " → ".join(names) or str(self.config["model"]["name"])

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks over which log-loss is a mean; none where there is but one."""
        figures = {name: None for rung in self.rungs for run in rung.runs for name in run.figures.get(self.split, {})}
        return tuple(name.removesuffix("/log_loss") for name in figures if _is_of_task(name, "log_loss"))

    @property
    def finished_runs(self) -> int:
        return sum(len(rung.runs) for rung in self.rungs)

    @property
    def finished(self) -> tuple[RungResult, ...]:
        """The rungs that have at least one finished run."""
        return tuple(rung for rung in self.rungs if rung.runs)

    def fit(self, resamples: int = 1000) -> PowerLawFit | None:
        """Log-loss over forward FLOPs per example; None with fewer than three rungs.

        Raises:
            DataError: a rung's log-loss is undefined.
        """
        rungs = self.finished
        if len(rungs) < FEWEST_RUNGS:
            return None
        losses = [rung.values(self.split, "log_loss") for rung in rungs]
        return fit_power_law([rung.size.flops for rung in rungs], losses, resamples=resamples)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What limits the law, a sentence each: runs that diverged, sizes that lie close together."""
        found = [
            f"Rung {rung.number}, seed {run.seed}, diverged and is left out: {run.reason}. A lower "
            "optimizer.lr may help; --sizes-file FILE gives a rung its own."
            for rung in self.rungs
            for run in rung.diverged
        ]
        sizes = [rung.size.flops for rung in self.finished]
        if len(sizes) >= FEWEST_RUNGS and max(sizes) < NARROW * min(sizes):
            ratio = max(sizes) / min(sizes)
            found.append(f"The largest size is only {ratio:.1f} times the smallest: the law says little beyond them.")
        return tuple(found)

    def save(self, folder: Path, fit: PowerLawFit | None = None) -> None:
        """Write ``scale.json`` into ``folder``, whole or not at all."""
        values = {"format_version": FORMAT_VERSION, **asdict(self), "fit": None if fit is None else described(fit)}
        write_json(folder / LADDER_FILE, without_nan(values))

    @classmethod
    def load(cls, folder: str | Path) -> ScaleResult:
        """What :meth:`save` wrote.

        Raises:
            RunFolderError: there is none, or of another version.
        """
        values = read_ladder(folder)
        values.pop("fit")
        rungs = tuple(_rung(rung) for rung in values.pop("rungs"))
        return cls(**values, rungs=rungs)


def _rung(values: dict[str, Any]) -> RungResult:
    runs: list[RunResult] = []
    for run in values["runs"]:
        figures = with_nan(run.pop("figures"))
        runs.append(RunResult(**run, figures=figures))
    diverged = tuple(DivergedRun(**run) for run in values.get("diverged", ()))
    return RungResult(values["number"], values["model"], Size(**values["size"]), tuple(runs), diverged)


def _figure(figures: Mapping[str, float], metric: str) -> float:
    """The figure, or its mean over tasks."""
    if metric in figures:
        return figures[metric]
    found = [value for name, value in figures.items() if _is_of_task(name, metric)]
    return sum(found) / len(found) if found else math.nan


def _is_of_task(name: str, metric: str) -> bool:
    return name.count("/") == 1 and name.endswith(f"/{metric}")
