"""What a ladder of runs amounted to: ``scale.json``, and the power law through it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import write_json
from ziggurat.metrics.power_law import PowerLawFit, fit_power_law
from ziggurat.training.rungs import Size

SCALE_FILE = "scale.json"
FORMAT_VERSION = 1
FEWEST_RUNGS = 3
"""Of different sizes, for a law of three constants."""

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
class RungResult:
    """A size, its model's config, and its finished runs."""

    number: int
    model: Mapping[str, Any]
    size: Size
    runs: tuple[RunResult, ...]

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
        seeds: how many each rung is to be trained with.
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
        return str(self.config["model"]["name"])

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

    def save(self, folder: Path, fit: PowerLawFit | None = None) -> None:
        """Write ``scale.json`` into ``folder``, whole or not at all."""
        values = {"format_version": FORMAT_VERSION, **asdict(self), "fit": None if fit is None else _described(fit)}
        write_json(folder / SCALE_FILE, _without_nan(values))

    @classmethod
    def load(cls, folder: str | Path) -> ScaleResult:
        """What :meth:`save` wrote.

        Raises:
            RunFolderError: there is none, or of another version.
        """
        path = Path(folder) / SCALE_FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            mend = "train a ladder into it: `ziggurat scale exp.yaml --run FOLDER`"
            raise RunFolderError(f"{folder}: no ladder ({SCALE_FILE} is missing)", mend) from None
        except (OSError, ValueError) as error:
            raise RunFolderError(f"{path}: cannot be read: {error}", "run `ziggurat scale` on it again") from None
        version = values.pop("format_version", None)
        if version != FORMAT_VERSION:
            raise RunFolderError(
                f"{path}: format {version!r}, this ziggurat reads {FORMAT_VERSION}", "run `ziggurat scale` on it again"
            )
        values.pop("fit")
        rungs = tuple(_rung(rung) for rung in values.pop("rungs"))
        return cls(**values, rungs=rungs)


def _rung(values: dict[str, Any]) -> RungResult:
    runs: list[RunResult] = []
    for run in values["runs"]:
        figures = _with_nan(run.pop("figures"))
        runs.append(RunResult(**run, figures=figures))
    return RungResult(values["number"], values["model"], Size(**values["size"]), tuple(runs))


def _figure(figures: Mapping[str, float], metric: str) -> float:
    """The figure, or its mean over tasks."""
    if metric in figures:
        return figures[metric]
    found = [value for name, value in figures.items() if name.count("/") == 1 and name.endswith(f"/{metric}")]
    return sum(found) / len(found) if found else math.nan


def _described(fit: PowerLawFit) -> dict[str, Any]:
    constants: dict[str, Any] = {}
    for name in ("floor", "scale", "exponent"):
        low, high = fit.interval(name)
        constants[name] = {"value": getattr(fit.law, name), "low": low, "high": high}
    return {
        **constants,
        "r2_log": fit.r2_log,
        "trend_p": fit.trend_p,
        "resamples": len(fit.draws),
        "visible": fit.visible,
        "verdict": fit.verdict,
    }


def _without_nan(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_nan(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_nan(item) for item in value]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def _with_nan(figures: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    return {
        split: {name: math.nan if value is None else value for name, value in values.items()}
        for split, values in figures.items()
    }
