"""Titles that distinguish sweeps on one page, and the check that sweeps can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.report.scaling.chart import COLOURS
from ziggurat.training.scaling.result import ScaleResult


def titles(results: Sequence[ScaleResult], folders: Sequence[Path] = ()) -> list[str]:
    """Returns the model of each sweep; with the experiment if models repeat, and with the folder if both repeat.

    Args:
        results: the results of each sweep.
        folders: the folder of each sweep; without them, sweeps of the same model and experiment are numbered.
    """
    models = [result.model for result in results]
    return models if _differ(models) else labels(results, folders, model_first=True)


def labels(results: Sequence[ScaleResult], folders: Sequence[Path] = (), *, model_first: bool = False) -> list[str]:
    """Returns experiment and model of each sweep, with the folder if two sweeps share both."""
    pairs = [(each.model, each.name) if model_first else (each.name, each.model) for each in results]
    found = [", ".join(pair) for pair in pairs]
    if _differ(found):
        return found
    last = folders or range(1, len(found) + 1)
    return [f"{label}, {each}" for label, each in zip(found, last, strict=True)]


def check_comparable(results: Sequence[ScaleResult], folders: Sequence[Path] = ()) -> None:
    """Validates that sweeps can be drawn in one chart.

    Raises:
        ConfigError: a folder is given twice, data or splits differ, a sweep has no finished run, or there are more
            sweeps than colours.
    """
    if len(results) > len(COLOURS):
        raise ConfigError(f"{len(results)} sweeps are too many for one chart", f"compare at most {len(COLOURS)}")
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(f"{folder}: the same sweep is given {places.count(place)} times", "give each folder once")
    names = [str(folder) for folder in folders] or [result.name for result in results]
    for name, result in zip(names, results, strict=True):
        if not result.finished:
            raise ConfigError(f"{name}: no run is finished", "run the same `ziggurat scale` again to continue it")
        for what in ("dataset", "split"):
            ours, theirs = getattr(results[0], what), getattr(result, what)
            if ours != theirs:
                raise ConfigError(
                    f"sweeps with different {what}s cannot be compared: {names[0]} has {ours[:12]}, "
                    f"{name} has {theirs[:12]}",
                    "train both with the same data, features and --split",
                )


def _differ(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)
